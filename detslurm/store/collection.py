"""Garbage collection of an experiment's checkpoints: what its policy lets go is deleted.

Any number of processes may collect at once, for facts decide: a checkpoint is deleted by a fact of
its experiment, and only then are its files removed. A crash in between leaves files without a
checkpoint, which `detslurm gc` removes.

A run that begins meanwhile never loses what it resumes from. It claims its checkpoint and then
looks whether that one was deleted; a collector deletes and then looks whether a run has claimed it.
Whichever comes second sees the other one: the run begins again, or the files stay. A run whose job
is known to be gone claims nothing; should its trial be queued again all the same, the next run says
that before it claims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from detslurm.store.checkpoint_facts import mark_deleted
from detslurm.store.checkpoint_fold import CheckpointFacts
from detslurm.store.checkpoint_index import row_of
from detslurm.store.checkpoint_links import Links, chosen
from detslurm.store.curve import last_valid_steps
from detslurm.store.errors import TORN
from detslurm.store.experiment import ExperimentDir
from detslurm.store.experiment_fold import ExperimentFacts
from detslurm.store.gc_policy import Candidate, GCPolicy, beyond, candidates
from detslurm.store.reading import ReadCache, read_runs, started_ids
from detslurm.store.trial import Run, TrialDir
from detslurm.store.trial_fold import FoldContext, clean_validations, trial_view
from detslurm.store.views import CheckpointView, TrialView


@dataclass(frozen=True)
class TrialCheckpoints:
    """What decides about one trial's checkpoints.

    `needed` are those that it has to find, and all where a record can't be read; `over` says that
    it never goes on.
    """

    saved: dict[str, CheckpointView]
    ranked: list[Candidate]
    needed: frozenset[str]
    over: bool

    def after(self, facts: CheckpointFacts) -> TrialCheckpoints:
        """With what became of them since they were read."""
        saved = {uuid: facts.applied(one) for uuid, one in self.saved.items()}
        ranked = [one for one in self.ranked if saved[one.uuid].state == "COMPLETED"]
        return replace(self, saved=saved, ranked=ranked)


def trial_checkpoints(
    trial: TrialDir, context: FoldContext, cache: ReadCache | None = None
) -> TrialCheckpoints:
    """Read a trial; with a cache only what is new in its logs."""
    runs = trial.runs()
    read = read_runs(trial, runs, {} if cache is None else cache)
    view = trial_view(trial.id, trial.experiment_id, read, context)
    limits = last_valid_steps([run.span for run in read])
    validations = clean_validations(read, limits, context.metric)
    # What can't be read may be the validation of the best one, or be whole at the next look.
    unknown = any(problem.reason != TORN for problem in view.problems)
    over = (view.final or view.state == "CANCELED") and not unknown
    saved = {checkpoint.uuid: checkpoint for checkpoint in view.checkpoints}
    needed = frozenset(saved if unknown else needed_by(view, runs, context))
    return TrialCheckpoints(saved, candidates(view.checkpoints, validations), needed, over)


def needed_by(view: TrialView, runs: Sequence[Run], context: FoldContext) -> dict[str, str]:
    """What a trial has to find, and why: what it goes on from, and what a run of it began with that
    may live."""
    named, latest = f"trial {view.id}, which is {view.state}", view.latest_checkpoint
    why = f"{named}: a run of it that has no end record began with it"
    found = dict.fromkeys(resumed_from(runs, context), why)
    if latest is not None and not view.final and not context.desired.stops(view.id):
        found[latest.uuid] = f"{named} and goes on from it"
    return found


def resumed_from(runs: Sequence[Run], context: FoldContext) -> set[str]:
    """What the runs that go on began with: none does of a trial that is lost."""
    going_on = () if context.is_lost else (run for run in runs if run.end is None)
    claims = (run.start.get("resume") or {} for run in going_on)
    return {str(claim["uuid"]) for claim in claims if "uuid" in claim}


def doomed(
    policy: GCPolicy,
    trials: Iterable[TrialCheckpoints],
    *,
    smaller_is_better: bool,
    needed: Collection[str] = (),
) -> list[CheckpointView]:
    """The checkpoints that go, those aside that something may still start from."""
    known = list(trials)
    ranked = [one for trial in known for one in trial.ranked]
    spared = {*needed, *(uuid for trial in known for uuid in trial.needed)}
    saved = {uuid: one for trial in known for uuid, one in trial.saved.items()}
    gone = beyond(policy, ranked, smaller_is_better=smaller_is_better)
    return [saved[one.uuid] for one in gone if one.uuid not in spared]


class Removed(msgspec.Struct, kw_only=True):
    """What a collection did.

    Attributes:
        deleted: The checkpoints that were deleted with all their files.
        left: Those that were deleted and whose files stay: a run has just begun with them, or they
            could not be removed.
        kept: What protects the others, by id.
        problems: Whose files could not be removed, and why.
        unreachable: Those that stay because their storage can't be seen from here, by id.
    """

    deleted: tuple[CheckpointView, ...] = ()
    left: tuple[CheckpointView, ...] = ()
    kept: dict[str, str] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unreachable: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def freed(self) -> int:
        """The bytes of what was deleted."""
        return sum(one.size for one in self.deleted)


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
    checkpoints = [one for one in checkpoints if one.uuid not in unreachable]
    if not checkpoints:
        return Removed(unreachable=unreachable)
    done = mark_deleted(experiment, [one.uuid for one in checkpoints])
    gone = [one for one in checkpoints if one.uuid in done.deleted]
    # Only now, with the fact on disk: see the top of this file.
    used = [
        resumed_from(experiment.trial(n).runs(), done.facts.context(n))
        for n in sorted({one.trial for one in gone})
    ]
    deleted, left, problems = [], [], []
    for one in gone:
        if any(one.uuid in claimed for claimed in used):
            left.append(one)
            continue
        try:
            with experiment.as_owner():
                files.discard(one)
        except Exception as error:  # cloud libraries raise errors of all kinds
            left.append(one)
            problems.append(f"the files of checkpoint {one.uuid} can't be removed: {error}")
        else:
            deleted.append(one)
    return Removed(
        deleted=tuple(deleted),
        left=tuple(left),
        kept=done.kept,
        problems=tuple(problems),
        unreachable=unreachable,
    )


@dataclass
class Collector:
    """Follows one experiment: each collection reads what is new since the one before.

    `needed` gives the checkpoints that its search may start a trial from. It is asked after the
    trials were read: what a trial has saved since a decision of the search is read with it.
    """

    experiment: ExperimentDir
    files: Files
    needed: Callable[[], Collection[str]] = tuple
    facts: ExperimentFacts = field(default_factory=ExperimentFacts)
    values: dict[str, float | None] = field(default_factory=dict)  # of all that the last one ranked
    _caches: dict[int, ReadCache] = field(default_factory=dict)
    _over: dict[int, TrialCheckpoints] = field(default_factory=dict)

    def refresh(self) -> ExperimentFacts:
        """Fold in the facts that are new."""
        return self.facts.fold(self.experiment.facts(self.facts.count))

    def policy(self) -> GCPolicy:
        """The policy as of the last `refresh`."""
        return GCPolicy.of(self.experiment.config(), self.facts.desired.fields)

    def choose(self, policy: GCPolicy | None = None) -> list[CheckpointView]:
        """What a policy, by default the experiment's, lets go of the whole experiment."""
        facts = self.refresh()
        return self._doomed(started_ids(self.experiment, facts), policy or self.policy())

    def choose_of(self, trial: int) -> list[CheckpointView]:
        """As `choose`, of one trial, the others unread: those stay that might be the best of all
        trials."""
        self.refresh()
        policy = self.policy()
        most = max(policy.save_trial_best, policy.save_experiment_best)
        alone = msgspec.structs.replace(policy, save_experiment_best=0, save_trial_best=most)
        return self._doomed([trial], alone)

    def links(self) -> Links:
        """Where the links to the best and the newest checkpoint shall lead now."""
        facts = self.refresh()
        ids = started_ids(self.experiment, facts)
        views = [view for number in ids for view in self._read(number).saved.values()]
        created = facts.created
        smaller = created.smaller_is_better
        return chosen(map(row_of, views), created.metric, smaller_is_better=smaller)

    def release_dead_holders(self) -> None:
        """Let go of what processes held that are known to be dead."""
        if any(fact.holder for fact in self.refresh().checkpoints.kept.values()):
            mark_deleted(self.experiment, ())

    def _doomed(self, ids: Iterable[int], policy: GCPolicy) -> list[CheckpointView]:
        read = [self._read(number) for number in ids]
        self.values = {one.uuid: one.value for trial in read for one in trial.ranked}
        smaller, facts = self.facts.created.smaller_is_better, self.facts.checkpoints
        found = doomed(policy, read, smaller_is_better=smaller, needed=self.needed())
        if self.facts.problems:  # one of them may protect any checkpoint
            return []
        free = facts.unprotected(one.uuid for one in found)
        return [one for one in found if one.uuid in free]

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
        """Delete what the policy lets go, of one trial or of all."""
        self.release_dead_holders()
        gone = self.choose() if trial is None else self.choose_of(trial)
        return remove(self.experiment, gone, self.files)
