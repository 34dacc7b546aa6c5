"""The evidence for the cost of a submission: its jobs, earlier runs, the partition's load."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from detslurm.config import ExperimentConfig, load_site
from detslurm.sdk.costs.cost import Cost, Pace, PartitionLoad, Work, cost_of, counted
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.searches.preview import PreviewError, worker_count
from detslurm.sdk.submission.planning import jobs_within, trials_and_jobs
from detslurm.searcher.preview import preview
from detslurm.slurm import Cluster, ClusterLimits, JobPlan, SlurmError
from detslurm.store import StoreError

if TYPE_CHECKING:
    from detslurm.sdk.client import Client
    from detslurm.sdk.submission.planning import Plan
    from detslurm.slurm import JobInfo, NodeInfo
    from detslurm.store import ExperimentRow, TrialRow

# Of more earlier experiments only the newest are read.
_EXPERIMENTS = 5
_LOOKED_THROUGH = 200  # at first: of running ones the logs are read


def cost_of_plan(client: Client, plan: Plan) -> Cost:
    """The cost of a plan."""
    config = plan.config.to_dict()
    return _cost(client, config, plan.cluster, plan.cluster.limits(), plan.jobs, plan.workers)


def cost_of_config(client: Client, config: ExperimentConfig) -> Cost:
    """The cost of a resolved configuration; its code is not read."""
    site, plain = load_site(), config.to_dict()
    try:
        _, elements = trials_and_jobs(plain, site is None or site.submit_from_jobs)
        cluster = client.queues.cluster("auto")
        limits, jobs = jobs_within(config, site, cluster, elements)
    except (SlurmError, SubmitError, ValueError) as error:
        pace = pace_of_earlier(client, plain)
        return cost_of(_work(plain, 1), pace, f"its jobs can't be planned here: {error}")
    return _cost(client, plain, cluster, limits, jobs, elements)


def _cost(
    client: Client,
    config: Mapping[str, Any],
    cluster: Cluster,
    limits: ClusterLimits,
    jobs: JobPlan,
    elements: int,
) -> Cost:
    limit, source = _time_limit(limits, jobs)
    work = replace(_work(config, elements, jobs), limit=limit, limit_source=source)
    pace = pace_of_earlier(client, config)
    # Without a pace no load helps: two calls to the controller less.
    return cost_of(work, pace, pace if isinstance(pace, str) else load_of(cluster, limits, jobs))


def _work(config: Mapping[str, Any], elements: int, jobs: JobPlan | None = None) -> Work:
    seen = preview(config)
    units = [row.units for row in seen.rows]
    at_once = [array.throttle or array.count for array in jobs.arrays] if jobs else []
    try:
        most = worker_count(config, None)
    except PreviewError:
        most = 1
    return Work(
        trials=seen.trials,
        jobs=elements,
        slots=int(config["resources"]["slots_per_trial"]),
        nodes=jobs.template.nodes if jobs is not None else 1,
        at_once=max(min([most, *([sum(at_once)] if at_once else [])]), 1),
        units=seen.total_units,
        budget=(config["slurm"].get("budget") or {}).get("slot_hours"),
        longest=max((n for n in units if n is not None), default=None),
    )


def _time_limit(limits: ClusterLimits, jobs: JobPlan) -> tuple[int | None, str]:
    """Seconds of a job's time limit and who set it, or why there is none."""
    if any(re.match(r"--time(?:=|\s|$)|-t", word) for word in jobs.template.sbatch_args):
        return None, "slurm.sbatch_args sets the time limit"
    minutes = jobs.template.time_minutes
    if minutes is not None:
        return minutes * 60 or None, "slurm.time" if minutes else "slurm.time is UNLIMITED"
    here = limits.partition(jobs.template.partition)
    if here is None:
        return None, "neither slurm.time nor the partition's default is known"
    default = here.default_time or here.max_time
    if default is None:
        return None, f"neither slurm.time nor partition {here.name!r} sets a time limit"
    return default * 60, f"the default of partition {here.name!r}"


def load_of(cluster: Cluster, limits: ClusterLimits, jobs: JobPlan) -> PartitionLoad | str:
    """The slots of the plan's partition now, or why they are not known."""
    name = jobs.template.partition or limits.default_partition
    if name is None:
        return f"the default partition of {cluster.name} is not known"
    try:
        nodes, queue = cluster.nodes(), cluster.queue(partition=name)
    except SlurmError as error:
        return f"{cluster.name} does not show the load of {name!r}: {error.message}"
    return load_from(name, jobs.slot_type, nodes, queue)


def load_from(
    partition: str, slot_type: str, nodes: Iterable[NodeInfo], queue: Iterable[JobInfo]
) -> PartitionLoad:
    """The slots of a partition, or of several with commas. Jobs that are held or depend on others
    don't count as waiting."""
    names = set(partition.split(","))
    here = [node for node in nodes if not names.isdisjoint(node.partitions) and node.available]
    total = [node.cpus if slot_type == "cpu" else node.gpus for node in here]
    used = [node.cpus_used if slot_type == "cpu" else node.gpus_used for node in here]
    ready = (job for job in queue if job.waiting and not job.held and not job.dependency)
    return PartitionLoad(
        partition,
        tuple(max(have - taken, 0) for have, taken in zip(total, used, strict=True)),
        tuple(total),
        sum(job.count for job in ready),
    )


def pace_of_earlier(client: Client, config: Mapping[str, Any]) -> Pace | str:
    """The seconds of a batch, or of a trial of the same length, in earlier runs of the same
    experiment: the median over completed trials that needed one run; or why it is unknown."""
    same = "project and slots" if preview(config).unit == "batches" else "project, slots and length"
    unknown = f"no earlier trial of the same name, {same} shows what it takes"
    if client.missing():
        return unknown
    for row in _earlier(client, config):
        try:
            earlier = client.stored(row.id)
            done = [trial for trial in earlier.trial_rows if _measures(trial)]
            found = _pace(config, earlier.config, done, row.id)
        except StoreError:
            continue
        if found is not None:
            return found
    return unknown


def _earlier(client: Client, config: Mapping[str, Any]) -> Iterator[ExperimentRow]:
    """The newest experiments with the same name, project and slots, the newest first."""
    from detslurm.store import UNCATEGORIZED

    folder = tuple(config.get(key) or UNCATEGORIZED for key in ("workspace", "project"))
    slots = config["resources"]["slots_per_trial"]
    same = (
        row
        for row in client.newest_rows(archived=True, count=_LOOKED_THROUGH)
        if (row.name, row.slots) == (config["name"], slots)
        and (row.workspace, row.project) == folder
        and row.trial_states.get("COMPLETED")
        and row.origin != "continue"  # its trials count the batches before, but not the time
    )
    yield from islice(same, _EXPERIMENTS)


def _measures(trial: TrialRow) -> bool:
    """Whether its time is its training's: between two runs a trial waits in the queue."""
    return trial.state == "COMPLETED" and trial.run_count == 1 and _seconds(trial) > 0


def _seconds(trial: TrialRow) -> float:
    return (trial.ended or 0.0) - (trial.started or 0.0)


def _pace(
    config: Mapping[str, Any], earlier: Mapping[str, Any], done: list[TrialRow], number: int
) -> Pace | None:
    seen, before = preview(config), preview(earlier)
    stepped = [trial for trial in done if trial.steps]
    lengths = {row.units for row in seen.rows}
    alike = seen.unit == before.unit and {row.units for row in before.rows} == lengths
    per: Literal["unit", "trial"]
    if seen.unit == "batches" and seen.total_units is not None and stepped:
        per, what, times = "unit", "batch", [_seconds(trial) / trial.steps for trial in stepped]
    elif done and alike and len(lengths) == 1:
        per, what, times = "trial", "trial", [*map(_seconds, done)]
    else:
        return None
    seconds, trials = median(times), counted(len(times), "trial")
    source = f"{seconds:.3g} s a {what}, the median of {trials} of experiment {number}"
    return Pace(seconds, per, source)
