"""A run inside an unmanaged job, which its user submitted: no runner, no agent, the same store.

The first process on a node, a launcher or the script itself, does what those would do there: it
opens the run (on the chief alone), raises the preemption flag at Slurm's signal, writes the end
record and asks for the requeue that a saved checkpoint is good for.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from detslurm._base import contract
from detslurm._base.addresses import own_address, peer_address
from detslurm._base.flag import SIGNALS, PreemptFlag
from detslurm._base.process import Identity
from detslurm._base.states import INVALID_HP
from detslurm.config.run_config import RunConfig
from detslurm.exec import ports, unmanaged_claims, unrecorded
from detslurm.exec.environment import run_environment
from detslurm.exec.hardware import hardware
from detslurm.exec.intents import Intents
from detslurm.exec.outcome import (
    Action,
    AttemptResult,
    Cause,
    Decision,
    EndFacts,
    decide,
    end_record,
)
from detslurm.slurm import Allocation, JobInfo, SlurmError, detect_cluster, is_preempted, step_of
from detslurm.slurm.hostlist import expand_hostlist
from detslurm.store import (
    ExperimentDir,
    Run,
    RunTaken,
    Store,
    StoreError,
    TrialDir,
    TrialView,
    fold_trial,
)
from detslurm.store.reading import latest_of
from detslurm.store.retry import SHORT, with_retries
from detslurm.store.run_records import StartRecord

T = TypeVar("T")

_RANKS = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
# How long the other processes of a step wait for the chief to open the run.
_TIMEOUT = 120.0
# With less than this left (seconds) a signal means the time limit.
_NEAR_LIMIT = 300


class UnmanagedJob:
    """One run of a job's step, as one process of it sees it."""

    def __init__(
        self,
        trial: TrialDir,
        start: StartRecord,
        step: unmanaged_claims.JobStep,
        flag: PreemptFlag,
    ) -> None:
        self._trial, self._start, self._step, self.flag = trial, start, step, flag
        self._experiment = ExperimentDir.at(trial.experiment_path)
        self.has_ended = False  # by this process, which writes the run's end record
        self._process = os.getpid()
        self.is_chief = False
        self.rendezvous_port: ports.Reservation | None = None

    def environment(self, slots: int = 1) -> dict[str, str]:
        """The environment for the processes of the run on this node."""
        experiment = self._experiment
        allocation = self._step.allocation
        nodes = self._start.job.nodes
        rank = _node_rank(nodes)
        addrs = [
            peer_address(node) if index != rank else _own_address(nodes, rank)
            for index, node in enumerate(nodes)
        ]
        addrs[0] = self._start.address or addrs[0]
        peers = {
            "container_addrs": addrs,
            "container_rank": rank,
            "container_slot_counts": [slots] * len(nodes),
        }
        if self._start.port:
            peers["port"] = self._start.port
        found = run_environment(
            base=os.environ,
            config=RunConfig.of(unmanaged_claims.configuration(experiment.store, self._step.argv)),
            start=self._start,
            experiment_dir=experiment.path,
            node=nodes[rank],
            slot_ids=range(slots),
            gpus=allocation.slot_ids,
            peers=peers,
            flag=self.flag.name,
        )
        return {**found, contract.OWN_SCRIPT: "1"}

    def watch_signals(self) -> None:
        """Let Slurm's signals raise the flag of this process; the user's own handlers stay."""
        # Python sets handlers in the main thread only; a script that joins in another one does not
        # learn of a preemption, and Slurm's SIGTERM ends it.
        if threading.current_thread() is not threading.main_thread():
            return
        for sig in SIGNALS:
            # The handler runs between two bytecodes of the script, wherever that is: it writes one
            # byte to the flag's file and takes no lock, which the interrupted code may hold.
            if signal.getsignal(sig) is signal.SIG_DFL:
                signal.signal(sig, lambda *_: self.flag.request_preemption())
        self.flag.spare_at_exit()

    def finish(self, exit_code: int, reason: str | None = None) -> None:
        """Write the run's end record and, if there is more to do, ask Slurm for the next start."""
        if not self.is_chief or self.has_ended or os.getpid() != self._process:
            # Called when the context closes and again at exit; and a forked child (of a data
            # loader) inherits this object and atexit's list.
            return
        # First of all: the record below may fail, and at exit no second record may be written.
        self.has_ended = True
        try:
            self._record_end(exit_code, reason)
        except (StoreError, OSError) as err:
            # The training is done: a full disk must not turn that into a failure.
            print(
                f"detslurm: how this run ended is not recorded: {err}", file=sys.stderr, flush=True
            )

    def _record_end(self, exit_code: int, reason: str | None) -> None:
        intent = self._intent()
        # The flag shows that a signal came, not why: preemption, the time limit and scancel all
        # send SIGTERM. The controller knows; without its answer nothing is requeued.
        job = _evidence(self._step.allocation.ref) if self.flag.preempt else None
        cause = (intent or _cause(job)) if self.flag.preempt else None
        view = _with_retries(lambda: fold_trial(self._trial))
        if cause is Cause.PREEMPTION and exit_code and not self._is_explained(job, view):
            cause = None
        result = AttemptResult(exit_code, cause, acknowledged=self.flag.acknowledged, began=True)
        facts = self._facts(view)
        decision = decide(result, facts)
        if decision.outcome == "error" and reason is not None:
            decision = Decision("error", reason, Action.STOP)
        end = end_record(decision, result, facts, time.time())
        # Before the requeue, which makes Slurm end this process: without its end record the next
        # start would take this run for a lost run.
        _with_retries(lambda: self._trial.write_end(self._start.run, end))
        if decision.action is Action.STOP:
            from detslurm.notices.raising import raise_end  # only here: the script has ended

            raise_end(self._experiment)  # the user's next command sends it
        if job is not None and not job.ending:
            self._requeue(decision.action)

    def _intent(self) -> Cause | None:
        """Why the user asked this run to stop, if it was the user."""
        intents = Intents(self._experiment)
        _with_retries(intents.refresh)
        return intents.cause_for(self._trial.id)

    def _is_explained(self, job: JobInfo | None, view: TrialView) -> bool:
        """Whether a SIGTERM, and not a failure on another node, has made the code fail."""
        # srun ends the other nodes of a failed step with the very signal of a preemption
        # (--kill-on-bad-exit): requeued for that, code that can't work would start without end.
        # Slurm's own record shows its preemptions, those without a grace time by the job's state.
        # It has no trace of the user's `scancel --signal` and of a warning long before the time
        # limit: a run with a checkpoint further on is requeued all the same, for a chain of such
        # runs has an end.
        resumed = self._start.resumed.steps
        if any(c.run == self._start.run and c.steps > resumed for c in view.checkpoints):
            return True
        return (job is not None and job.ending) or is_preempted(self._step.allocation.ref)

    def _facts(self, view: TrialView) -> EndFacts:
        invalid = view.early_exit == INVALID_HP
        return EndFacts(
            refusal="declared invalid by the code" if invalid else None,
            new_checkpoint=any(c.run == self._start.run for c in view.checkpoints),
            max_restarts=0,
        )

    def _requeue(self, action: Action) -> None:
        # A step that exits in good order would end the job for good: Slurm requeues only what it
        # had to kill. A job that is being ended is not running any more, and stays so.
        if action not in (Action.REQUEUE, Action.HOLD):
            return
        cluster, ref = detect_cluster("slurm"), self._step.allocation.ref
        try:
            hold = action is Action.HOLD
            cluster.requeue(ref, hold=hold, only_running=not hold)
            if hold and self._intent() is not Cause.PAUSE:
                cluster.release([ref])  # the user has activated it between our reading and our hold
        except SlurmError as err:
            print(f"detslurm: the job can't be requeued: {err}", file=sys.stderr, flush=True)


def join(argv: Sequence[str] | None = None, *, launcher: bool = False) -> UnmanagedJob | None:
    """Join the run of this job; None outside of jobs and where recording is switched off.

    Raises `StoreError` or `OSError` when the store can't be used.
    """
    env = os.environ
    allocation = Allocation.from_environment(env)
    if allocation is None or allocation.cluster != "slurm" or env.get(contract.TRACK, "1") == "0":
        return None
    step = unmanaged_claims.JobStep.of(allocation, env, list(sys.argv if argv is None else argv))
    is_first, cluster = _rank(env) == 0, env.get("SLURM_CLUSTER_NAME", "slurm")
    try:
        store = Store.open()
        if is_first:
            return _open(store, step, cluster, env, launcher=launcher)
        return _follow(store, step, cluster)
    except (StoreError, OSError):
        if is_first:
            unrecorded.announce(step)  # else the others would wait for its run
        raise
    except unmanaged_claims.SpuriousRequeue as nothing:
        print(f"detslurm: {nothing}", file=sys.stderr, flush=True)
        raise SystemExit(0) from None


def _open(
    store: Store,
    step: unmanaged_claims.JobStep,
    cluster: str,
    env: Mapping[str, str],
    *,
    launcher: bool,
) -> UnmanagedJob:
    allocation, nodes = step.allocation, _nodes(step.allocation, env)
    flag = PreemptFlag.create()  # before the run is open: without room nothing would end it
    held = None
    if launcher and len(nodes) > 1:
        # Before the run is open, whose record names it, and kept until this process ends: the other
        # nodes may come a minute later, and no process must have taken the port meanwhile.
        held = ports.reserve(f"{allocation.ref}.{step.name}.{allocation.restart_count}")
    for trial, runs in unmanaged_claims.open_trials(store, step, cluster, make=True):
        record = _start_record(trial, step, nodes, held)
        with suppress(RunTaken):  # by another step with this command: the next trial is ours
            start = _with_retries(partial(trial.open_run, record, after=len(runs)))
            unmanaged = UnmanagedJob(trial, start, step, flag)
            unmanaged.is_chief, unmanaged.rendezvous_port = True, held
            return unmanaged
    raise AssertionError("open_trials makes a trial where there is none")


def _start_record(
    trial: TrialDir,
    step: unmanaged_claims.JobStep,
    nodes: Sequence[str],
    held: ports.Reservation | None,
) -> dict[str, Any]:
    latest = _with_retries(lambda: latest_of(trial))
    intents = Intents(ExperimentDir.at(trial.experiment_path))
    _with_retries(intents.refresh)
    # Of a trial that is taken for lost a claim protects nothing: see store.gc.
    _with_retries(lambda: intents.mark_found(trial.id))
    return {
        "trial": trial.id,
        "experiment": trial.experiment_id,
        "hparams": {},
        "seed": 0,
        "job": {**step.allocation.record(), "nodes": nodes, "step": step.name},
        "host": socket.gethostname(),
        "hardware": hardware(),
        "chief": str(Identity.own()),
        "command": step.command,
        "time": time.time(),
        "resume": {"uuid": latest.uuid, "steps": latest.steps} if latest else None,
        "port": held.port if held is not None else None,
        "address": _own_address(nodes, 0) if len(nodes) > 1 else None,
    }


def _with_retries(act: Callable[[], T]) -> T:
    """Over a hiccup of the file system."""

    def log(error: Exception) -> None:
        print(f"detslurm: {error}: trying again", file=sys.stderr, flush=True)

    return with_retries(act, log, SHORT)


def _follow(store: Store, step: unmanaged_claims.JobStep, cluster: str) -> UnmanagedJob:
    """Wait for the chief of this step to open the run."""
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        # After a requeue the claim leads to the trial at once, and its last run is that of an
        # earlier start, or of an earlier try in this start, until the chief has opened its own.
        for trial, runs in unmanaged_claims.open_trials(store, step, cluster, make=False):
            if runs and _goes_on(runs[-1], step.allocation):
                return UnmanagedJob(trial, runs[-1].start, step, PreemptFlag.create())
        if unrecorded.is_announced(step):
            raise StoreError("the first process of this step could not use it")
        time.sleep(0.2)  # another node's file: there is nothing to wait on
    raise RuntimeError(
        f"the first process of this step opened no run in {store.path} within {_TIMEOUT:.0f} s;"
        " is this folder on a file system that all nodes share?"
    )


def _goes_on(run: Run, allocation: Allocation) -> bool:
    """Whether it is a run of this start, and as far as can be seen from here not over."""
    chief = Identity.parse(run.start.chief)
    is_over = run.end is not None or (chief is not None and chief.is_dead())
    return unmanaged_claims.is_of(run, allocation) and not is_over


def _rank(env: Mapping[str, str]) -> int:
    return next((int(env[name]) for name in _RANKS if env.get(name, "").isdigit()), 0)


def _nodes(allocation: Allocation, env: Mapping[str, str]) -> list[str]:
    """The nodes of the step, that of this process first; or the one node of the batch script."""
    if step_of(env) is None:
        return [allocation.nodes[0]]
    nodes = expand_hostlist(env.get("SLURM_STEP_NODELIST", "")) or list(allocation.nodes)
    # Rank 0 calls this. With --distribution=arbitrary, and in a heterogeneous job, it is anywhere.
    own = env.get("SLURMD_NODENAME")
    return sorted(nodes, key=lambda node: node != own)


def _node_rank(nodes: Sequence[str]) -> int:
    """The index of this process's node among those of its run."""
    own = os.environ.get("SLURMD_NODENAME")
    if len(nodes) == 1 or own in nodes:
        return nodes.index(own) if own in nodes else 0
    return int(os.environ.get("SLURM_NODEID") or 0)


def _own_address(nodes: Sequence[str], rank: int) -> str:
    return own_address(nodes, rank, os.environ.get(contract.INTERFACE))


def _evidence(ref: str) -> JobInfo | None:
    """The job as Slurm shows it, now that it has to stop; None if Slurm does not answer."""
    try:
        return detect_cluster("slurm").evidence([ref]).get(ref)
    except SlurmError:
        return None


def _cause(job: JobInfo | None) -> Cause:
    if job is None:
        return Cause.ENDING
    if job.state == "CANCELLED":
        return Cause.CANCEL
    if job.time_left is None and job.state != "TIMEOUT":
        return Cause.PREEMPTION
    return Cause.TIME_LIMIT if (job.time_left or 0) < _NEAR_LIMIT else Cause.PREEMPTION
