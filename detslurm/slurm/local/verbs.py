"""The scheduler's side of every verb."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from detslurm.slurm.errors import SlurmError
from detslurm.slurm.local import policy, supervisor
from detslurm.slurm.local.jobs import Element, Jobs
from detslurm.slurm.request import JobRequest

if TYPE_CHECKING:
    from detslurm.slurm.local.scheduler import Scheduler


class Verbs:
    """Turns a client's question into events and orders."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    @property
    def _jobs(self) -> Jobs:
        return self._scheduler.jobs

    def do(self, question: dict[str, Any]) -> Any:
        """Dispatch one question; SlurmError becomes the client's."""
        verb = question.pop("verb")
        return getattr(self, f"do_{verb}")(**question)

    def do_slots(self) -> dict[str, Any]:
        return {"cpus": self._scheduler.slots.cpus, "gpus": list(self._scheduler.slots.gpus)}

    def do_submit(self, job: int, token: str, request: dict[str, Any]) -> str:
        known = self._jobs.by_token(token)
        if known is None:
            asked = JobRequest.from_dict(request)
            if newer := request.keys() - asked.to_dict().keys():
                raise SlurmError(
                    f"the scheduler here is of an older version: it does not know {sorted(newer)}",
                    "Submit again once its jobs have ended.",
                )
            if reason := policy.unfit(asked, self._scheduler.slots):
                raise SlurmError(reason, "Ask for less, or submit to a Slurm cluster.")
            event = {"t": "job", "job": job, "token": token, "request": request}
            self._scheduler.record({**event, "time": time.time()}, commit=True)
        return str(known.id if known else job)

    def do_cancel(self, refs: list[str], pending_only: bool) -> None:
        for element in self._elements(refs):
            if element.state == "PENDING":
                nothing = {"code": None, "signal": None, "time": time.time()}
                self._record("end", element, state="CANCELLED", **nothing)
            elif element.key in self._scheduler.running and not pending_only:
                self._scheduler.order_end(element.key, "CANCELLED")

    def do_notify(self, refs: list[str]) -> None:
        for element in self._elements(refs):
            if element.key in self._scheduler.running:
                self._scheduler.order(element.key, supervisor.NOTIFY)

    def do_requeue(self, ref: str, hold: bool, only_running: bool = False) -> None:
        elements = self._elements([ref])
        if not elements:
            raise SlurmError(f"Invalid job id specified for job {ref}", "Nothing is known of it.")
        for element in elements:
            if element.state == "PENDING":
                raise SlurmError(f"Job is pending execution for job {element.ref}")
            if element.key in self._scheduler.running:
                if hold:  # at once, so that a release that comes before the job has ended counts
                    self._record("hold", element)
                self._scheduler.order_end(element.key, "requeue")
            elif not self._scheduler.paths.environment(element.job).exists():
                raise SlurmError(f"job {element.ref} is over", "Submit it again.")
            elif not only_running:
                self._record("requeue", element, restarts=element.restarts + 1, held=hold)

    def do_hold(self, refs: list[str]) -> None:
        for element in self._elements(refs):
            if not element.over:
                self._record("hold", element)

    def do_release(self, refs: list[str]) -> None:
        for element in self._elements(refs):
            if not element.over:
                self._record("release", element)

    def do_update(self, job: int, changes: dict[str, Any]) -> None:
        if job not in self._jobs.jobs:
            raise SlurmError(f"Invalid job id specified for job {job}", "Nothing is known of it.")
        # Unknown fields are refused before the journal has them, which all later ones read.
        self._jobs.jobs[job].request.with_changes(**changes)
        self._scheduler.record({"t": "update", "job": job, "changes": changes}, commit=True)

    def do_pid(self) -> int:
        """The scheduler's process."""
        return os.getpid()

    def _elements(self, refs: list[str]) -> list[Element]:
        return [element for ref in refs for element in self._jobs.find(ref)]

    def _record(self, kind: str, element: Element, **more: Any) -> None:
        event = {"t": kind, "job": element.job, "index": element.index, **more}
        self._scheduler.record(event, commit=True)
