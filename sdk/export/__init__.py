"""Experiments in the formats of other tools; what a directory has of them is brought up to date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from detslurm.sdk.errors import LifecycleError

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment

Format = Literal["csv", "parquet", "tensorboard", "wandb", "mlflow", "trackio"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


class ExportedTrial(NamedTuple):
    """The result of an export of one trial.

    Attributes:
        experiment: The id of its experiment.
        trial: Its id.
        run_id: The name under which other tools know it, the same at every export.
        change: "new"; "changed" since the last export; or "unchanged".
        rows: How many rows of metrics were written.
    """

    experiment: int
    trial: int
    run_id: str
    change: str
    rows: int


Progress = Callable[[ExportedTrial], None]


def export(
    experiments: Iterable[Experiment],
    to: Format,
    folder: os.PathLike[str] | str,
    *,
    progress: Progress | None = None,
) -> list[ExportedTrial]:
    """Bring the export of experiments in a directory up to date, and return the result of each
    trial; nothing goes over the network.

    Each trial that has run becomes a run with its hyperparameters, its configuration with secrets
    masked, its state and its clean curve. A trial that has not changed since the last export is not
    written again. It is a `LifecycleError` if the format's library is missing, another export is at
    work in the directory, or it has an experiment of another store under the same id; `StoreError`
    if an experiment can't be read.

    Args:
        experiments: The experiments.
        to: The format: "csv", "parquet", "tensorboard", "wandb" (offline runs), "mlflow" (a SQLite
            tracking file) or "trackio" (its local database).
        folder: The directory, which is made if need be.
        progress: Called after each trial; nothing by default.

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
    from detslurm.sdk.export import isolation, updating

    updating.require(to)
    path = Path(folder).expanduser().absolute()
    path.mkdir(parents=True, exist_ok=True)
    chosen: Sequence[Experiment] = list(experiments)
    note = progress or (lambda _: None)
    if to in isolation.ISOLATED:
        return isolation.update(chosen, to, path, note)
    return updating.update(chosen, to, path, note)
