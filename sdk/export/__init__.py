"""Experiments in the formats of other tools; what a directory has of them is brought up to date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from detslurm.sdk.errors import LifecycleError

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment

Format = Literal["csv", "parquet", "tensorboard", "wandb", "mlflow", "trackio"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


class ExportedTrial(NamedTuple):
    """The result of an export of one trial.

    `run_id` is its name in other tools, the same at every export. `change` is "new", "changed" or
    "unchanged", and `rows` is the number of rows of metrics that were written.
    """

    experiment: int
    trial: int
    run_id: str
    change: str
    rows: int


Progress = Callable[[ExportedTrial], object]


def export(
    experiments: Iterable[Experiment],
    to: Format,
    folder: os.PathLike[str] | str,
    *,
    progress: Progress = lambda _: None,
) -> list[ExportedTrial]:
    """Bring the export of experiments in a `folder`, which is made if need be, up to date; call
    `progress` after each trial, and return the result of each.

    It is a `LifecycleError` if the library of the format `to` is missing, another export is at work
    in the folder, or it has an experiment of another store under the same id; `StoreError` if an
    experiment can't be read.

    Example:
        import csv
        from pathlib import Path

        import detslurm as det
        from detslurm.sdk import Client
        from detslurm.sdk.export import export

        with det.core.init() as core:  # by hand: recorded as experiment 1
            core.train.report_training_metrics(1, {"loss": 0.5})
        export([Client().experiment(1)], "csv", "tables")
        with Path("tables/experiment-1/metrics.csv").open() as file:
            assert [row["loss"] for row in csv.DictReader(file)] == ["0.5"]
    """
    if to not in FORMATS:
        raise LifecycleError(f"can't export to {to!r}: there are {', '.join(FORMATS)}")
    from detslurm.sdk.export.updating import require, update

    require(to)
    path = Path(folder).expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    return update(list(experiments), to, path, progress)
