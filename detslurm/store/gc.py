"""Garbage collection of an experiment's checkpoints: delete those that its policy does not keep.

Any number of processes may collect at once, because facts decide: a checkpoint is deleted by a fact
of its experiment, and only then are its files removed. A crash in between leaves files without a
checkpoint, which `detslurm gc` removes.

A run that begins meanwhile never loses the checkpoint that it resumes from. The run claims the
checkpoint and then looks whether it was deleted; a collector deletes the checkpoint and then looks
whether a run has claimed it. The later of the two sees the other: the run begins again, or the
files stay. A run whose job is known to be gone claims nothing. If its trial is queued again all the
same, the next run records that before it claims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from detslurm.store.checkpoint_facts import mark_deleted
from detslurm.store.checkpoint_fold import CheckpointFacts
from detslurm.store.checkpoint_index import row_of
from detslurm.store.checkpoint_links import Links, links_of
from detslurm.store.curve import last_valid_steps
from detslurm.store.errors import TORN
from detslurm.store.experiment import ExperimentDir
from detslurm.store.experiment_fold import ExperimentFacts
from detslurm.store.gc_policy import Candidate, GCPolicy, beyond, candidates
from detslurm.store.reading import ReadCache, read_runs, started_ids
from detslurm.store.trial import Run, TrialDir
from detslurm.store.trial_fold import OUTPUTS, FoldContext, clean_validations, trial_view
from detslurm.store.views import CheckpointView, TrialView


@dataclass(frozen=True)
class TrialCheckpoints:
    """The checkpoints of one trial: all by id, those that the policy ranks, and those that the
    trial has to find (all where a record can't be read). `over`: the trial never goes on."""

    saved: dict[str, CheckpointView]
    ranked: list[Candidate]
    needed: frozenset[str]
    over: bool

    @property
    def outputs(self) -> list[str]:
        """Its outputs, if they were not deleted; those of batches are results, and stay."""
        views = self.saved.values()
        return [view.uuid for view in views if view.kind == OUTPUTS and view.state == "COMPLETED"]

    def after(self, facts: CheckpointFacts) -> TrialCheckpoints:
        """The same checkpoints with the changes since they were read."""
        saved = {uuid: facts.applied(view) for uuid, view in self.saved.items()}
        ranked = [one for one in self.ranked if saved[one.uuid].state == "COMPLETED"]
        return replace(self, saved=saved, ranked=ranked)


def trial_checkpoints(trial: TrialDir, context: FoldContext, cache: ReadCache) -> TrialCheckpoints:
    """Read the new part of a trial's logs."""
    runs = trial.runs()
    read = read_runs(trial, runs, cache)
    view = trial_view(trial.id, trial.experiment_id, read, context)
    limits = last_valid_steps([run.span for run in read])
    validations = clean_validations(read, limits, context.metric)
    # An unreadable record may be the validation of the best one, or be whole at the next look.
    unknown = any(problem.reason != TORN for problem in view.problems)
    over = (view.final or view.state == "CANCELED") and not unknown
    saved = {checkpoint.uuid: checkpoint for checkpoint in view.checkpoints}
    needed = frozenset(saved if unknown else needed_by(view, runs, context))
    return TrialCheckpoints(saved, candidates(view.checkpoints, validations), needed, over)


def needed_by(view: TrialView, runs: Sequence[Run], context: FoldContext) -> dict[str, str]:
    """The checkpoints that a trial has to find, and why: the one from which it goes on, and those
    with which its runs began that may live."""
    named, latest = f"trial {view.id}, which is {view.state}", view.latest_checkpoint
    why = f"{named}: a run of it that has no end record began with it"
    found = dict.fromkeys(resumed_from(runs, context), why)
    if latest is not None and not view.final and not context.desired.stops(view.id):
        found[latest.uuid] = f"{named} and goes on from it"
    if not view.final and not context.desired.stops(view.id):
        whose = f"{named} and has its outputs there"
        found |= {c.uuid: whose for c in view.checkpoints if c.kind is not None}
    return found


def resumed_from(runs: Sequence[Run], context: FoldContext) -> set[str]:
    """The checkpoints with which the unfinished runs began; none where the trial is lost."""
    going_on = () if context.is_lost else (run for run in runs if run.end is None)
    return {uuid for run in going_on if (uuid := run.start.resumed.uuid) is not None}


class Removed(msgspec.Struct, kw_only=True):
    """The result of a collection.

    Attributes:
        deleted: The checkpoints that were deleted with all their files.
        left: Those that were deleted and whose files stay: a run has just begun with them, or they
            could not be removed.
        kept: The protection of the others, by id.
        problems: The checkpoints whose files could not be removed, with the reason.
        unreachable: Those that stay because their storage can't be seen from here, by id.
    """

    deleted: tuple[CheckpointView, ...] = ()
    left: tuple[CheckpointView, ...] = ()
    kept: dict[str, str] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unreachable: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def freed(self) -> int:
        """The bytes that were freed."""
        return sum(checkpoint.size for checkpoint in self.deleted)


class Files(Protocol):
    """The files of checkpoints, wherever they are."""

    def unreachable(self, checkpoints: Iterable[CheckpointView]) -> dict[str, str]:
        """The places that can't be seen from here, by the ids of the checkpoints in them."""
        ...

    def discard(self, checkpoint: CheckpointView) -> None:
        """Remove all files of a checkpoint."""
        ...


def remove(
    experiment: ExperimentDir, checkpoints: Sequence[CheckpointView], files: Files
) -> Removed:
    """Delete checkpoints of an experiment, then their files, as far as these can be reached."""
    unreachable = files.unreachable(checkpoints)
    wanted = [view.uuid for view in checkpoints if view.uuid not in unreachable]
    if not wanted:
        return Removed(unreachable=unreachable)
    done = mark_deleted(experiment, wanted)
    removed = Removed(kept=done.kept, unreachable=unreachable)
    gone = [view for view in checkpoints if view.uuid in done.deleted]
    # Only now, with the fact on disk: see the top of this file.
    claimed: set[str] = set()
    for number in {view.trial for view in gone}:
        claimed |= resumed_from(experiment.trial(number).runs(), done.facts.context(number))
    for view in gone:
        if view.uuid in claimed:
            removed.left += (view,)
            continue
        try:
            with experiment.as_owner():
                files.discard(view)
        except Exception as error:  # cloud libraries raise errors of all kinds
            removed.left += (view,)
            removed.problems += (f"the files of checkpoint {view.uuid} can't be removed: {error}",)
        else:
            removed.deleted += (view,)
    return removed


@dataclass
class Collector:
    """Follows one experiment: each collection reads only the new records.

    Attributes:
        experiment: The experiment.
        files: The files of its checkpoints.
        needed: Returns the checkpoints from which its search may start a trial. It is asked after
            the trials were read: a checkpoint saved since a decision of the search is read with it.
        facts: The facts that were read.
        values: The metric of each checkpoint that the last collection ranked, by id.
    """

    experiment: ExperimentDir
    files: Files
    needed: Callable[[], Collection[str]] = tuple
    facts: ExperimentFacts = field(default_factory=ExperimentFacts)
    values: dict[str, float | None] = field(default_factory=dict)
    _caches: dict[int, ReadCache] = field(default_factory=dict)
    _over: dict[int, TrialCheckpoints] = field(default_factory=dict)

    def refresh(self) -> ExperimentFacts:
        """Fold in the facts that are new."""
        return self.facts.fold(self.experiment.facts(self.facts.count))

    def policy(self) -> GCPolicy:
        """The policy as of the last `refresh`."""
        return GCPolicy.of(self.experiment.config(), self.facts.desired.fields)

    def choose(
        self, policy: GCPolicy | None = None, trial: int | None = None
    ) -> list[CheckpointView]:
        """The checkpoints that a policy, by default the experiment's own, does not keep.

        Of one `trial` alone, the others unread, those stay that might be the best of all trials.
        """
        facts = self.refresh()
        policy = policy or self.policy()
        if trial is None:
            return self._doomed(started_ids(self.experiment, facts), policy)
        most = max(policy.save_trial_best, policy.save_experiment_best)
        alone = msgspec.structs.replace(policy, save_experiment_best=0, save_trial_best=most)
        return self._doomed([trial], alone)

    def links(self) -> Links:
        """The right targets of the links to the best and the newest checkpoint."""
        facts = self.refresh()
        ids = started_ids(self.experiment, facts)
        views = [view for number in ids for view in self._read(number).saved.values()]
        return links_of(map(row_of, views), facts.created)

    def _doomed(self, ids: Iterable[int], policy: GCPolicy) -> list[CheckpointView]:
        trials = [self._read(number) for number in ids]
        ranked = [candidate for trial in trials for candidate in trial.ranked]
        self.values = {candidate.uuid: candidate.value for candidate in ranked}
        created = self.facts.created
        left = beyond(
            policy,
            ranked,
            smaller_is_better=created.smaller_is_better,
            objectives=created.objectives,
        )
        gone = [one.uuid for one in left]
        if not policy.save_trial_latest:
            gone += [uuid for trial in trials if trial.over for uuid in trial.outputs]
        spared = {*self.needed(), *(uuid for trial in trials for uuid in trial.needed)}
        if self.facts.problems:  # an unreadable fact may protect any checkpoint
            return []
        free = self.facts.checkpoints.unprotected(gone) - spared
        saved = {uuid: view for trial in trials for uuid, view in trial.saved.items()}
        return [saved[uuid] for uuid in gone if uuid in free]

    def _read(self, number: int) -> TrialCheckpoints:
        found = self._over.get(number)
        if found is None:
            context, cache = self.facts.context(number), self._caches.setdefault(number, {})
            found = trial_checkpoints(self.experiment.trial(number), context, cache)
        if found.over and not found.needed:
            self._over[number] = found
            self._caches.pop(number, None)
        return found.after(self.facts.checkpoints)

    def collect(self, trial: int | None = None) -> Removed:
        """Delete the checkpoints that the policy does not keep, of one trial or of all."""
        if any(fact.holder for fact in self.refresh().checkpoints.kept.values()):
            mark_deleted(self.experiment, ())  # releases the holds of dead processes
        return remove(self.experiment, self.choose(trial=trial), self.files)
