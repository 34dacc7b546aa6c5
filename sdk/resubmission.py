"""New jobs for trials whose jobs are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from detslurm.slurm import Cluster, JobRequest
from detslurm.slurm.succession import submitted_fact, successor_request, workers_request
from detslurm.store import ExperimentDir
from detslurm.store.experimentfold import experiment_facts


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
    each = _each(facts)
    job_ids = []
    for stretch in stretches(_planned(facts, indices)):
        request = _request(facts, experiment, stretch, each)
        job_id = cluster.submit(request)
        fact = submitted_fact(cluster.name, job_id, stretch.start, request, each=each)
        experiment.append(fact)
        job_ids.append(job_id)
    return job_ids


def submit_workers(experiment: ExperimentDir, count: int, cluster: Cluster) -> str:
    """Queue so many more workers for a search; returns the job id. Raises SlurmError."""
    request = workers_request(experiment.facts(), experiment.path, count)
    job_id = cluster.submit(request)
    experiment.append(submitted_fact(cluster.name, job_id, 0, request))
    return job_id


def _planned(facts: Sequence[Mapping[str, Any]], indices: Iterable[int]) -> Iterator[int]:
    """A trial that replaces another one is run by the job that the other one has."""
    origin = {new: old for old, new in experiment_facts(facts).replaced.items()}
    for index in indices:
        while index in origin:
            index = origin[index]
        yield index


def _each(facts: Sequence[Mapping[str, Any]]) -> int:
    """How many trials an element of the first array runs."""
    first = next((fact for fact in facts if fact.get("type") == "submitted"), {"jobs": ()})
    return next((int(job.get("each", 1)) for job in first["jobs"]), 1)


def _request(
    facts: Sequence[Mapping[str, Any]], experiment: ExperimentDir, stretch: range, each: int
) -> JobRequest:
    single = successor_request(facts, experiment.path, stretch.start, each=each)
    if len(stretch) <= each:
        return single
    return single.with_changes(count=-(-len(stretch) // each), throttle=_throttle(facts))


def _throttle(facts: Sequence[Mapping[str, Any]]) -> int | None:
    """How many trials may run at once, as the first submission had it."""
    for fact in facts:
        if fact.get("type") == "submitted":
            value = fact["request"].get("throttle")
            return int(value) if value else None
    return None
