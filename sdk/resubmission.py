"""New jobs for trials whose jobs are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from detslurm.slurm import Cluster, JobRequest
from detslurm.slurm.succession import submitted_fact, successor_request
from detslurm.store import ExperimentDir


def stretches(indices: Iterable[int]) -> Iterator[range]:
    """Trial indices as ranges without gaps: one array each."""
    start: int | None = None
    last = 0
    for index in sorted(set(indices)):
        if start is not None and index != last + 1:
            yield range(start, last + 1)
            start = None
        start = index if start is None else start
        last = index
    if start is not None:
        yield range(start, last + 1)


def resubmit(experiment: ExperimentDir, indices: Iterable[int], cluster: Cluster) -> list[str]:
    """Queue new jobs for these trials; returns the job ids. Raises SlurmError, LookupError."""
    facts = list(experiment.facts())
    job_ids = []
    for stretch in stretches(indices):
        request = _request(facts, experiment, stretch)
        job_id = cluster.submit(request)
        experiment.append(submitted_fact(cluster.name, job_id, stretch.start, request))
        job_ids.append(job_id)
    return job_ids


def _request(
    facts: Sequence[Mapping[str, Any]], experiment: ExperimentDir, stretch: range
) -> JobRequest:
    single = successor_request(facts, experiment.path, stretch.start)
    if len(stretch) == 1:
        return single
    return single.with_changes(count=len(stretch), throttle=_throttle(facts))


def _throttle(facts: Sequence[Mapping[str, Any]]) -> int | None:
    """How many trials may run at once, as the first submission had it."""
    for fact in facts:
        if fact.get("type") == "submitted":
            value = fact["request"].get("throttle")
            return int(value) if value else None
    return None
