"""The tree of the checkpoint browser: nodes that read their children when asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from detslurm.cli.output.printing import local_time, number, size
from detslurm.look.top.cells import one_line

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.client import Client
    from detslurm.sdk.parts import ExperimentRow
    from detslurm.sdk.trials.trial import Trial

PAGE: Final = 200

Details = list[tuple[str, Any]]


class Node(Protocol):
    """A line of the tree."""

    @property
    def label(self) -> str:
        """Its line."""

    @property
    def details(self) -> Details:
        """The details beside the tree; read before."""

    def children(self) -> Sequence[Node]:
        """Its children, read now."""


def experiments(client: Client) -> list[Node]:
    """The newest experiments, and a node with older ones."""
    rows = client.newest_rows(archived=True)
    return paged([ExperimentNode(client, row) for row in rows])


def paged(nodes: Sequence[Node]) -> list[Node]:
    """The first nodes, and a node for the others: a terminal needs no more at once."""
    if len(nodes) <= PAGE + 1:
        return list(nodes)
    return [*nodes[:PAGE], MoreNode(nodes[PAGE:])]


@dataclass(frozen=True)
class MoreNode:
    """The nodes that did not fit on a page."""

    rest: Sequence[Node]

    @property
    def label(self) -> str:
        """How many there are."""
        return f"{len(self.rest)} more"

    @property
    def details(self) -> Details:
        """Nothing more."""
        return []

    def children(self) -> Sequence[Node]:
        """The next page."""
        return paged(self.rest)


@dataclass(frozen=True)
class ExperimentNode:
    """An experiment; below it the trials that have begun."""

    client: Client
    row: ExperimentRow

    @property
    def label(self) -> str:
        """Id, name, state and the best metric."""
        row = self.row
        return joined(row.id, row.name, row.state, metric(row.metric, row.best_value))

    @property
    def details(self) -> Details:
        """The columns of lists of experiments."""
        row = self.row
        return [
            ("Experiment", row.id),
            ("Name", row.name),
            ("State", row.state),
            ("Owner", row.owner),
            ("Trials", row.trial_count),
            ("Started", local_time(row.started)),
            ("Ended", local_time(row.ended)),
            ("Best trial", row.best_trial),
            (f"Best {row.metric}", row.best_value),
            ("Labels", ", ".join(row.labels)),
        ]

    def children(self) -> Sequence[Node]:
        """The trials."""
        experiment = self.client.stored(self.row.id)
        return paged([TrialNode(t) for t in experiment.trials() if t.row.run_count])


@dataclass(frozen=True)
class TrialNode:
    """A trial; below it its checkpoints, the newest first."""

    trial: Trial

    @property
    def label(self) -> str:
        """Id, state and the best metric."""
        row, best = self.trial.row, self.trial.row.best_validation
        name = self.trial.experiment.view.metric
        return joined("trial", row.id, row.state, metric(name, best.value if best else None))

    @property
    def details(self) -> Details:
        """Its state, its validations and its hyperparameters."""
        row = self.trial.row
        validations = [("Best", row.best_validation), ("Last", row.last_validation)]
        figures = [
            (f"{which} {name}", f"{number(value)} @ {found.steps}")
            for which, found in validations
            if found is not None
            for name, value in found.metrics.items()
        ]
        return [
            ("Trial", row.id),
            ("State", row.state),
            ("Batches", row.steps),
            ("Restarts", row.restarts),
            *figures,
            *((f"hparams.{name}", value) for name, value in (row.hparams or {}).items()),
        ]

    def children(self) -> Sequence[Node]:
        """The checkpoints."""
        return paged([CheckpointNode(one) for one in reversed(self.trial.checkpoints())])


@dataclass(frozen=True)
class CheckpointNode:
    """A checkpoint; below it its files."""

    checkpoint: Checkpoint

    @property
    def label(self) -> str:
        """The beginning of its id, its step, its metric and its size."""
        one = self.checkpoint
        state = "" if one.state == "COMPLETED" else one.state
        value = number(one.searcher_metric)
        return joined(one.uuid[:8], f"step {one.steps_completed}", value, size(one.size), state)

    @property
    def details(self) -> Details:
        """Its validation metrics, and where it is."""
        one = self.checkpoint
        return [
            ("UUID", one.uuid),
            ("State", one.state),
            ("Problem", one.problem),
            ("Trial", one.trial_id),
            ("Batches", one.steps_completed),
            ("Saved", local_time(one.report_time)),
            ("Size", size(one.size)),
            *one.validation_metrics.items(),
            ("Path", one.location),
        ]

    def children(self) -> Sequence[Node]:
        """The files."""
        found = sorted(self.checkpoint.resources.items())
        return paged([FileNode(name, bytes_) for name, bytes_ in found if not name.endswith("/")])

    def restoring(self) -> str:
        """The command that restores it."""
        one = self.checkpoint
        return "\n".join(_restoring(one))


def _restoring(one: Checkpoint) -> Iterator[str]:
    yield "# copy it, with the code of its Trial class"
    yield f"detslurm checkpoint download {one.uuid}"
    yield "# train on from its weights"
    yield f"detslurm experiment fork {one.experiment_id} --from-checkpoint {one.uuid}"
    yield "# in Python"
    yield f'from detslurm.sdk import Client; Client().checkpoint("{one.uuid}").download()'


@dataclass(frozen=True)
class FileNode:
    """A file of a checkpoint."""

    name: str
    bytes: int

    @property
    def label(self) -> str:
        """Its name and its size."""
        return joined(self.name, size(self.bytes))

    @property
    def details(self) -> Details:
        """Its size to the byte."""
        return [("File", self.name), ("Size", size(self.bytes)), ("Bytes", self.bytes)]

    def children(self) -> Sequence[Node]:
        """Nothing: directories are part of names."""
        return []


def metric(name: str | None, value: float | None) -> str:
    """A metric as text; "" without a value."""
    return "" if name is None or value is None else f"{name} {number(value)}"


def joined(*parts: Any) -> str:
    """Parts of a line; what others have named can't move the cursor."""
    return "  ".join(text for part in parts if (text := one_line(part)))
