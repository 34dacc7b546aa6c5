"""The runner: the batch script's own process, which works for one trial in one allocation.

Each attempt is a step of its own, so that whatever happens to the code the runner lives on and
decides: the next attempt here, requeue, hold, a successor job, or done. Exit codes alone never
requeue a job: it must ask.
"""

from __future__ import annotations

import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detslurm.exec.attempt import Attempt, Limits, Report
from detslurm.exec.outcome import Cause, Decision, Ended, Next, decide
from detslurm.exec.signals import SignalInbox
from detslurm.exec.stepdesk import steps_beside
from detslurm.exec.textlog import TextLog
from detslurm.exec.wishes import Wishes
from detslurm.searcher import trial_plan
from detslurm.slurm import Allocation, Cluster, SlurmError, detect_cluster
from detslurm.slurm.succession import submitted_fact, successor_request
from detslurm.store import (
    RunTaken,
    Store,
    StoreError,
    TrialDir,
    TrialEnded,
    TrialView,
    fold_trial,
)
from detslurm.store.outcomes import TERMINAL

_FINISHED = ("COMPLETED", "ERROR", "CANCELED")
_DEFAULT_PREEMPTION_TIMEOUT = 3600.0
# Slurm may send the signal of --signal up to a minute earlier than asked for.
_SLURM_LATE = 90


class Runner:
    """Works for one trial until it is done or this job has to give way."""

    def __init__(self, experiment_dir: Path, first_index: int) -> None:
        self._inbox = SignalInbox([signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
        self._store = Store(experiment_dir.parent.parent)
        self._experiment = self._store.experiment(int(experiment_dir.name))
        self._config: dict[str, Any] = self._experiment.config()
        allocation = Allocation.from_environment()
        if allocation is None:
            raise SystemExit("detslurm runner: this is no job; `detslurm submit` starts it in one")
        self._allocation = allocation
        self._index = first_index + (self._allocation.array_task_id or 0)
        facts = list(self._experiment.facts())
        self._created: Mapping[str, Any] = facts[0]
        self._trial: TrialDir = self._experiment.trial(self._created["first_trial"] + self._index)
        self._wishes = Wishes(self._trial.id)
        self._wishes.take(facts)
        ends = [run.end or {} for run in self._trial.runs()]
        self._run = 0
        self._excluded: list[str] = [node for end in ends for node in end.get("exclude") or ()]

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> int:
        """Work; returns the exit status of the job: 0 unless the trial failed."""
        while True:
            view = self._view()
            refusal = self._refusal(view)
            if refusal is not None:
                print(f"detslurm: {refusal}", flush=True)
                return 0
            cause = self._look()
            if cause is not None:
                return self._leave(cause)
            try:
                decision = self._one_run(view)
            except (TrialEnded, RunTaken) as err:
                print(f"detslurm: {err}", flush=True)
                return 0
            if decision.next is Next.AGAIN and not self._on_excluded_node:
                continue
            self._settle()
            self._give_way(decision.next)
            return 1 if decision.outcome == "error" else 0

    def _view(self) -> TrialView:
        return fold_trial(self._trial, fresh=True)

    def _refusal(self, view: TrialView) -> str | None:
        """Why this job must not run the trial: it is over, or another job is at it."""
        if view.state in _FINISHED:
            return f"trial {view.id} is over: {view.state} ({view.end_reason})"
        if not view.runs or view.runs[-1].outcome is not None:
            return None
        other = view.runs[-1].job
        if other["ref"] == self._allocation.ref:
            return None
        try:
            job = self._cluster(other["cluster"]).query([other["ref"]]).get(other["ref"])
        except SlurmError:
            job = None
        if job is not None and job.running:
            return f"trial {view.id} is being run by job {other['ref']}; nothing to do here"
        return None

    def _leave(self, cause: Cause) -> int:
        """The user no longer wants this trial to run now."""
        if cause is Cause.PAUSE:
            self._give_way(Next.HOLD)
        return 0

    def _settle(self) -> None:
        """Whoever ends the last trial of an experiment compacts its metrics."""
        first, count = self._created["first_trial"], self._created["trials"]
        others = [first + (self._index + i) % count for i in range(count)]
        if not all(self._is_over(trial) for trial in others):
            return
        try:
            from detslurm.store import compact  # h5py: only here, never at start

            compact(self._experiment)
        except (StoreError, OSError, ImportError) as err:
            print(f"detslurm: the metrics are not compacted: {err}", flush=True)

    def _is_over(self, trial_id: int) -> bool:
        runs = self._experiment.trial(trial_id).runs()
        return bool(runs) and (runs[-1].end or {}).get("outcome") in TERMINAL

    # -- one run ---------------------------------------------------------------------------------

    def _one_run(self, view: TrialView) -> Decision:
        start = self._start(view)
        self._run = number = start["run"]
        log = TextLog(self._trial.log_path(number))
        log.say(f"run {number} of trial {view.id} in job {self._allocation.ref} on {start['host']}")
        try:
            with steps_beside(self._allocation.node_count):
                report = self._attempt(number, log)
            decision = decide(self._ended(view, report))
            self._trial.write_end(number, _end_record(number, decision, report))
            log.say(f"run {number} ended: {decision.outcome}: {decision.reason}")
        finally:
            log.close()
        self._excluded += report.exclude
        return decision

    def _start(self, view: TrialView) -> dict[str, Any]:
        """Make the next run ours, which fences all earlier ones."""
        config, allocation = self._config, self._allocation
        seed = config["reproducibility"]["experiment_seed"]
        plan = trial_plan(config["searcher"], config["hyperparameters"], seed, self._index)
        return self._trial.open_run(
            {
                "trial": self._trial.id,
                "experiment": self._experiment.id,
                "index": self._index,
                "request_id": plan.request_id,
                "hparams": plan.hparams,
                "seed": plan.seed,
                "token": secrets.token_hex(16),
                "job": {
                    "cluster": allocation.cluster,
                    "job_id": allocation.job_id,
                    "array_job_id": allocation.array_job_id,
                    "array_task_id": allocation.array_task_id,
                    "ref": allocation.ref,
                    "restart_count": allocation.restart_count,
                    "nodes": list(allocation.nodes),
                },
                "host": socket.gethostname(),
                "time": time.time(),
                "resume": self._resume(view),
            }
        )

    def _resume(self, view: TrialView) -> dict[str, Any] | None:
        latest = view.latest_checkpoint
        if latest is not None:
            return {"uuid": latest.uuid, "steps": latest.steps}
        # A warm start loads another trial's weights and starts counting from 0.
        searcher = self._config["searcher"]
        source = searcher.get("source_checkpoint_uuid")
        if searcher.get("source_trial_id") is not None:
            other = fold_trial(self._store.find_trial(searcher["source_trial_id"]))
            source = other.latest_checkpoint and other.latest_checkpoint.uuid
        return {"uuid": source, "steps": 0} if source else None

    def _attempt(self, number: int, log: TextLog) -> Report:
        agent = [sys.executable, "-m", "detslurm.exec.agent"]
        argv = [*agent, str(self._experiment.path), str(self._trial.id), str(number)]
        timeout = self._config.get("preemption_timeout") or _DEFAULT_PREEMPTION_TIMEOUT
        mpi = (self._config.get("slurm") or {}).get("mpi")
        return Attempt(
            self._allocation.step_command(argv, mpi=mpi),
            self._allocation.nodes,
            inbox=self._inbox,
            log=log,
            look=self._look,
            why_signalled=self._why_signalled,
            why_ending=self._why_ending,
            limits=Limits(timeout, float(self._created.get("kill_wait", 30))),
        ).run()

    def _ended(self, before: TrialView, report: Report) -> Ended:
        after = self._view()
        return Ended(
            exit_code=report.exit_code,
            cause=report.cause,
            acknowledged=report.acknowledged,
            invalid_hp="declared invalid by the code" if after.early_exit == "invalid_hp" else None,
            new_checkpoint=len(after.checkpoints) > len(before.checkpoints),
            cancel_retries=report.cancel_retries,
            restarts=before.restarts,
            max_restarts=self._config["max_restarts"],
        )

    def _look(self) -> Cause | None:
        if self._run and self._trial.superseded(self._run):
            return Cause.KILL  # another job goes on with this trial: we are a zombie
        self._wishes.take(self._experiment.facts(after=self._wishes.seen))
        return self._wishes.cause

    def _why_ending(self) -> Cause:
        """Why the whole job is being ended, by what Slurm said in its output."""
        wish = self._look()
        if wish is not None:
            return wish
        said = self._allocation.why_ending()
        return {"cancelled": Cause.KILL, "time_limit": Cause.TIME_LIMIT}.get(
            said or "", Cause.PREEMPTION
        )

    def _why_signalled(self) -> Cause:
        """Time limit or preemption: SIGUSR1 means both on sites with preempt_send_user_signal."""
        try:
            job = self._cluster().query([self._allocation.ref]).get(self._allocation.ref)
        except SlurmError:
            return Cause.TIME_LIMIT
        left = job.time_left if job is not None else 0
        near = left is not None and left <= self._created.get("signal_lead", 120) + _SLURM_LATE
        return Cause.TIME_LIMIT if near else Cause.PREEMPTION

    # -- giving way ------------------------------------------------------------------------------

    def _cluster(self, name: str | None = None) -> Cluster:
        return detect_cluster(name or self._allocation.cluster, root=self._store.path)

    def _give_way(self, following: Next) -> None:
        """Requeue exactly this element, or submit a successor where that is not possible."""
        if following is Next.LEAVE:
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # requeueing ends this very process
        hold = following is Next.HOLD
        ref = self._requeued(hold) or self._submit_successor(hold)
        if hold and self._look() is not Cause.PAUSE:
            # The user has activated it between our look and our hold.
            self._cluster().release([ref])

    def _requeued(self, hold: bool) -> str | None:
        """Put this job back into the queue; None where only a successor can go on."""
        ref = self._allocation.ref
        if self._on_excluded_node or self._created.get("on_preempt") == "successor":
            return None
        try:
            self._cluster().requeue(ref, hold=hold)
        except SlurmError as err:
            if not _was_requeued(err):
                print(f"detslurm: requeue failed, submitting a successor: {err}", flush=True)
                return None
            if hold:
                self._cluster().hold([ref])
        return ref

    @property
    def _on_excluded_node(self) -> bool:
        return not set(self._excluded).isdisjoint(self._allocation.nodes)

    def _submit_successor(self, hold: bool) -> str:
        request = successor_request(
            self._experiment.facts(),
            self._experiment.path,
            self._index,
            after=self._allocation.ref,
            hold=hold,
            exclude=self._excluded,
        )
        cluster = self._cluster()
        job_id = cluster.submit(request)
        self._experiment.append(submitted_fact(cluster.name, job_id, self._index, request))
        return job_id


def _was_requeued(refusal: SlurmError) -> bool:
    """Whether an administrator, or the user by hand, was faster than us."""
    return "pending execution" in refusal.said.lower()


def _end_record(number: int, decision: Decision, report: Report) -> dict[str, Any]:
    return {
        "type": "end",
        "run": number,
        "outcome": decision.outcome,
        "reason": decision.reason,
        "exit_code": report.exit_code,
        "exclude": report.exclude,
        "time": time.time(),
    }


def main(argv: list[str]) -> int:
    return Runner(Path(argv[0]), int(argv[1])).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
