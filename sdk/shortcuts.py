"""Functions that a notebook calls once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.helpers import DelayedSubmission

from detslurm.sdk.client import Client
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.functions.packing import packed, training_config


def submit(
    what: str | os.PathLike[str] | Mapping[str, Any] | Callable[..., Any],
    config: Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    cluster: str = "auto",
    client: Client | None = None,
) -> Experiment:
    """Submit an experiment and return it. Other arguments and errors are as in `Client.submit`.

    A function is called in each trial with the context of `core.init()`; its hyperparameters are
    `core.info.trial.hparams`. It is copied, from a notebook too; its imports are found where they
    are.

    Args:
        what: The directory of the code, with an `experiment.yaml` unless `config` is given; or a
            configuration file beside the code; or a configuration for the code in the working
            directory; or the function.
        config: The configuration of a directory or a function; by default that of the directory. A
            function's needs no entrypoint, and has the function's name by default.
        client: The store and its queues; by default those that the commands use.

    Example:
        from detslurm.sdk import submit

        def train(core):
            core.train.report_validation_metrics(1, {"loss": 0.5})

        searcher = {"name": "single", "metric": "loss"}
        config = {"searcher": searcher, "slurm": {"slot_type": "cpu"}}
        assert submit(train, config, cluster="local").name == "train"
    """
    client = client or Client()
    more: dict[str, Any] = {"overrides": overrides, "cluster": cluster}
    if callable(what):
        return _function(client, what, config or {}, more)
    if not isinstance(what, Mapping) and Path(what).is_dir():
        return client.submit(config or _file_in(Path(what)), what, **more)
    return client.submit(what, **more)


def _function(
    client: Client, function: Callable[..., Any], config: Mapping[str, Any], more: dict[str, Any]
) -> Experiment:
    with packed([DelayedSubmission(function)]) as path:
        return client.submit(training_config(function, config), path.parent, **more)


def _file_in(folder: Path) -> Path:
    path = folder / "experiment.yaml"
    if not path.is_file():
        raise SubmitError(f"there is no {path}: give the configuration as `config`")
    return path
