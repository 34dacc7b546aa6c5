"""Submitting a plan: the experiment in the store, and its jobs in the queue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from detslurm._base import module_cache
from detslurm._base.quantities import counted
from detslurm.jobs.deferred import submit_as_many
from detslurm.jobs.resubmit import kept, runner_command, standby_request, submitted_fact
from detslurm.notices.raising import expect_notices
from detslurm.sdk.disk.deletion import delete
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.experiments.snapshot import read
from detslurm.sdk.provenance.collecting import optuna_version
from detslurm.sdk.submission.context import freeze
from detslurm.sdk.submission.deferring import defer
from detslurm.sdk.submission.environment import keep
from detslurm.sdk.submission.planning import Plan
from detslurm.sdk.submission.sources import keeping
from detslurm.searcher import Search
from detslurm.searcher.method import length_of
from detslurm.slurm import Allowance, Cluster, JobArray, JobRequest, SlurmError, SubmitLimitReached
from detslurm.store import (
    EventLog,
    ExperimentDir,
    SeveralObjectives,
    Store,
    StoreError,
    fs,
    records,
)


@dataclass(frozen=True)
class Submission:
    """An experiment that was submitted.

    Attributes:
        experiment_id: The id of the experiment.
        first_trial: The id of its first trial; the others follow.
        trials: The number of its trials; in a search, how many there may be.
        job_ids: The ids of the jobs that were queued.
        cluster: The name of the cluster.
        paused: Whether the jobs are held.
        deferred: The number of trials that are submitted later, where limits leave no room now.
    """

    experiment_id: int
    first_trial: int
    trials: int
    job_ids: tuple[str, ...]
    cluster: str
    paused: bool = False
    deferred: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for scripts."""
        return {
            "experiment_id": self.experiment_id,
            "trial_ids": list(range(self.first_trial, self.first_trial + self.trials)),
            "job_ids": list(self.job_ids),
            "deferred": self.deferred,
        }


def requests(
    plan: Plan, experiment_dir: Path, *, paused: bool = False
) -> Iterator[tuple[JobArray, JobRequest]]:
    """The jobs of a plan as they are submitted, less the dependencies among them."""
    for array in plan.jobs.arrays:
        yield array, _request(plan, array, experiment_dir, experiment_dir / "jobs", hold=paused)


def _request(
    plan: Plan, array: JobArray, experiment_dir: Path, folder: Path, *, hold: bool = False
) -> JobRequest:
    first, each = (0, 1) if plan.is_search else (array.first * plan.each, plan.each)
    return plan.jobs.request(
        array,
        name="-".join(filter(None, ("det", plan.task, experiment_dir.name))),
        command=runner_command(experiment_dir, first, each),
        folder=folder,
        comment=plan.config.name,
        hold=hold,
    )


def check(plan: Plan, store: Store) -> tuple[str, ...]:
    """Return warnings of what the job may wait for. Raises `SubmitError` if it would be refused."""
    request = _first_request(plan, store.path / "experiments" / "0", store.path)
    try:
        awaited = plan.cluster.check(request)
    except SlurmError as refusal:
        raise SubmitError(str(refusal)) from None
    return (awaited,) if awaited else ()


def _first_request(plan: Plan, experiment_dir: Path, folder: Path) -> JobRequest:
    array = plan.jobs.arrays[0] if plan.jobs.arrays else JobArray(0, 1)
    return _request(plan, array, experiment_dir, folder)


def submit(
    plan: Plan,
    store: Store,
    *,
    paused: bool = False,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> Submission:
    """Create the experiment and queue its jobs, or raise `SubmitError` and queue nothing. A crash
    at any moment leaves either no experiment, or an experiment that records its jobs. `progress`
    gets how much is packed of the environment that its nodes stage."""
    cluster = plan.cluster
    if cluster.name != "local":  # one machine starts few jobs, and reads from its own memory
        cache_modules(store)
    expect_notices(store)
    environment = None
    if plan.environment is not None:
        environment = keep(plan.environment, store, progress)
    experiment = _create(plan, store, environment)
    first_trial = experiment.created().first_trial
    if paused:
        experiment.append(records.Intent(intent="pause"))
    job_ids: list[str] = []
    try:
        deferred = _queue_arrays(plan, experiment, job_ids, paused=paused)
        if plan.is_search and plan.jobs.arrays:
            with contextlib.suppress(
                SubmitLimitReached
            ):  # its workers submit it when there is room
                job_ids.append(_submit_standby(experiment, cluster, job_ids, hold=paused))
    except BaseException as err:
        _take_back(experiment, cluster, job_ids)
        if isinstance(err, SlurmError):
            raise SubmitError(f"the cluster refused the job: {err}{_size(plan, err)}") from err
        raise
    ids = tuple(job_ids)
    return Submission(experiment.id, first_trial, plan.trials, ids, cluster.name, paused, deferred)


def _queue_arrays(
    plan: Plan, experiment: ExperimentDir, job_ids: list[str], *, paused: bool
) -> int:
    """Queue what there is room for, adding to `job_ids`; how many trials are left for later."""
    cluster = plan.cluster
    each = 1 if plan.is_search else plan.each
    planned = sum(array.count for array in plan.jobs.arrays)
    end = plan.trials if plan.deferral is None else planned * each
    if plan.deferral is not None:
        defer(experiment, range(end, plan.trials), each, plan.deferral.allowed)
    for array, request in requests(plan, experiment.path, paused=paused):
        after = job_ids[array.after] if array.after is not None else None
        dependent = request.with_changes(dependency=f"afterany:{after}" if after else None)
        first, sent = 0 if plan.is_search else array.first * each, 0
        try:
            job_id, part, limit = submit_as_many(cluster, dependent)
        except SubmitLimitReached as refusal:
            if not job_ids:
                raise
            limit = refusal.limit
        else:
            job_ids.append(job_id)
            part = part.with_changes(dependency=None)
            experiment.append(submitted_fact(cluster.name, job_id, first, part, each=each))
            sent = part.count or 1
        if sent < array.count:
            if not plan.is_search:
                left = range(first + sent * each, end)
                allowed = plan.deferral.allowed if plan.deferral else Allowance(limit=limit)
                defer(experiment, left, each, allowed)
                return plan.trials - left.start
            break
    return 0 if plan.is_search else plan.trials - end


def cache_modules(store: Store) -> None:
    """Let the jobs start with one file of modules; without it they only start later."""
    if (found := module_cache.refreshed(str(store.path))) is not None:
        path, content = found
        with contextlib.suppress(StoreError):
            fs.replace_file(path, content)


def _create(plan: Plan, store: Store, environment: records.Environment | None) -> ExperimentDir:
    with keeping(plan.sources) as keep_sources:
        experiment = store.create_experiment(
            _created(plan, store, environment),
            plan.plain,
            plan.text,
            masked=plan.config.masked(),
            freeze=partial(freeze, plan.context),
            prepare=partial(_prepare, plan, keep_sources),
        )
    return experiment


def _prepare(
    plan: Plan,
    keep_sources: Callable[[ExperimentDir], None],
    experiment: ExperimentDir,
    first_trial: int,
) -> None:
    keep_sources(experiment)
    if plan.derivation is not None:
        plan.derivation.prepare(experiment, first_trial)
    goes_on = plan.derivation is not None and plan.derivation.extended is not None
    if plan.known is not None and not goes_on:  # that event brings them along
        log = EventLog(experiment.search, Search(plan.plain))
        log.commit([msgspec.to_builtins(plan.known)])
    if not plan.jobs.arrays:
        # The first jobs to come are like it. It comes before the experiment can be seen, for
        # who runs the method of a search, killed and started again, only looks for its experiment.
        request = _first_request(plan, experiment.path, experiment.jobs)
        experiment.append_next(records.Submitted(request=kept(request)), after=1)


def _take_back(experiment: ExperimentDir, cluster: Cluster, job_ids: Sequence[str]) -> None:
    try:
        experiment.append(records.Intent(intent="delete"))
    finally:
        with contextlib.suppress(SlurmError):  # then runners find the intent
            cluster.cancel(job_ids)
    if not job_ids:  # else a runner may have begun that reads them
        with contextlib.suppress(StoreError, OSError):
            delete(read(experiment))


def _size(plan: Plan, refusal: SlurmError) -> str:
    if "trials_per_job" not in refusal.advice:
        return ""
    return f" It is {plan.each} now, which makes {counted(plan.workers, 'element')}."


def _provenance(plan: Plan, store: Store) -> records.RecordedProvenance | None:
    if plan.provenance is None:
        return None
    optuna = optuna_version(plan.plain)
    return structs.replace(plan.provenance.kept(store), optuna=optuna)


def _created(plan: Plan, store: Store, environment: records.Environment | None) -> records.Created:
    config = plan.plain
    searcher, resources = config["searcher"], config["resources"]
    return records.Created(
        name=config["name"],
        description=config["description"],
        task=plan.task,
        labels=config["labels"],
        workspace=config["workspace"] or None,
        project=config["project"] or None,
        trials=plan.trials,
        metric=searcher["metric"],
        smaller_is_better=searcher.get("smaller_is_better", True),
        objectives=SeveralObjectives.of(searcher),
        slots=resources["slots_per_trial"],
        pool=plan.jobs.template.partition or "",
        max_restarts=config["max_restarts"],
        cluster=plan.cluster.name,
        on_preempt=plan.on_preempt,
        kill_wait=plan.kill_wait,
        signal_lead=plan.jobs.template.signal_lead,
        search=plan.is_search,
        submit_from_jobs=plan.submit_from_jobs,
        workers=min(plan.workers, searcher.get("max_concurrent_trials") or plan.workers),
        max_slots=resources.get("max_slots"),
        budget=plan.config.slurm.budget.slot_hours if plan.config.slurm.budget else None,
        length=length_of(searcher)[0],
        runner=plan.method_runner,
        parent=plan.derivation.parent if plan.derivation is not None else None,
        origin=plan.derivation.origin if plan.derivation is not None else None,
        sources=tuple(plan.sources),
        source_checkpoint=plan.source_checkpoint,
        source_outputs=plan.source_outputs,
        code_bytes=plan.context.size,
        environment=environment,
        provenance=_provenance(plan, store),
    )


def _submit_standby(
    experiment: ExperimentDir, cluster: Cluster, jobs: Sequence[str], *, hold: bool
) -> str:
    """One more worker, which starts after all others have ended, in case they were killed."""
    request = standby_request(experiment.facts(), experiment, jobs)
    job_id = cluster.submit(request.with_changes(hold=hold))
    experiment.append(submitted_fact(cluster.name, job_id, 0, request, standby=True))
    return job_id
