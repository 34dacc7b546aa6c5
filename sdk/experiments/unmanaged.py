"""Experiments that detslurm did not submit: scripts outside of Slurm, and users' batch scripts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import asdict

from detslurm._base.process import Identity
from detslurm._base.states import KILLED
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.jobs.status import JobStatus
from detslurm.store import ExperimentDir, TrialDir, fs
from detslurm.store.records import Script, Submitted, typed
from detslurm.store.run_records import StartRecord

if TYPE_CHECKING:
    from detslurm.slurm import Cluster

# A live process writes a heartbeat every half a minute. A single command compares two time stamps
# of the store; on some file systems each node sets its own, so that only hours count. A command
# that waits measures by its own clock for how long nothing has changed.
SILENT_SECONDS = 6 * 3600.0
UNCHANGED_SECONDS = 900.0


class LastHeartbeat(NamedTuple):
    """The newest sign of life, and since when (by this process's clock) there was none newer."""

    modified: float
    since: float


Heartbeats = dict[int, LastHeartbeat]


def job_statuses(
    trials: Iterable[TrialDir], known: Heartbeats, *, clock: Callable[[], float] = time.monotonic
) -> dict[int, JobStatus]:
    """The known state of the processes behind unfinished trials; `known` takes in heartbeats."""
    return {trial.id: _process_status(trial, known, clock()) for trial in trials}


def _process_status(trial: TrialDir, known: Heartbeats, now: float) -> JobStatus:
    runs = trial.runs()
    if not runs:
        return JobStatus(None, message="the process that recorded it has not begun its run")
    start = runs[-1].start
    process = Identity.parse(start.process)
    alive = process.alive() if process is not None else None
    if alive is None:
        return _by_heartbeat(trial, known, start, now)
    return JobStatus(None, None, alive, None if alive else f"{_named(start)} has ended")


def _by_heartbeat(trial: TrialDir, known: Heartbeats, start: StartRecord, now: float) -> JobStatus:
    run = start.run
    modified = fs.modified(trial.records_path(run)) or fs.modified(trial.start_path(run))
    if modified is None:
        return JobStatus(None, message=f"nothing is known of {_named(start)}")
    last = known.get(trial.id)
    if last is None or last.modified != modified:
        last = known[trial.id] = LastHeartbeat(modified, now)
    there = _time_in(ExperimentDir.at(trial.experiment_path).store.path)
    silent = max(now - last.since - UNCHANGED_SECONDS, there - modified - SILENT_SECONDS)
    if silent < 0:
        return JobStatus(None)
    return JobStatus(
        None, None, False, f"{_named(start)} has shown no sign of life for a long time"
    )


_clocks: dict[Path, float] = {}


def _time_in(store: Path) -> float:
    """The store's time, asked once and counted on from there; 0 where it can't be asked."""
    now = time.monotonic()
    if store not in _clocks:
        there = fs.time_there(store)
        if there is None:
            return 0.0
        _clocks[store] = there - now
    return _clocks[store] + now


def _named(start: StartRecord) -> str:
    host, _, pid = start.job.ref.rpartition(":")
    return f"process {pid} on {host}"


def end(trials: Iterable[TrialDir]) -> None:
    """End the runs of these trials for good, and their processes on this host; others read the
    intent at their next heartbeat. Notebooks and prompts live on: they may hold more than a run."""
    for trial in trials:
        for run in trial.runs()[-1:]:
            record = {"outcome": KILLED, "reason": "killed by the user", "exit_code": None}
            # The process of a run that is over may work for another experiment by now.
            if not trial.write_end(run.number, {**record, "time": time.time()}):
                continue
            process = Identity.parse(run.start.process)
            if process is not None and not run.start.interactive:
                process.send(signal.SIGTERM)


def submit_again(
    experiment: ExperimentDir, indices: Sequence[int], cluster: Cluster, read: int
) -> None:
    """Queue the user's script once more for those of these trials that were not submitted again
    after fact `read`, unless that was done for another experiment of the same script. Raises as
    `resubmit`, and `LifecycleError` where nothing was kept of the script."""
    from detslurm.sdk.experiments.resubmission import Part, announced, left_since, mark_of, turn

    script = _script(experiment)
    if "unknown" in script:
        raise LifecycleError(
            f"experiment {experiment.id} can't be submitted again: {script['unknown']}."
            " Submit your batch script by hand; it begins a new experiment"
        )
    while True:
        with turn(experiment, cluster) as (_, facts):
            left = left_since(read, facts, indices)
            if not left:
                return
            with announced(experiment, facts, [Part(left[0], len(left), 1)]) as claimed:
                if claimed:
                    return _submit(experiment, left, cluster, script, mark_of(facts.count + 1))


def _submit(
    experiment: ExperimentDir,
    indices: Sequence[int],
    cluster: Cluster,
    script: Mapping[str, Any],
    mark: str,
) -> None:
    from detslurm.slurm import user_script
    from detslurm.store.unmanaged import first_job, inherit_claims, successors

    elements = [script["elements"][index] for index in indices] if script["elements"] else []
    # The experiment may have begun in a job that went on with an earlier one's.
    first = first_job(experiment.store, script["cluster"], script["job"])
    others = [] if elements else successors(experiment.store, script["cluster"], first)
    known = cluster.query(others) if others else {}
    # It does all that the script does: a second one would take each trial from it.
    job = next((ref for ref, found in known.items() if not found.final), None)
    if job is None:
        # Held until the store records whose trials the new job continues.
        path = experiment.jobs / user_script.SCRIPT
        job = user_script.submit_again(path, script, elements, mark)
        inherit_claims(experiment.store, script["cluster"], job, first)
    refs = [f"{job}_{element}" for element in elements] or [job]
    experiment.append(user_script.submitted_fact(refs, indices, script))
    cluster.release([job])


def _script(experiment: ExperimentDir) -> Mapping[str, Any]:
    """The job, and the record of its script a little later."""
    job: Mapping[str, Any] | None = None
    kept: Mapping[str, Any] = {"unknown": "its job ended before its script was kept"}
    for fact in map(typed, experiment.facts()):
        if job is None and isinstance(fact, Submitted):
            job = fact.script
        elif isinstance(fact, Script):
            kept = {name: value for name, value in asdict(fact).items() if value is not None}
    if job is None:
        return {"unknown": "it ran outside of Slurm"}
    return dict(job) if "options" in job else {**kept, **job}
