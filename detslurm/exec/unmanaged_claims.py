"""The trial of a job that detslurm did not submit: claimed once, found again by requeues.

The first start of a job makes an experiment for each command of its script, with one trial for each
element of its array; a file named after the job and the command leads every later start to the same
trial. The number of the step is chance where a script starts several at once, or leaves out
finished steps: the command decides.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from detslurm._base.process import Identity
from detslurm._base.states import ERROR, PREEMPTED, TERMINAL
from detslurm.slurm import Allocation, SlurmError, detect_cluster, split_ref, step_of, user_script
from detslurm.store import (
    CorruptRecord,
    ExperimentDir,
    NotFound,
    Run,
    Store,
    StoreError,
    TrialDir,
    put_record,
    read_record,
)
from detslurm.store.fs import claim_directory, ensure_directory, names_in
from detslurm.store.records import Created, Intent, Script
from detslurm.store.unmanaged import METRIC, claims_folder, first_job, unmanaged_config


class SpuriousRequeue(Exception):
    """A job was started again whose `trial` is over."""

    def __init__(self, trial: int) -> None:
        super().__init__(
            f"trial {trial} is over, and its job was started again:"
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
    def command(self) -> str:
        """The hash of its command line without numbers of ranks, the same in all ranks."""
        return _hash(_RANK_OPTION.sub("", "\0".join(self.argv)))

    @property
    def program(self) -> str:
        """Its command without arguments."""
        return Path(self.argv[0] if self.argv else "").name

    @property
    def claim(self) -> str:
        """The part of its claim's name that stands for the command.

        In an array the program's name alone, because elements may have other arguments each.
        """
        return self.command if self.allocation.array_job_id is None else _hash(self.program)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class JobClaim:
    """The experiment of a command, and which of its trials is whose."""

    experiment: ExperimentDir
    elements: Sequence[int]  # the array's index of every trial; none for a plain job

    def trial(self, step: JobStep) -> TrialDir | None:
        """The trial of this element; None in a claim of fewer elements, as `activate` submits."""
        task = step.allocation.array_task_id or 0
        if self.elements and task not in self.elements:
            return None
        index = self.elements.index(task) if self.elements else 0
        return self.experiment.trial(self.experiment.created().first_trial + index)


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


def open_trials(
    store: Store, step: JobStep, cluster: str, *, make: bool
) -> Iterator[tuple[TrialDir, Sequence[Run]]]:
    """The trials that a step can go on with, each with its runs; with `make` a new one at the end.

    A process that opens the next run after these runs has the trial; else another was faster.
    Raises `SpuriousRequeue` where an earlier start of the job has finished all of this command.
    """
    folder = claims_folder(store)
    if make:
        ensure_directory(folder)
    job = first_job(store, cluster, step.job)
    found: list[tuple[TrialDir, Sequence[Run]]] = []
    is_at_work, finished = False, None
    for trial, runs in _claimed_trials(store, step, cluster, job):
        if _is_open(runs, step, follows=not make):
            found.append((trial, runs))
        elif _is_finished(runs, step):
            finished = trial.id
        else:
            is_at_work = is_at_work or _is_at_work(runs, step)
    # One command may stand several times in a script, with other variables: each step first looks
    # for its own work, by its number, which is mostly the same in every start.
    yield from sorted(found, key=lambda one: not _was_here(one[1], step))
    if not found and not is_at_work and finished is not None:
        raise SpuriousRequeue(finished)
    if not make:
        return
    for again in range(1000):
        path = folder / f"{_name(step, cluster, job)}-{again}.json"
        with suppress(NotFound):  # its user has deleted it
            own = (_claimed(store, path) or _make(store, path, step, cluster)).trial(step)
            if own is not None and _is_open(runs := own.runs(), step, follows=False):
                yield own, runs
    raise StoreError(f"job {job} has a thousand trainings with one command line")


def _name(step: JobStep, cluster: str, job: str) -> str:
    """The name of its claims, without their numbers."""
    return f"{cluster}-{job}-batch-{step.claim}"


def _claimed_trials(
    store: Store, step: JobStep, cluster: str, job: str
) -> Iterator[tuple[TrialDir, Sequence[Run]]]:
    """The trials that the job has claimed for a command, the claims of 0.1.0 first."""
    folder = claims_folder(store)
    older = _older_claims(folder, step, cluster, job)
    own = (f"{_name(step, cluster, job)}-{again}.json" for again in range(1000))
    for name in chain(older, own):
        with suppress(NotFound):  # its user has deleted it
            claimed = _claimed(store, folder / name)
            if claimed is None:
                return
            if (trial := claimed.trial(step)) is not None:
                yield trial, trial.runs()


def _older_claims(folder: Path, step: JobStep, cluster: str, job: str) -> Sequence[str]:
    """The claims that 0.1.0 made for a command in an earlier start: with the step's name, and in
    arrays without a hash."""
    if step.allocation.restart_count == 0 and job == step.job:
        return ()
    kind = r"(batch|\d+)" if step.allocation.array_job_id is not None else rf"\d+-{step.command}"
    return _listed(folder, re.escape(f"{cluster}-{job}-") + kind + r"-\d+\.json")


@functools.cache  # there will be no more of them, and a thousand ranks look again and again
def _listed(folder: Path, pattern: str) -> Sequence[str]:
    return sorted(filter(re.compile(pattern).fullmatch, names_in(folder)))


def _is_open(runs: Sequence[Run], step: JobStep, *, follows: bool) -> bool:
    """Whether the trial of these runs goes on, with this command and in no other step.

    In a run of this step other ranks may have other arguments than its first process.
    """
    if not runs:
        return True  # made just now, or by a start that died before its first run
    last = runs[-1]
    is_now, is_here = is_of(last, step.allocation), _was_here(runs, step)
    if is_now and is_here and not follows and _lives(last):
        return False  # a process beside this one, in a batch script that starts several at once
    is_same = _is_same(last, step) or (follows and is_now and is_here)
    return is_same and (is_here or not is_now) and last.outcome not in TERMINAL


def _lives(run: Run) -> bool:
    """Whether the first process of a run is known to be at work."""
    chief = Identity.parse(run.start.chief)
    return run.end is None and chief is not None and chief.alive() is True


def _is_finished(runs: Sequence[Run], step: JobStep) -> bool:
    """Whether an earlier start has finished this command, which is not to be tried again.

    A script runs from its beginning in every start, and may train twice in the same one. Failed
    work is tried again, but not where Slurm alone has asked for it: from 24.05 on it requeues a job
    that exits in the grace of a preemption; a job that has asked for a requeue, too, may be started
    once more after its end.
    """
    last, allocation = runs[-1], step.allocation
    if not _is_same(last, step) or is_of(last, allocation):
        return False
    if last.outcome != ERROR:
        return last.outcome in TERMINAL
    job, start = last.start.job, (allocation.ref, allocation.restart_count)
    was_preempted = any(run.outcome == PREEMPTED for run in runs[:-1])
    return was_preempted and (job.ref, job.restart_count + 1) == start


def _is_at_work(runs: Sequence[Run], step: JobStep) -> bool:
    """Whether this start of the job has worked with this command, in another step or before."""
    return _is_same(runs[-1], step) and is_of(runs[-1], step.allocation)


def _is_same(run: Run, step: JobStep) -> bool:
    """Whether it is a run of this command, of which 0.1.0 has recorded the program alone."""
    start = run.start
    return start.command in (None, step.command) and start.program in (None, step.program)


def _was_here(runs: Sequence[Run], step: JobStep) -> bool:
    return bool(runs) and runs[-1].start.job.step == step.name


def is_of(run: Run, allocation: Allocation) -> bool:
    """Whether it is a run of this very start of the job."""
    job = run.start.job
    return (job.ref, job.restart_count) == (allocation.ref, allocation.restart_count)


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
