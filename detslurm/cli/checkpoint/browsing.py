"""The tree of the checkpoint browser: lines whose children are read when they are opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from detslurm.cli.output.printing import local_time, number, size
from detslurm.look.top.cells import one_line

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.client import Client
    from detslurm.sdk.parts import ExperimentRow
    from detslurm.sdk.trials.trial import Trial

PAGE: Final = 200

Details = list[tuple[str, Any]]


@dataclass(frozen=True)
class Node:
    """A line of the tree.

    Attributes:
        label: Its text.
        details: Returns the details beside the tree.
        children: Reads its children now; None for a line that can't be opened.
        checkpoint: The checkpoint that it stands for, if any.
    """

    label: str
    details: Callable[[], Details] = list
    children: Callable[[], Sequence[Node]] | None = None
    checkpoint: Checkpoint | None = None


def experiments(client: Client) -> list[Node]:
    """The newest experiments, and a node with older ones."""
    return paged(list(client.newest_rows(archived=True)), partial(_experiment, client))


def paged(items: Sequence[Any], node: Callable[[Any], Node]) -> list[Node]:
    """The nodes of the first items, and a last node for the others: a terminal needs no more."""
    if len(items) <= PAGE + 1:
        return [node(item) for item in items]
    rest = items[PAGE:]
    more = Node(f"{len(rest)} more", children=lambda: paged(rest, node))
    return [*map(node, items[:PAGE]), more]


def _experiment(client: Client, row: ExperimentRow) -> Node:
    """An experiment; below it the trials that have begun."""
    details = [
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

    def trials() -> list[Node]:
        begun = [trial for trial in client.stored(row.id).trials() if trial.row.run_count]
        return paged(begun, _trial)

    label = _joined(row.id, row.name, row.state, _metric(row.metric, row.best_value))
    return Node(label, lambda: details, trials)


def _trial(trial: Trial) -> Node:
    """A trial; below it its checkpoints, the newest first."""
    row, best = trial.row, trial.row.best_validation
    validations = [("Best", best), ("Last", row.last_validation)]
    figures = [
        (f"{which} {name}", f"{number(value)} @ {found.steps}")
        for which, found in validations
        if found is not None
        for name, value in found.metrics.items()
    ]
    details = [
        ("Trial", row.id),
        ("State", row.state),
        ("Batches", row.steps),
        ("Restarts", row.restarts),
        *figures,
        *((f"hparams.{name}", value) for name, value in (row.hparams or {}).items()),
    ]
    metric = _metric(trial.experiment.view.metric, best.value if best else None)
    label = _joined("trial", row.id, row.state, metric)
    return Node(label, lambda: details, lambda: paged(trial.checkpoints()[::-1], _checkpoint))


def _checkpoint(one: Checkpoint) -> Node:
    """A checkpoint; below it its files."""

    def details() -> Details:
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

    def files() -> list[Node]:
        found = sorted(one.resources.items())
        return paged([item for item in found if not item[0].endswith("/")], file_node)

    state = "" if one.state == "COMPLETED" else one.state
    value = number(one.searcher_metric)
    label = _joined(one.uuid[:8], f"step {one.steps_completed}", value, size(one.size), state)
    return Node(label, details, files, one)


def file_node(file: tuple[str, int]) -> Node:
    """A file of a checkpoint, by its name and its size in bytes."""
    name, count = file
    details = [("File", name), ("Size", size(count)), ("Bytes", count)]
    return Node(_joined(name, size(count)), lambda: details)


def restoring(one: Checkpoint) -> str:
    """The commands that restore a checkpoint."""
    return f"""\
# copy it, with the code of its Trial class
detslurm checkpoint download {one.uuid}
# train on from its weights
detslurm experiment fork {one.experiment_id} --from-checkpoint {one.uuid}
# in Python
from detslurm.sdk import Client; Client().checkpoint("{one.uuid}").download()"""


def _metric(name: str | None, value: float | None) -> str:
    """A metric as text; "" without a value."""
    return "" if name is None or value is None else f"{name} {number(value)}"


def _joined(*parts: Any) -> str:
    """Parts of a line; what others have named can't move the cursor."""
    return "  ".join(text for part in parts if (text := one_line(part)))
