"""The exported parts of an experiment and of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from detslurm._base.states import FINISHED
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.trials.artifacts import shown_artifacts
from detslurm.store import (
    ExperimentDir,
    ExperimentView,
    MetricRow,
    TrialDir,
    TrialRow,
    as_float,
    flat,
    is_number,
    trial_metrics,
)
from detslurm.store.artifacts import Artifact

Rows = Sequence[MetricRow]


@dataclass(frozen=True)
class ExperimentContent:
    """An experiment as other tools get it, with the trials that have begun. `mark` distinguishes it
    from an experiment of the same id elsewhere; `config` is masked."""

    mark: str
    view: ExperimentView
    config: Mapping[str, Any]
    trials: list[TrialContent] = field(default_factory=list, repr=False)

    @property
    def id(self) -> int:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def folder(self) -> str:
        """The name of its directory, in formats of plain files."""
        return f"experiment-{self.id}"


@dataclass(frozen=True)
class TrialContent:
    """A trial as other tools get it."""

    experiment: ExperimentContent
    row: TrialRow
    directory: TrialDir

    @property
    def id(self) -> int:
        return self.row.id

    @property
    def run_id(self) -> str:
        """Its name in other tools."""
        return f"{self.experiment.mark}-{self.id}"

    @property
    def name(self) -> str:
        return f"{self.experiment.name}/{self.id}"

    @property
    def over(self) -> bool:
        """Whether it has ended, be it without an end record: a lost trial may yet go on."""
        return self.row.state in FINISHED

    @cached_property
    def hparams(self) -> dict[str, Any]:
        """The hyperparameters, nested ones with dotted names."""
        return dict(flat(self.row.hparams or {}))

    def artifacts(self) -> list[Artifact]:
        """Its images and tables, read now, by step; secrets in their texts are masked."""
        found = shown_artifacts(ExperimentDir.at(self.directory.experiment_path), self.directory)
        return sorted((one for some in found.values() for one in some), key=lambda one: one.steps)

    def read(self) -> Rows:
        """Its clean curve, read now: the rows of all groups by step."""
        return trial_metrics(self.directory)


class ExportWriter:
    """A format; a writer is made for the directory of an export. Everything is on disk when
    `write_experiment` returns."""

    def write_trial(self, trial: TrialContent, rows: Rows, restarted: bool) -> None:
        """Replace a trial that has changed; `restarted` where it has another run than before."""

    def write_experiment(self, experiment: ExperimentContent) -> None:
        """Replace an experiment with trials that have changed."""


def content_of(experiment: Experiment) -> ExperimentContent:
    """An experiment with the trials that have begun."""
    directory = experiment._snapshot.directory
    mark = directory.mark_in(None)
    assert mark is not None
    found = ExperimentContent(mark, experiment.view, experiment.config)
    begun = (row for row in experiment.trial_rows if row.run_count)
    found.trials.extend(TrialContent(found, row, directory.trial(row.id)) for row in begun)
    return found


def scalars(row: MetricRow) -> Iterator[tuple[str, float]]:
    """The numbers of a row by tag, such as "validation/acc/top1"."""
    yield from _scalars(row.metrics, row.group)


def _scalars(metrics: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}/{name}")
        elif is_number(value):
            yield f"{prefix}/{name}", as_float(value)


def reported_at(trial: TrialContent, row: MetricRow) -> float:
    """When a row was reported, in seconds since 1970; if that is unknown, when its trial began."""
    return row.time if row.time is not None else trial.row.started or 0.0
