"""The embedded local cluster as its users see it: Slurm's verbs without Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base import contract, pythonpath
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.interface import (
    Allowance,
    ClusterLimits,
    PartitionLimits,
    split_ref,
)
from detslurm.slurm.local import journal, policy, wire
from detslurm.slurm.local.jobs import Jobs
from detslurm.slurm.local.paths import LocalClusterPaths
from detslurm.slurm.local.policy import Slots
from detslurm.slurm.local.slots import machine_slots
from detslurm.slurm.local.view import describe, node
from detslurm.slurm.queue_state import JobInfo
from detslurm.slurm.request import JobRequest
from detslurm.slurm.shell_lines import command_line, prologue

if TYPE_CHECKING:
    from detslurm.slurm.node_info import NodeInfo
    from detslurm.slurm.pending_details import PendingDetails

# Slurm's names of the numbers that can be changed here, and a request's.
_UPDATES = {"nice": "nice", "arraytaskthrottle": "throttle"}


class LocalCluster:
    """Jobs on this machine, run by a detached scheduler that exists while there are jobs; `Cluster`
    describes its methods."""

    name = "local"

    def __init__(self, root: Path | str) -> None:
        self.paths = LocalClusterPaths(Path(root).expanduser())

    def script(self, request: JobRequest) -> str:
        """The batch script: Slurm's without its options."""
        lines = ["#!/bin/bash", "", "# setup", *prologue(request)]
        return "\n".join([*lines, "", "# command", command_line(request), ""])

    def check(self, request: JobRequest) -> None:
        """Raise `SlurmError` where this machine can never run the request."""
        if reason := policy.unfit(request, machine_slots()):
            raise SlurmError(reason, "Ask for less, or submit to a Slurm cluster.")

    def allowance(self, request: JobRequest) -> Allowance:
        return Allowance()

    def allowance_now(self, charge: Mapping[str, Any]) -> Allowance:
        return Allowance()

    def submit(self, request: JobRequest) -> str:
        self.check(request)
        request.folder.mkdir(parents=True, exist_ok=True)
        job = self._new_job(request)
        try:
            answer: str = self._ask(
                "submit", job=job, token=uuid.uuid4().hex, request=request.to_dict()
            )
        except SlurmError:
            self.paths.forget(job)
            raise
        return answer

    def submitted(self, folder: Path, mark: str) -> str | None:
        jobs = Jobs(journal.read(self.paths.journal)).jobs.values()
        of = {(job.request.folder, job.request.mark): str(job.id) for job in jobs}
        return of.get((folder, mark))

    def cancel(self, refs: Collection[str], *, pending_only: bool = False) -> None:
        self._ask("cancel", refs=_checked(refs), pending_only=pending_only)

    def notify(self, refs: Collection[str], *, steps: bool = False) -> None:
        self._ask("notify", refs=_checked(refs))

    def requeue(self, ref: str, *, hold: bool = False, only_running: bool = False) -> None:
        self._ask("requeue", ref=_checked([ref])[0], hold=hold, only_running=only_running)

    def hold(self, refs: Collection[str]) -> None:
        self._ask("hold", refs=_checked(refs))

    def release(self, refs: Collection[str]) -> None:
        self._ask("release", refs=_checked(refs))

    def update(self, ref: str, **fields: str | int) -> None:
        """Change fields of queued jobs, by scontrol's names; on an array for all elements."""
        changes: dict[str, int | None] = {}
        for name, value in fields.items():
            if name.lower() not in _UPDATES:
                raise SlurmError(f"the local cluster cannot change {name.lower()}")
            changes[_UPDATES[name.lower()]] = int(value) or None
        for one in ref.split(","):
            self._ask("update", job=int(split_ref(one)[0]), changes=changes)

    def top(self, ref: str) -> None:
        """Refused: a nice may be less than 0 here, and puts any job first."""
        raise SlurmError("the local cluster orders by nice alone")

    def query(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        if not job_ids:
            return {}
        jobs, slots = self._journal()
        return {row.ref: row for row in describe(jobs, _checked(job_ids), slots, time.time())}

    def evidence(
        self, job_ids: Collection[str], *, since: float | None = None
    ) -> dict[str, JobInfo]:
        """The same as `query`: the journal forgets later than Slurm's controller."""
        return self.query(job_ids)

    def queue(self, *, partition: str | None = None) -> list[JobInfo]:
        """All jobs of this user that wait or run on this machine, by the store at `root`."""
        if partition not in (None, "local"):
            return []
        jobs, slots = self._journal()
        rows = describe(jobs, [str(job) for job in jobs.jobs], slots, time.time())
        return [row for row in rows if not row.final]

    def energy(self, job_ids: Collection[str], *, since: float | None) -> dict[str, float]:
        """None is known: there is no accounting here."""
        return {}

    def nodes(self) -> list[NodeInfo]:
        jobs, slots = self._journal()
        return [node(jobs, slots or machine_slots())]

    def _journal(self) -> tuple[Jobs, Slots | None]:
        """All jobs, and what there is for them, or None while nothing runs or might start; a
        scheduler that was killed is replaced first."""
        jobs = Jobs(journal.read(self.paths.journal))
        if not jobs.busy:
            return jobs, None
        slots = self._ask("slots")
        return Jobs(journal.read(self.paths.journal)), Slots(slots["cpus"], tuple(slots["gpus"]))

    def pending_details(self, job: JobInfo, ref: str, rival: str | None) -> PendingDetails:
        from detslurm.slurm.pending_details import PendingDetails

        return PendingDetails()

    def start_of(self, options: Sequence[str]) -> float:
        raise SlurmError("the local cluster plans no starts")

    def expecting_limits(self) -> AbstractContextManager[None]:
        return nullcontext()

    def limits(self) -> ClusterLimits:
        return self._limits

    @cached_property
    def _limits(self) -> ClusterLimits:
        slots = machine_slots()
        only = PartitionLimits(
            name="local",
            default=True,
            max_nodes=1,
            cpus_per_node=slots.cpus,
            gpus_per_node=len(slots.gpus),
        )
        return ClusterLimits(
            cluster="local",
            max_array_size=1_000_000,
            kill_wait=10,
            accounting=False,
            gres_types=("gpu",) if slots.gpus else (),
            partitions={"local": only},
        )

    def _new_job(self, request: JobRequest) -> int:
        """Claim an id for all machines of the store, and put the script there."""
        self.paths.make()
        job = 1 + max(
            (int(e.name) for e in os.scandir(self.paths.jobs) if e.name.isdigit()), default=0
        )
        while True:
            home = self.paths.jobs / str(job)
            try:
                home.mkdir(mode=0o700)
                break
            except FileExistsError:
                job += 1
        script, saved = self.paths.script(job), self.paths.environment(job)
        script.write_text(self.script(request), errors="surrogateescape")
        # A job must not take itself for its submitter.
        environment = contract.inheritable(os.environ, contract.LOCAL_PREFIX)
        saved.touch(mode=0o600)
        saved.write_text(json.dumps(environment))
        return job

    def _ask(self, verb: str, **arguments: Any) -> Any:
        """The scheduler's answer; starts one where none runs."""
        question = {"verb": verb, **arguments}
        for _ in range(5):
            address = self.paths.address
            try:
                return wire.ask(address, question)
            except wire.NoScheduler:
                self._start_scheduler()
            except wire.AddressTaken:
                self.paths.leave_address(address)
        raise SlurmError("the local cluster's scheduler does not answer", f"See {self.paths.log}.")

    def _start_scheduler(self) -> None:
        # -P: a user's json.py in the current directory is none of the scheduler's business.
        argv = [sys.executable, "-P", "-m", "detslurm.slurm.local.scheduler", str(self.paths.root)]
        # Nor is it part of the run that asks for it, whose processes all end with that.
        clean = contract.inheritable(os.environ, contract.LOCAL_PREFIX, "DET_")
        # The CPUs and devices that it may give to jobs.
        own = {contract.LOCAL_CPUS, contract.LOCAL_GPUS, *contract.DEVICES}
        kept = {k: v for k, v in os.environ.items() if k in own}
        done = subprocess.run(
            argv,
            env=pythonpath.own_environment({**clean, **kept}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            output = done.stderr.strip().rpartition("\n")[2]
            raise SlurmError(f"the local cluster's scheduler did not start: {output}")


def _checked(refs: Collection[str]) -> list[str]:
    for ref in refs:
        split_ref(ref)
    return list(refs)
