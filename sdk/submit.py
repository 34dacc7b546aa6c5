"""Submission: from a configuration and a directory of code to jobs in the queue."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm.config import ExperimentConfig, LoadedExperiment, SiteProfile
from detslurm.config.schema.environment import DEVICES
from detslurm.sdk.context import ContextFiles, collect, freeze
from detslurm.sdk.entrypoint import check_entrypoint
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.preflight import sampler_problems, warm_start_problems
from detslurm.searcher import RUNNABLE, Search, trial_count
from detslurm.slurm import Cluster, ClusterLimits, JobRequest, SlurmError
from detslurm.slurm.plan import JobArray, JobPlan, PlanError, plan_job, throttle
from detslurm.slurm.resubmit import kept, runner_command, standby_request, submitted_fact
from detslurm.store import ExperimentDir, Store, StoreError, fs, probe
from detslurm.store.search_records import BLOCK

_STARTUP_HOOK = "startup-hook.sh"


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before anything is written or queued."""

    config: ExperimentConfig
    text: str
    context: ContextFiles
    trials: int  # for a search: how many there may be
    each: int  # how many of them one job runs, one after the other
    jobs: JobPlan
    on_preempt: str
    kill_wait: int
    warnings: tuple[str, ...]
    submit_from_jobs: bool = True

    @property
    def is_search(self) -> bool:
        """Whether results decide which trials there will be: its jobs are workers for any."""
        return self.config.to_dict()["searcher"]["name"] not in RUNNABLE

    @property
    def workers(self) -> int:
        """How many elements all arrays have together."""
        return sum(array.count for array in self.jobs.arrays)


@dataclass(frozen=True)
class Submitted:
    """What came of a submission."""

    experiment_id: int
    first_trial: int
    trials: int
    job_ids: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for scripts."""
        return {
            "experiment_id": self.experiment_id,
            "trial_ids": list(range(self.first_trial, self.first_trial + self.trials)),
            "job_ids": list(self.job_ids),
        }


def plan(
    loaded: LoadedExperiment,
    context_dir: Path,
    includes: Sequence[Path],
    *,
    cluster: Cluster,
    site: SiteProfile | None,
    store: Store,
) -> Plan:
    """Check everything that can be checked now. Raises `SubmitError` naming all problems."""
    config = loaded.config
    context = collect(context_dir, includes)
    files = {file.name: file.source for file in context.files}
    found = check_entrypoint(config.entrypoint, files, prepared=_prepared(config, files))
    problems = found.problems
    submit_from_jobs = site is None or site.submit_from_jobs
    try:
        trials, share = _trials_and_jobs(config.to_dict(), submit_from_jobs)
    except ValueError as err:
        problems.append(f"searcher.name: {err}")
    problems += sampler_problems(config.to_dict())
    problems += warm_start_problems(config.to_dict(), store)
    report = probe(store.path, fast=True)
    problems += [f"{error}; `detslurm doctor` tells more" for error in report.errors]
    if problems:
        raise SubmitError("\n".join(problems))
    try:
        limits = cluster.limits()
        jobs = plan_job(config, site, limits, share)
    except (SlurmError, PlanError) as err:
        raise SubmitError(str(err)) from err
    problem = cluster.time_problem(jobs.template)
    if problem:
        raise SubmitError(problem)
    elsewhere = cluster.name != "local"  # a local job sees what this process sees
    return Plan(
        config=config,
        text=loaded.text,
        context=context,
        trials=trials,
        each=config.slurm.trials_per_job,
        jobs=jobs,
        on_preempt=_on_preempt(config, limits, jobs.template),
        kill_wait=limits.kill_wait,
        warnings=(
            *loaded.warnings,
            *found.warnings,
            *_search_notes(config.to_dict()),
            *context.notes,
            *jobs.notes,
            *(report.warnings if elsewhere else ()),
        ),
        submit_from_jobs=submit_from_jobs,
    )


def _trials_and_jobs(config: dict[str, Any], submit_from_jobs: bool) -> tuple[int, int]:
    """How many trials there are, or may be, and how many jobs for them. Raises `ValueError`.

    The jobs of a search are workers: as many as trials may run at once, and where jobs must not
    submit others, one for each trial that there may be.
    """
    searcher, each = config["searcher"], config["slurm"]["trials_per_job"]
    if searcher["name"] in RUNNABLE:
        trials = trial_count(searcher, config["hyperparameters"])
        return trials, -(-trials // each)
    first = Search.from_config(config).initial().created
    trials = max(searcher.get("max_trials") or 0, first) or BLOCK
    at_once = first if submit_from_jobs or not first else trials
    return trials, -(-at_once // each)


def _search_notes(config: dict[str, Any]) -> list[str]:
    if config["searcher"]["name"] in RUNNABLE:
        return []
    from detslurm.searcher.preview import preview, shortfall

    note = shortfall(preview(config))
    return [] if note is None else [note]


def requests(
    plan: Plan, experiment_dir: Path, *, name: str = "det", paused: bool = False
) -> Iterator[tuple[JobArray, JobRequest]]:
    """The jobs of a plan as they are submitted, less the dependencies among them."""
    for array in plan.jobs.arrays:
        yield (
            array,
            plan.jobs.request(
                array,
                name=name,
                command=_command(plan, experiment_dir, array),
                folder=experiment_dir / "jobs",
                comment=plan.config.name,
                hold=paused,
            ),
        )


def _command(plan: Plan, experiment_dir: Path, array: JobArray) -> tuple[str, ...]:
    if plan.is_search:
        return runner_command(experiment_dir, 0)
    return runner_command(experiment_dir, array.first * plan.each, plan.each)


def check(plan: Plan, *, cluster: Cluster, store: Store) -> None:
    """Ask the cluster whether it would take the job. Raises `SubmitError`."""
    refusals = cluster.check(_first_request(plan, store.path / "experiments" / "0", store.path))
    if refusals:
        raise SubmitError("\n".join(refusals))


def _first_request(plan: Plan, experiment_dir: Path, folder: Path) -> JobRequest:
    """The job of the first element: what all others are like."""
    array = plan.jobs.arrays[0] if plan.jobs.arrays else JobArray(0, 1)
    return plan.jobs.request(
        array,
        name=f"det-{experiment_dir.name}",
        command=_command(plan, experiment_dir, array),
        folder=folder,
        comment=plan.config.name,
    )


def submit(
    plan: Plan,
    *,
    cluster: Cluster,
    store: Store,
    paused: bool = False,
    runner: str | None = None,
) -> Submitted:
    """Create the experiment and queue its jobs, or raise `SubmitError` and queue nothing.

    A crash at any moment leaves either no experiment, or one that says what was queued. `runner`
    is a mark of whoever runs the method of a custom search.
    """
    experiment = store.new_experiment()
    with experiment.freeze_code() as stage:
        freeze(plan.context, Path(stage))
    first_trial = store.reserve_trials(experiment.id, plan.trials)
    experiment.prepare_trials(first_trial, plan.trials)
    experiment.write_config(plan.config.to_dict(), plan.text, plan.config.masked())
    created = _created(plan, first_trial, cluster.name)
    if plan.is_search:
        created |= _about_search(plan, runner)
        fs.claim_directory(experiment.search)
    experiment.create(created)
    if paused:
        experiment.append({"type": "intent", "intent": "pause"})
    job_ids: list[str] = []
    name = f"det-{experiment.id}"
    try:
        for array, request in requests(plan, experiment.path, name=name, paused=paused):
            after = job_ids[array.after] if array.after is not None else None
            dependent = request.with_changes(dependency=f"afterany:{after}" if after else None)
            job_ids.append(cluster.submit(dependent))
            first, each = (0, 1) if plan.is_search else (array.first * plan.each, plan.each)
            experiment.append(submitted_fact(cluster.name, job_ids[-1], first, request, each=each))
        if not plan.jobs.arrays:
            _keep_template(plan, experiment)
        elif plan.is_search:
            job_ids.append(_submit_standby(experiment, cluster, job_ids, hold=paused))
    except BaseException as err:
        _take_back(experiment, cluster, job_ids)
        if isinstance(err, SlurmError):
            raise SubmitError(f"the cluster refused the job: {err}{_size(plan, err)}") from err
        raise
    return Submitted(experiment.id, first_trial, plan.trials, tuple(job_ids))


def _take_back(experiment: ExperimentDir, cluster: Cluster, job_ids: Sequence[str]) -> None:
    """Nothing half submitted: what is queued leaves the queue, and the experiment is gone."""
    try:
        experiment.append({"type": "intent", "intent": "delete"})
    finally:
        with contextlib.suppress(SlurmError):  # then runners find the intent
            cluster.cancel(job_ids)
    if not job_ids:  # else a runner may have begun that reads them
        from detslurm.sdk.deletion import delete
        from detslurm.sdk.snapshot import read

        with contextlib.suppress(StoreError, OSError):
            delete(read(experiment))


def _size(plan: Plan, refusal: SlurmError) -> str:
    """How many jobs it would have been, where that is the reason."""
    if "trials_per_job" not in refusal.advice:
        return ""
    return f" It is {plan.each} now, which makes {plan.workers} elements."


def _created(plan: Plan, first_trial: int, cluster: str) -> dict[str, Any]:
    config = plan.config.to_dict()
    searcher, resources = config["searcher"], config["resources"]
    return {
        "name": config["name"],
        "description": config["description"],
        "labels": config["labels"],
        "time": time.time(),
        "first_trial": first_trial,
        "trials": plan.trials,
        "metric": searcher["metric"],
        "smaller_is_better": searcher.get("smaller_is_better", True),
        "slots": resources["slots_per_trial"],
        "pool": plan.jobs.template.partition or "",
        "max_restarts": config["max_restarts"],
        "cluster": cluster,
        "on_preempt": plan.on_preempt,
        "kill_wait": plan.kill_wait,
        "signal_lead": plan.jobs.template.signal_lead,
    }


def _about_search(plan: Plan, runner: str | None) -> dict[str, Any]:
    said = {"search": True, "submit_from_jobs": plan.submit_from_jobs}
    limit = throttle(plan.config)
    workers = plan.workers if limit is None else min(plan.workers, limit)
    return {**said, "workers": workers, **({"runner": runner} if runner is not None else {})}


def _submit_standby(
    experiment: ExperimentDir, cluster: Cluster, jobs: Sequence[str], *, hold: bool
) -> str:
    """One more worker, which waits until all others are gone: should they have been killed."""
    request = standby_request(experiment.facts(), experiment.path, jobs)
    job_id = cluster.submit(request.with_changes(hold=hold))
    experiment.append(submitted_fact(cluster.name, job_id, 0, request, standby=True))
    return job_id


def _keep_template(plan: Plan, experiment: ExperimentDir) -> None:
    """What a job of this search is like, though none is wanted yet: its method begins later."""
    request = _first_request(plan, experiment.path, experiment.jobs)
    experiment.append({"type": "submitted", "jobs": [], "request": kept(request)})


def _prepared(config: ExperimentConfig, files: Collection[str]) -> bool:
    """Whether the job's environment is made by something that does not run here."""
    slurm, variables = config.slurm, config.environment.environment_variables
    names = [name for device in DEVICES for name in variables.of(device)]
    return bool(
        slurm.setup
        or slurm.modules
        or slurm.container_prefix
        or _STARTUP_HOOK in files
        or any(name == "PATH" or name.startswith("PYTHON") for name in names)
    )


def _on_preempt(config: ExperimentConfig, limits: ClusterLimits, request: JobRequest) -> str:
    """How a job gives way: requeue itself, or queue a successor where requeueing is void."""
    wanted = config.slurm.on_preempt
    if wanted != "auto":
        return wanted
    partition = limits.partition(request.partition)
    return "successor" if partition and "CANCEL" in partition.preempt_mode else "requeue"
