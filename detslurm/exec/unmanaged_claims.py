"""The trial of a job that detslurm did not submit: claimed once, found again by requeues.

The first start of a job makes an experiment, with one trial for each element of its array; a file
named after the job, the step and its command leads every later start to the same trial. The step's
number is chance where a script starts several at once, or leaves out finished steps: the command
decides.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm._base.states import ERROR, FINISHED, PREEMPTED, TERMINAL
from detslurm.slurm import Allocation, SlurmError, detect_cluster, user_script
from detslurm.slurm.allocation import step_of
from detslurm.slurm.interface import split_ref
from detslurm.store import CorruptRecord, ExperimentDir, NotFound, Store, TrialDir, fold_trial
from detslurm.store.facts import put_record, read_record
from detslurm.store.fs import claim_directory, ensure_directory, names_in
from detslurm.store.job_claims import claims_folder, first_job
from detslurm.store.records import Created, Intent, Script
from detslurm.store.trial import Run
from detslurm.store.unmanaged import METRIC, unmanaged_config
from detslurm.store.views import RunView


class SpuriousRequeue(Exception):
    """A job was started again whose `trial` is over, and not for that trial."""

    def __init__(
        self, trial: int, why: str = "Slurm has started its job once more after a preemption"
    ) -> None:
        super().__init__(
            f"trial {trial} is over, and {why}:"
            " nothing is done. Submit the script again to train another time"
        )


# How long to let another element of the array make the experiment before taking over. It may ask
# the queue for the array's indices, which takes half a minute where that does not answer.
_TIMEOUT = 90.0
# The launchers of DeepSpeed and torch append --local_rank=N to a rank's arguments, and scripts are
# given --node_rank $SLURM_NODEID.
_RANK_OPTION = re.compile(r"\0--(?:local|node)[_-]rank(?:[=\0]\d+)?(?=\0|$)")


@dataclass(frozen=True)
class JobStep:
    """The work of this process: a job's step, or one element of it."""

    allocation: Allocation
    name: str
    argv: Sequence[str]
    regular: range | None = None  # the indices of a regular array, known from the environment

    @classmethod
    def of(cls, allocation: Allocation, env: Mapping[str, str], argv: Sequence[str]) -> JobStep:
        """The work of a process by its environment and command line."""
        return cls(allocation, step_of(env) or "batch", argv, regular_array(env))

    @property
    def job(self) -> str:
        """The job, or the array that it is an element of."""
        return self.allocation.array_job_id or self.allocation.job_id

    @property
    def command(self) -> str | None:
        """Its command, in a word; None in arrays, whose elements may have other arguments each."""
        if self.allocation.array_job_id is not None:
            return None
        common = _RANK_OPTION.sub("", "\0".join(self.argv))  # what all ranks are started with
        return hashlib.sha256(common.encode()).hexdigest()[:8]

    @property
    def program(self) -> str:
        """Its command without arguments: in arrays that distinguishes the programs of a step."""
        return Path(self.argv[0] if self.argv else "").name

    def key(self, cluster: str, job: str) -> str:
        """The name of the claim: the same in every start of this step of the job."""
        return "-".join(filter(None, (cluster, job, self.name, self.command)))


@dataclass(frozen=True)
class JobClaim:
    """The experiment of a job, and which of its trials is whose."""

    experiment: ExperimentDir
    elements: Sequence[int]  # the array's index of every trial; none for a plain job

    def trial(self, step: JobStep) -> TrialDir:
        """The trial of this element."""
        task = step.allocation.array_task_id
        index = self.elements.index(task or 0) if self.elements else 0
        return self.experiment.trial(self.experiment.created().first_trial + index)

    def has(self, step: JobStep) -> bool:
        """Whether any of its trials is this element's."""
        return not self.elements or (step.allocation.array_task_id or 0) in self.elements


@dataclass(frozen=True)
class EarlierWork:
    """The work of a command of the job: its claim, and the runs of its trial."""

    claimed: JobClaim
    trial: int
    runs: Sequence[Run]  # none where the job ended just after the claim
    is_same: bool  # whether it is the command of the step that asks

    @property
    def outcome(self) -> str | None:
        """How its trial is over; None while it goes on."""
        outcome = self.runs[-1].outcome if self.runs else None
        return outcome if outcome in TERMINAL else None

    def is_at_work(self, allocation: Allocation) -> bool:
        """Whether this very start of the job has worked for it."""
        return bool(self.runs) and is_of(self.runs[-1], allocation)

    def was_cut_short(self, allocation: Allocation) -> bool:
        """Whether it goes on, and an earlier start has begun it: not what this one does anew."""
        return bool(self.runs) and self.outcome is None and not is_of(self.runs[0], allocation)


def regular_array(env: Mapping[str, str]) -> range | None:
    """The indices of the job's array, where they have one step and so follow from the ends."""
    try:
        names = ("MIN", "MAX", "STEP", "COUNT")
        first, last, step, count = (int(env[f"SLURM_ARRAY_TASK_{name}"]) for name in names)
    except (KeyError, ValueError):
        return None
    indices = range(first, last + 1, max(step, 1))
    return indices if len(indices) == count else None


def elements_of(step: JobStep) -> list[int]:
    """The indices of the job's array, by the queue where they have no regular step.

    If the queue does not answer, every index from the first to the last: some will never run.
    """
    if step.allocation.array_job_id is None:
        return []
    if step.regular is not None:
        return list(step.regular)
    own = step.allocation.array_task_id or 0
    try:
        found = {split_ref(ref)[1] for ref in detect_cluster("slurm").query([step.job])}
    except SlurmError:
        names = ("SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX")
        first, last = (int(os.environ.get(name, own)) for name in names)
        found = set(range(first, last + 1))
    return sorted({index for index in found if index is not None} | {own})


def claim(store: Store, step: JobStep, cluster: str) -> TrialDir:
    """The trial to go on with; a new one where there is none or the job has finished it.

    Raises `SpuriousRequeue` where no user has asked for either.
    """
    folder = claims_folder(store)
    ensure_directory(folder)
    job = first_job(store, cluster, step.job)
    is_first = _is_first_start(step, job)
    for again in range(1000):
        path = folder / f"{step.key(cluster, job)}-{again}.json"
        with suppress(NotFound):  # its user has deleted it
            claimed = (
                _claimed(store, path)
                or _of_another_step(store, path, step, cluster, job)
                or _make(store, path, step, cluster)
            )
            trial = _open_trial(claimed, step)
            if trial is None:
                continue
            if not is_first and not trial.runs():  # an array has made it, perhaps for others alone
                refuse_done(store, step, cluster)
            if is_first or _take(store, claimed, step, cluster):
                return trial
    raise AssertionError("a job that ended a thousand times")


def find(store: Store, step: JobStep, cluster: str) -> TrialDir | None:
    """The trial that the chief of this step claimed, once it did."""
    folder = claims_folder(store)
    job = first_job(store, cluster, step.job)
    is_first = _is_first_start(step, job)
    for again in range(1000):
        with suppress(NotFound):  # as in `claim`
            claimed = _claimed(store, folder / f"{step.key(cluster, job)}-{again}.json")
            if claimed is None:
                return None
            trial = _open_trial(claimed, step)
            if trial and (is_first or _taker(store, claimed, step, cluster) == step.name):
                return trial
    return None


def refuse_done(store: Store, step: JobStep, cluster: str) -> None:
    """Raise `SpuriousRequeue` where a job was started again for other things than this step's.

    A script runs from its beginning in every start: without this each of them would train anew what
    an earlier start has finished.
    """
    job = first_job(store, cluster, step.job)
    if not _is_first_start(step, job):
        _refuse_done(list(_earlier_work(store, step, cluster, job)), step.allocation)


def _refuse_done(work: Sequence[EarlierWork], allocation: Allocation) -> None:
    same = [one for one in work if one.is_same]
    # In the same start a script may well train twice, and failed work is tried again.
    if not same or any(one.is_at_work(allocation) for one in same):
        return
    outcomes = {one.outcome for one in same}
    if None in outcomes or outcomes == {ERROR}:
        return
    if any(one.was_cut_short(allocation) for one in work):
        raise SpuriousRequeue(same[-1].trial, "its job was started again for its other trials")


def _of_another_step(
    store: Store, path: Path, step: JobStep, cluster: str, job: str
) -> JobClaim | None:
    """The claim of this command in an earlier start of the job, as another step of it.

    From now on it has the name of this step, too, by which its other ranks look for it.
    """
    if _is_first_start(step, job):
        return None
    work = list(_earlier_work(store, step, cluster, job))
    _refuse_done(work, step.allocation)
    if step.command is None:
        return None
    for one in work:
        goes_on = one.outcome is None and not one.is_at_work(step.allocation)
        if one.is_same and goes_on and _take(store, one.claimed, step, cluster):
            put_record(path, {"experiment": one.claimed.experiment.id, "elements": []})
            return _claimed(store, path)
    return None


def _earlier_work(store: Store, step: JobStep, cluster: str, job: str) -> Iterator[EarlierWork]:
    """The trials that the job has begun, in the order of its claims."""
    tail = r"-(batch|\d+)(?:-([0-9a-f]{8}))?-\d+\.json"
    folder, claim = claims_folder(store), re.compile(re.escape(f"{cluster}-{job}") + tail)
    seen: set[int] = set()
    for match in filter(None, map(claim.fullmatch, sorted(names_in(folder)))):
        with suppress(NotFound, CorruptRecord):  # its user has deleted it; or it never existed
            claimed = _claimed(store, folder / match[0])
            if claimed is None or claimed.experiment.id in seen or not claimed.has(step):
                continue
            seen.add(claimed.experiment.id)
            trial = claimed.trial(step)
            is_same = match[2] == step.command if step.command else match[1] == step.name
            runs = trial.runs()
            if runs or step.command:  # an element's may be there for the others alone
                is_same = is_same and not _is_anothers(runs, step)
                yield EarlierWork(claimed, trial.id, runs, is_same)


def _open_trial(claimed: JobClaim, step: JobStep) -> TrialDir | None:
    """The trial that a claim of this name has for this step; None if it can't go on with it."""
    if not claimed.has(step):  # made by a job of fewer elements, as `activate` submits
        return None
    trial = claimed.trial(step)
    return None if _is_anothers(trial.runs(), step) or _is_over(trial, step) else trial


def _is_anothers(runs: Sequence[Run], step: JobStep) -> bool:
    """Whether another program of the script has worked for a trial: in arrays they share names."""
    return bool(runs) and runs[-1].start.program not in (None, step.program)


def _is_first_start(step: JobStep, job: str) -> bool:
    return step.allocation.restart_count == 0 and job == step.job


def is_of(run: Run, allocation: Allocation) -> bool:
    """Whether it is a run of this very start of the job."""
    job = run.start.job
    return (job.ref, job.restart_count) == (allocation.ref, allocation.restart_count)


def _take(store: Store, claimed: JobClaim, step: JobStep, cluster: str) -> bool:
    """Let no other step of this start of the job have the trial; False if one has it."""
    put_record(_taken(store, claimed, step, cluster), {"step": step.name})
    return _taker(store, claimed, step, cluster) == step.name


def _taker(store: Store, claimed: JobClaim, step: JobStep, cluster: str) -> str | None:
    record = read_record(_taken(store, claimed, step, cluster), expected=True)
    return None if record is None else str(record.get("step"))


def _taken(store: Store, claimed: JobClaim, step: JobStep, cluster: str) -> Path:
    start = f"{step.allocation.job_id}-start{step.allocation.restart_count}"
    return claims_folder(store) / f"{cluster}-{start}-{claimed.experiment.id}.taken"


def _is_over(trial: TrialDir, step: JobStep) -> bool:
    view = fold_trial(trial)
    if view.state in FINISHED and is_spurious_requeue(view.runs, step.allocation):
        raise SpuriousRequeue(trial.id)
    return view.state in FINISHED


def is_spurious_requeue(runs: Sequence[RunView], allocation: Allocation) -> bool:
    """Whether Slurm alone has started a job again whose trial is over.

    From 24.05 on it requeues a job that exits in the grace of a preemption; one that has asked for
    a requeue, too, may be started once more after its end.
    """
    own = [run for run in runs if run.job.ref == allocation.ref]
    if not own or own[-1] is not runs[-1]:
        return False
    preempted = any(run.outcome == PREEMPTED for run in own[:-1])
    return preempted and own[-1].job.restart_count + 1 == allocation.restart_count


def _claimed(store: Store, path: Path) -> JobClaim | None:
    record = read_record(path, expected=True)
    if record is None:
        return None
    if record.get("type") == "corrupt":
        raise CorruptRecord(f"{path}: {record['problem']}")
    return JobClaim(store.experiment(record["experiment"]), record["elements"])


def _make(store: Store, path: Path, step: JobStep, cluster: str) -> JobClaim:
    """Make the experiment, unless another element of the array is about to.

    If that element has died meanwhile, a waiting element takes over, and the others wait.
    """
    # A mark of its own, before the record: to make an experiment takes many steps, and all elements
    # of an array start at once. Marks are never removed, so each names one attempt to make it.
    turn = 0
    while not claim_directory(path.with_suffix(f".making{turn or ''}")):
        found = _awaited(store, path)
        if found is not None:
            return found
        turn += 1
    elements = elements_of(step)
    experiment = _experiment(store, step, elements, cluster)
    if not put_record(path, {"experiment": experiment.id, "elements": elements}):
        # A slow maker comes back after it was given up for dead: the record decides, once.
        experiment.append(Intent(intent="delete"))
        found = _claimed(store, path)
        assert found is not None
        return found
    # Only now: the others wait, and the controller may take its time.
    experiment.append(Script(**_kept_script(experiment, step)))
    return JobClaim(experiment, elements)


def _awaited(store: Store, path: Path) -> JobClaim | None:
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        found = _claimed(store, path)
        if found is not None:
            return found
        time.sleep(0.2)  # another process's file: there is nothing to wait on
    return None


def _experiment(
    store: Store, step: JobStep, elements: Sequence[int], cluster: str
) -> ExperimentDir:
    count = len(elements) or 1
    config = configuration(store, step.argv)
    created = Created(
        name=config["name"],
        trials=count,
        managed=False,
        metric=METRIC,
        cluster=step.allocation.cluster,
        pool=step.allocation.partition,
    )
    experiment = store.create_experiment(created, config)
    script = {"cluster": cluster, "job": step.job, "elements": list(elements)}
    refs = [f"{step.job}_{element}" for element in elements] or [step.job]
    experiment.append(user_script.submitted_fact(refs, range(count), script))
    return experiment


def _kept_script(experiment: ExperimentDir, step: JobStep) -> dict[str, Any]:
    try:
        record = user_script.keep(step.allocation.job_id, experiment.jobs / user_script.SCRIPT)
    except (SlurmError, OSError) as err:
        return {"unknown": str(err)}
    return record or {"unknown": "its job had no batch script"}


def configuration(store: Store, argv: Sequence[str]) -> dict[str, Any]:
    """A configuration for a script whose user wrote none."""
    name = os.environ.get("SLURM_JOB_NAME") or Path(argv[0] if argv else "script").name
    storage = {"type": "shared_fs", "host_path": str(store.path / "checkpoints")}
    return unmanaged_config(name, argv or sys.argv, storage)
