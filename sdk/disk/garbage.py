"""Collecting an experiment's checkpoints from outside of its jobs, and what that would delete."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from detslurm.sdk.checkpoints.catalog import storages_of, unreachable_problems
from detslurm.store import CheckpointView, ExperimentDir, ExperimentFacts
from detslurm.store.collection import Collector
from detslurm.store.gc_policy import GCPolicy


class DoomedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a policy lets go.

    Attributes:
        uuid: Its storage id.
        experiment: The id of its experiment.
        trial: The id of its trial.
        steps: How many batches were trained.
        metric: The searcher's metric of the validation at exactly these steps; None without one.
        size: The bytes in its files.
    """

    uuid: str
    experiment: int
    trial: int
    steps: int
    metric: float | None
    size: int

    @classmethod
    def of(cls, collector: Collector, checkpoint: CheckpointView) -> DoomedCheckpoint:
        """One that the last look of a collector has let go."""
        return cls(
            uuid=checkpoint.uuid,
            experiment=collector.experiment.id,
            trial=checkpoint.trial,
            steps=checkpoint.steps,
            metric=collector.values.get(checkpoint.uuid),
            size=checkpoint.size,
        )


class GCPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy would delete of an experiment now.

    Attributes:
        policy: The policy.
        checkpoints: What it lets go, by trial, oldest first.
        freed: The bytes of these.
        stay: How many complete checkpoints stay.
        kept_by: Why others stay that the policy alone would not keep, by storage id.
        unranked: Whether none has a validation of the searcher's metric: none is among the best.
        problems: Which stay because their storage can't be seen from here, in sentences.
    """

    policy: GCPolicy
    checkpoints: tuple[DoomedCheckpoint, ...]
    freed: int
    stay: int
    kept_by: dict[str, str]
    unranked: bool
    problems: tuple[str, ...] = ()


def collector_of(directory: ExperimentDir, facts: ExperimentFacts | None = None) -> Collector:
    """A collector with all that decides; `facts` are those that were read before, if any were.

    Raises as `storages_of`.
    """
    collector = Collector(directory, storages_of(directory), facts=facts or ExperimentFacts())
    collector.needed = lambda: needed_by_search(directory, collector.facts)
    return collector


def needed_by_search(directory: ExperimentDir, facts: ExperimentFacts) -> Collection[str]:
    """The checkpoints that a search which is not over may start a trial from."""
    if not facts.searching:
        return ()
    from detslurm.searcher import Search, State
    from detslurm.store import EventLog

    log: EventLog[State] = EventLog(directory.search, Search(directory.config()))
    return log.catch_up().needed_checkpoints()


def preview(collector: Collector, policy: GCPolicy | None = None) -> GCPreview:
    """What a policy, by default the experiment's, would delete."""
    doomed = collector.choose(policy)
    unreachable = collector.files.unreachable(doomed)
    chosen = [one for one in doomed if one.uuid not in unreachable]
    kept = collector.facts.checkpoints.kept.values()
    return GCPreview(
        policy=policy or collector.policy(),
        checkpoints=tuple(DoomedCheckpoint.of(collector, one) for one in chosen),
        freed=sum(one.size for one in chosen),
        stay=len(collector.values) - len(chosen),
        kept_by={uuid: fact.kept_by for fact in kept for uuid in fact.uuids},
        unranked=all(value is None for value in collector.values.values()),
        problems=tuple(unreachable_problems(unreachable)),
    )
