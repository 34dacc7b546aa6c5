"""Taking a snapshot of experiments: all that can be read of them, as one document."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detslurm.look.document import DOCUMENT, CurveBudget, Snapshot
from detslurm.look.experiment_reader import ExperimentReader, Wanted
from detslurm.look.plain import plain

if TYPE_CHECKING:
    from detslurm.look.curve_reader import CurveReader
    from detslurm.sdk import Experiment

Progress = Callable[[int, int], None]
"""Gets how many trials were read, and how many there are."""


MOST_TRIALS: Final = 2000
"""So many trials that the last snapshot did not ask for are remembered; then they are forgotten."""

MOST_POINTS: Final = 20_000_000
"""So many points of curves, half a gigabyte; then everything is forgotten, and read again."""


@dataclass
class ReadSoFar:
    """The metrics that snapshots have read: with them, the next one reads only on."""

    metrics: dict[int, Any] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """How many points of curves are remembered."""
        runs = (run for cache in self.metrics.values() for run in cache.values())
        return sum(run.size for run in runs)

    def trim(self, asked: Collection[int]) -> None:
        """Forget the excess, other trials than these first."""
        others = self.metrics.keys() - {*asked}
        if len(others) > MOST_TRIALS or self.points > MOST_POINTS:
            for trial in others:
                del self.metrics[trial]
        if self.points > MOST_POINTS:
            self.metrics.clear()


def snapshot(
    experiments: Sequence[Experiment],
    *,
    trials: Collection[int] | None = None,
    curves: bool = True,
    code: bool = False,
    log_lines: int = 50,
    budget: CurveBudget = DOCUMENT,
    progress: Progress | None = None,
    known: ReadSoFar | None = None,
) -> Snapshot:
    """Put down the known state of experiments, as their clients have read them; `encode` writes it.

    An unreadable record is named in `problems` of its experiment; nothing is raised for it.

    Args:
        trials: The ids of the trials to show, whose log tails are shown too; by default all.
        curves: Whether to read metrics and the profiler's figures.
        code: Whether to list the experiments' code.
        log_lines: How many lines of the logs of failed trials to show at most.
        budget: How much the curves may take.
        progress: Gets how many trials were read and how many there are.
        known: The part of the same experiments that was read before.

    Example:
        import detslurm as det
        from detslurm.look.snapshot import encode, snapshot
        from detslurm.sdk import Client

        with det.core.init() as core:
            core.train.report_validation_metrics(1, {"loss": 0.5})
        taken = snapshot([Client().experiment(1)])
        (curve,) = taken.experiments[0].trials[0].curves
        assert (curve.metric, curve.values) == ("loss", [0.5])
        encode(taken)
    """
    wanted = Wanted(trials, code, log_lines, budget.artifacts // max(len(experiments), 1))
    reader = _curve_reader(known, budget) if curves else None
    readers = [ExperimentReader(one, wanted) for one in experiments]
    total, done = sum(len(one.trials) for one in readers), 0
    for one in readers:
        for _ in one.read(reader):
            done += 1
            if progress is not None:
                progress(done, total)
    parts = [one.part(reader) for one in readers]
    if known is not None:
        known.trim({trial.id for part in parts for trial in part.trials})
    taken = Snapshot(taken=time.time(), store=_store_of(experiments), experiments=parts)
    return taken if reader is None else reader.with_curves(taken, len(encode(taken)))


def _curve_reader(known: ReadSoFar | None, budget: CurveBudget) -> CurveReader:
    from detslurm.look.curve_reader import CurveReader  # numpy: only who wants curves has it

    return CurveReader(None if known is None else known.metrics, budget)


def _store_of(experiments: Sequence[Experiment]) -> str:
    return plain(str(experiments[0].path.parent.parent)) if experiments else ""


def encode(taken: Snapshot) -> bytes:
    """The document as JSON."""
    try:
        return msgspec.json.encode(taken)
    except UnicodeEncodeError:  # a name or a line that is no Unicode
        return msgspec.json.encode(plain_data(taken))


def plain_data(taken: Snapshot) -> dict[str, Any]:
    """The document as mappings, lists, texts and numbers."""
    data: dict[str, Any] = plain(msgspec.to_builtins(taken))
    return data
