"""Submissions as facts, and how a trial whose job is gone gets a new job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm._base import startup
from detslurm.config.sbatch_args import last_given
from detslurm.slurm import JobRequest, SlurmError
from detslurm.slurm.priority import nice_of, priority_of_weight
from detslurm.store import ExperimentDir

COMMAND_PATIENCE = 900.0
"""Seconds in which a user's command has done what it announced: sbatch is tried for a part of it,
and clocks differ."""


class NeverSubmitted(Exception):
    """There is no job whose request could be made again."""


def runner_command(experiment_dir: Path, first_index: int, each: int = 1) -> tuple[str, ...]:
    """A batch script's command: element i of its array works for trial `first_index` + i.

    With `each` it works for that many, from `first_index` + i * `each` on.
    """
    runner = startup.command("detslurm.exec.runner")
    share = (str(first_index),) if each == 1 else (str(first_index), str(each))
    return (*runner, str(experiment_dir), *share)


def submitted_fact(
    cluster: str,
    job_id: str,
    first_index: int,
    request: JobRequest,
    *,
    each: int = 1,
    standby: bool = False,
) -> dict[str, Any]:
    """The fact that records which job works for which trials, and how to ask for it again."""
    job: dict[str, Any] = {
        "cluster": cluster,
        "job_id": job_id,
        "first_index": first_index,
        "count": (len(request.elements) or 1) * each,
        "array": request.is_array,
    }
    if each != 1:
        job["each"] = each
    if standby:
        job["standby"] = True
    return {"type": "submitted", "jobs": [job], "request": kept(request)}


# These may hold secrets, and a fact can be read by all that share the store: the configuration,
# which is its owner's alone, has them as well.
_CONFIGURED = ("setup", "sbatch_args")


def kept(request: JobRequest) -> dict[str, Any]:
    """A fact's part of a request, for `_asked`."""
    return {name: value for name, value in request.to_dict().items() if name not in _CONFIGURED}


def _asked(fact: Mapping[str, Any], experiment: ExperimentDir) -> JobRequest:
    """The request of a submission."""
    slurm = experiment.config().get("slurm") or {}
    configured = {name: slurm[name] for name in _CONFIGURED if name in slurm}
    here = str(experiment.path / "jobs")  # the store may have been moved, or copied, since
    return JobRequest.from_dict({**configured, **fact["request"], "folder": here})


def successor_request(
    facts: Iterable[Mapping[str, Any]],
    experiment: ExperimentDir,
    index: int,
    *,
    each: int = 1,
    after: str | None = None,
    hold: bool = False,
    exclude: Sequence[str] = (),
) -> JobRequest:
    """The request of a new job for `each` trials from `index` on, like the first that covered it.

    `after` is the ref of a job that must be gone before the new job starts. Raises `NeverSubmitted`
    when there was no submission at all, `SlurmError` while a job of the trial may be under way.
    """
    facts = list(facts)
    original = _as_set(_first_request(facts, index, experiment), facts)
    return _like(original, experiment, index, each).with_changes(
        dependency=f"afterany:{after}" if after else None,
        hold=hold,
        exclude=tuple(dict.fromkeys((*original.exclude, *exclude))),
    )


def workers_request(
    facts: Iterable[Mapping[str, Any]], experiment: ExperimentDir, count: int
) -> JobRequest:
    """The request of `count` more workers for a search, like those it began with."""
    return deferred_request(facts, experiment, 0, each=1, count=count)


def deferred_request(
    facts: Iterable[Mapping[str, Any]],
    experiment: ExperimentDir,
    index: int,
    *,
    each: int,
    count: int = 1,
) -> JobRequest:
    """The request of `count` elements for trials from `index` on, `each` of them one's share."""
    facts = list(facts)
    original = _as_set(_first(facts, experiment), facts)
    return _like(original, experiment, index, each, count if count > 1 else None)


def standby_request(
    facts: Iterable[Mapping[str, Any]], experiment: ExperimentDir, jobs: Iterable[str]
) -> JobRequest:
    """The request of a worker for a search that comes when these jobs are gone, however."""
    one = workers_request(facts, experiment, 1)
    return one.with_changes(dependency=f"afterany:{':'.join(dict.fromkeys(jobs))}")


def _like(
    original: JobRequest,
    experiment: ExperimentDir,
    index: int,
    each: int = 1,
    count: int | None = None,
) -> JobRequest:
    return original.with_changes(
        command=runner_command(experiment.path, index, each),
        count=count,
        indices=(),
        throttle=None,
        dependency=None,
        hold=False,
        mark=None,
    )


def _as_set(original: JobRequest, facts: Iterable[Mapping[str, Any]]) -> JobRequest:
    """The request with the place in the queue that the user has given the experiment since, and
    without the nodes that were excluded."""
    changes: dict[str, Any] = {}
    for fact in facts:
        if fact.get("type") == "node_failed" and fact.get("excluded"):
            exclude = changes.get("exclude", original.exclude)
            changes["exclude"] = tuple(dict.fromkeys((*exclude, fact["node"])))
        if fact.get("type") == "set" and fact.get("field") in _REQUESTED:
            name, meaning = _REQUESTED[fact["field"]]
            changes[name] = meaning(fact["value"])
    return original.with_changes(**changes) if changes else original


def excluded_nodes(facts: Iterable[Mapping[str, Any]], experiment: ExperimentDir) -> str:
    """The nodes that jobs of the experiment avoid, as ExcNodeList takes them: those that failed,
    and the user's own. Empty if the user's are in a file, which only sbatch reads."""
    facts = list(facts)
    request = _as_set(_first(facts, experiment), facts)
    own = last_given(request.sbatch_args, "exclude", "x")
    nodes = (*request.exclude, own) if own else request.exclude
    return "" if own and "/" in own else ",".join(nodes)


def is_moved(facts: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the user has put the experiment into another partition or QOS since."""
    return any(f.get("type") == "set" and f.get("field") in ("resource_pool", "qos") for f in facts)


_REQUESTED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "priority": ("nice", nice_of),
    "weight": ("nice", lambda weight: nice_of(priority_of_weight(weight))),
    "resource_pool": ("partition", str),
    "qos": ("qos", str),
}


def _first(facts: Iterable[Mapping[str, Any]], experiment: ExperimentDir) -> JobRequest:
    for fact in facts:
        if fact.get("type") == "submitted":
            return _asked(fact, experiment)
    raise NeverSubmitted("no job was ever submitted")


def _first_request(
    facts: Sequence[Mapping[str, Any]], index: int, experiment: ExperimentDir
) -> JobRequest:
    for fact in facts:
        if fact.get("type") != "submitted":
            continue
        for job in fact["jobs"]:
            if 0 <= index - job["first_index"] < job["count"]:
                return _asked(fact, experiment)
    last = max((f.get("time", 0.0) for f in facts if f.get("type") == "submitted"), default=0.0)
    if time.time() - last < COMMAND_PATIENCE:
        raise SlurmError(
            f"no job was submitted for the trial with index {index} yet, and that may go on just"
            " now",
            f"Try again in {COMMAND_PATIENCE / 60:.0f} min.",
        )
    return _first(facts, experiment)  # its submission broke off between two arrays
