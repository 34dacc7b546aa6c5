"""Submitting a plan: the experiment in the store, and its jobs in the queue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.context import freeze
from detslurm.sdk.submission.planning import Plan
from detslurm.slurm import Cluster, JobRequest, SlurmError
from detslurm.slurm.plan import JobArray
from detslurm.slurm.resubmit import kept, runner_command, standby_request, submitted_fact
from detslurm.store import ExperimentDir, Store, StoreError, records


@dataclass(frozen=True)
class Submission:
    """An experiment that was submitted.

    Attributes:
        experiment_id: The id of the experiment.
        first_trial: The id of its first trial; the others follow.
        trials: The number of its trials; in a search, how many there may be.
        job_ids: The ids of the jobs that were queued.
        cluster: The name of the cluster.
    """

    experiment_id: int
    first_trial: int
    trials: int
    job_ids: tuple[str, ...]
    cluster: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for scripts."""
        return {
            "experiment_id": self.experiment_id,
            "trial_ids": list(range(self.first_trial, self.first_trial + self.trials)),
            "job_ids": list(self.job_ids),
        }


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


def check(plan: Plan, store: Store) -> None:
    """Ask the cluster whether it would accept the job. Raises `SubmitError`."""
    refusals = plan.cluster.check(
        _first_request(plan, store.path / "experiments" / "0", store.path)
    )
    if refusals:
        raise SubmitError("\n".join(refusals))


def _first_request(plan: Plan, experiment_dir: Path, folder: Path) -> JobRequest:
    """The job of the first element, which all others resemble."""
    array = plan.jobs.arrays[0] if plan.jobs.arrays else JobArray(0, 1)
    return plan.jobs.request(
        array,
        name=f"det-{experiment_dir.name}",
        command=_command(plan, experiment_dir, array),
        folder=folder,
        comment=plan.config.name,
    )


def submit(plan: Plan, store: Store, *, paused: bool = False) -> Submission:
    """Create the experiment and queue its jobs, or raise `SubmitError` and queue nothing.

    A crash at any moment leaves either no experiment, or one that records what was queued.
    """
    cluster = plan.cluster
    experiment = store.create_experiment(
        _created(plan),
        plan.config.to_dict(),
        plan.text,
        masked=plan.config.masked(),
        freeze=partial(freeze, plan.context),
    )
    first_trial = experiment.created().first_trial
    if paused:
        experiment.append(records.Intent(intent="pause"))
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
    return Submission(experiment.id, first_trial, plan.trials, tuple(job_ids), cluster.name)


def _take_back(experiment: ExperimentDir, cluster: Cluster, job_ids: Sequence[str]) -> None:
    """Undo a failed submission: cancel what is queued, and delete the experiment."""
    try:
        experiment.append(records.Intent(intent="delete"))
    finally:
        with contextlib.suppress(SlurmError):  # then runners find the intent
            cluster.cancel(job_ids)
    if not job_ids:  # else a runner may have begun that reads them
        from detslurm.sdk.deletion import delete
        from detslurm.sdk.snapshot import read

        with contextlib.suppress(StoreError, OSError):
            delete(read(experiment))


def _size(plan: Plan, refusal: SlurmError) -> str:
    """How many jobs it would have been, if that is the reason."""
    if "trials_per_job" not in refusal.advice:
        return ""
    return f" It is {plan.each} now, which makes {plan.workers} elements."


def _created(plan: Plan) -> records.Created:
    config = plan.config.to_dict()
    searcher, resources = config["searcher"], config["resources"]
    return records.Created(
        name=config["name"],
        description=config["description"],
        labels=config["labels"],
        trials=plan.trials,
        metric=searcher["metric"],
        smaller_is_better=searcher.get("smaller_is_better", True),
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
        runner=plan.method_runner,
    )


def _submit_standby(
    experiment: ExperimentDir, cluster: Cluster, jobs: Sequence[str], *, hold: bool
) -> str:
    """One more worker, which starts after all others have ended, in case they were killed."""
    request = standby_request(experiment.facts(), experiment.path, jobs)
    job_id = cluster.submit(request.with_changes(hold=hold))
    experiment.append(submitted_fact(cluster.name, job_id, 0, request, standby=True))
    return job_id


def _keep_template(plan: Plan, experiment: ExperimentDir) -> None:
    """Record the job of a search whose method starts later, for the first jobs to come."""
    request = _first_request(plan, experiment.path, experiment.jobs)
    experiment.append(records.Submitted(request=kept(request)))
