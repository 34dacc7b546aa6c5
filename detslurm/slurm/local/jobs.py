"""The state of a local cluster as a fold over what happened; no clock, no files, no processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from detslurm.slurm.queue_state import FINAL_STATES
from detslurm.slurm.request import JobRequest

Key = tuple[int, int | None]  # job id, array index


@dataclass(slots=True)
class Element:
    """One array element, or a whole plain job."""

    job: int
    index: int | None
    state: str = "PENDING"
    held: bool = False
    restarts: int = 0
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    gpus: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return self.job, self.index

    @property
    def ref(self) -> str:
        return str(self.job) if self.index is None else f"{self.job}_{self.index}"

    @property
    def over(self) -> bool:
        return self.state in FINAL_STATES


@dataclass(slots=True)
class LocalJob:
    """One submission."""

    id: int
    request: JobRequest
    token: str
    submitted: float
    elements: dict[int | None, Element] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return all(element.over for element in self.elements.values())


class Jobs:
    """All jobs of one local cluster."""

    def __init__(self, events: Iterable[dict[str, Any]] = ()) -> None:
        self.jobs: dict[int, LocalJob] = {}
        for event in events:
            self.apply(event)

    def __iter__(self) -> Iterator[Element]:
        for job in self.jobs.values():
            yield from job.elements.values()

    def find(self, ref: str) -> list[Element]:
        """The element of a ref, or all elements of a job id; empty when unknown."""
        job_id, underscore, index = ref.partition("_")
        job = self.jobs.get(int(job_id))
        if job is None:
            return []
        if not underscore:
            return list(job.elements.values())
        return [job.elements[int(index)]] if int(index) in job.elements else []

    def request(self, element: Element) -> JobRequest:
        """The request that the element was submitted with."""
        return self.jobs[element.job].request

    def by_token(self, token: str) -> LocalJob | None:
        """The job of a submission that may have been sent twice."""
        return next((job for job in self.jobs.values() if job.token == token), None)

    @property
    def busy(self) -> bool:
        """True while anything runs or might start."""
        return any(not e.over and not (e.state == "PENDING" and e.held) for e in self)

    def apply(self, event: dict[str, Any]) -> None:
        """Take one event in; kinds and jobs that are not known are skipped."""
        kind = event.get("t")
        if kind == "job":
            self._add(event)
            return
        job = self.jobs.get(event.get("job", -1))
        if job is None:
            return
        if kind == "update":
            job.request = job.request.with_changes(**event["changes"])
        elif (element := job.elements.get(event.get("index"))) is not None:
            _apply(element, kind, event)

    def _add(self, event: dict[str, Any]) -> None:
        request = JobRequest.from_dict(event["request"])
        job = LocalJob(event["job"], request, event["token"], event["time"])
        for index in request.elements if request.is_array else (None,):
            job.elements[index] = Element(job.id, index, held=request.hold)
        self.jobs[job.id] = job


def _apply(element: Element, kind: Any, event: dict[str, Any]) -> None:
    if kind == "start":
        element.state, element.started = "RUNNING", event["time"]
        element.gpus = tuple(event["gpus"])
    elif kind == "requeue":
        element.state, element.started, element.gpus = "PENDING", None, ()
        element.restarts = event["restarts"]
        element.held = event["held"]
        element.exit_code = element.signal = element.ended = None
    elif kind == "end":
        element.state, element.ended = event["state"], event["time"]
        element.exit_code, element.signal = event["code"], event["signal"]
        element.gpus = ()
    elif kind == "hold":
        element.held = True
    elif kind == "release":
        element.held = False
