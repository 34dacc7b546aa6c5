"""Submission: from a configuration and a directory of code to jobs in the queue."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm.sdk.context import ContextFiles, collect, freeze
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.preflight import entrypoint_problems

from detslurm.config import ExperimentConfig, LoadedExperiment, SiteProfile
from detslurm.searcher import RUNNABLE, trial_count
from detslurm.slurm import Cluster, ClusterLimits, JobRequest, SlurmError
from detslurm.slurm.plan import Chunk, JobPlan, PlanError, plan_job
from detslurm.slurm.succession import runner_command, submitted_fact
from detslurm.store import Store, probe

_STARTUP_HOOK = "startup-hook.sh"


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before anything is written or queued."""

    config: ExperimentConfig
    text: str
    context: ContextFiles
    trials: int
    jobs: JobPlan
    on_preempt: str
    kill_wait: int
    warnings: tuple[str, ...]


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
    problems = entrypoint_problems(config.entrypoint, context, prepared=_prepared(config, context))
    plain = config.to_dict()
    searcher, space = plain["searcher"], plain["hyperparameters"]
    if searcher["name"] not in RUNNABLE:
        known = ", ".join(RUNNABLE)
        problems.append(
            f"searcher.name: {searcher['name']} is not supported yet; this version runs {known}"
        )
    report = probe(store.path, fast=True)
    problems += [f"{error}; `detslurm doctor` tells more" for error in report.errors]
    if problems:
        raise SubmitError("\n".join(problems))
    trials = trial_count(searcher, space)
    try:
        limits = cluster.limits()
        jobs = plan_job(config, site, limits, trials)
    except (SlurmError, PlanError) as err:
        raise SubmitError(str(err)) from err
    elsewhere = cluster.name != "local"  # a local job sees what this process sees
    return Plan(
        config=config,
        text=loaded.text,
        context=context,
        trials=trials,
        jobs=jobs,
        on_preempt=_on_preempt(config, limits, jobs.template),
        kill_wait=limits.kill_wait,
        warnings=(
            *loaded.warnings,
            *context.notes,
            *jobs.notes,
            *(report.warnings if elsewhere else ()),
        ),
    )


def requests(
    plan: Plan, experiment_dir: Path, *, name: str = "det", paused: bool = False
) -> Iterator[tuple[Chunk, JobRequest]]:
    """The jobs of a plan as they are submitted, less the dependencies among them."""
    for chunk in plan.jobs.chunks:
        yield (
            chunk,
            plan.jobs.request(
                chunk,
                name=name,
                command=runner_command(experiment_dir, chunk.first),
                folder=experiment_dir / "jobs",
                comment=plan.config.name,
                hold=paused,
            ),
        )


def check(plan: Plan, *, cluster: Cluster, store: Store) -> None:
    """Ask the cluster whether it would take the job. Raises `SubmitError`."""
    _, first = next(requests(plan, store.path / "experiments" / "0"))
    refusals = cluster.check(first.with_changes(folder=store.path))
    if refusals:
        raise SubmitError("\n".join(refusals))


def submit(plan: Plan, *, cluster: Cluster, store: Store, paused: bool = False) -> Submitted:
    """Create the experiment and queue its jobs, or raise `SubmitError` and queue nothing.

    A crash at any moment leaves either no experiment, or one that says what was queued.
    """
    experiment = store.new_experiment()
    with experiment.freeze_code() as stage:
        freeze(plan.context, Path(stage))
    first_trial = store.reserve_trials(experiment.id, plan.trials)
    experiment.prepare_trials(first_trial, plan.trials)
    experiment.write_config(plan.config.to_dict(), plan.text)
    experiment.create(_created(plan, first_trial, cluster.name))
    if paused:
        experiment.append({"type": "wish", "wish": "pause"})
    job_ids: list[str] = []
    name = f"det-{experiment.id}"
    try:
        for chunk, request in requests(plan, experiment.path, name=name, paused=paused):
            after = job_ids[chunk.after] if chunk.after is not None else None
            dependent = request.with_changes(dependency=f"afterany:{after}" if after else None)
            job_ids.append(cluster.submit(dependent))
            experiment.append(submitted_fact(cluster.name, job_ids[-1], chunk.first, request))
    except BaseException as err:
        # Nothing half submitted: what is queued already is taken back, and the store says so.
        experiment.append({"type": "wish", "wish": "kill"})
        if job_ids:
            cluster.cancel(job_ids)
        if isinstance(err, SlurmError):
            raise SubmitError(f"the cluster refused the job: {err}") from err
        raise
    return Submitted(experiment.id, first_trial, plan.trials, tuple(job_ids))


def _created(plan: Plan, first_trial: int, cluster: str) -> dict[str, Any]:
    config = plan.config.to_dict()
    searcher, resources = config["searcher"], config["resources"]
    return {
        "name": config["name"],
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


def _prepared(config: ExperimentConfig, context: ContextFiles) -> bool:
    """Whether the job's environment is made by something that does not run here."""
    slurm = config.slurm
    return bool(slurm.setup or slurm.modules or slurm.container_prefix) or any(
        file.name == _STARTUP_HOOK for file in context.files
    )


def _on_preempt(config: ExperimentConfig, limits: ClusterLimits, request: JobRequest) -> str:
    """How a job gives way: requeue itself, or queue a successor where requeueing is void."""
    wanted = config.slurm.on_preempt
    if wanted != "auto":
        return wanted
    partition = limits.partition(request.partition)
    return "successor" if partition and "CANCEL" in partition.preempt_mode else "requeue"
