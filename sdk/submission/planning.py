"""The plan of a submission: everything that is decided before anything is written or queued."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from detslurm.config import ExperimentConfig, LoadedExperiment, SiteProfile
from detslurm.config.schema.environment import DEVICES
from detslurm.config.schema.storage import SharedFS
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.provenance.collecting import CodeSource, ProvenanceCollector
from detslurm.sdk.submission import requeue_owners, startup_hook
from detslurm.sdk.submission.accelerate_defaults import accelerate_notes
from detslurm.sdk.submission.argument_checks import file_problems
from detslurm.sdk.submission.containers import (
    container_notes,
    container_problems,
    runs_in_container,
)
from detslurm.sdk.submission.context import ContextFiles, collect
from detslurm.sdk.submission.deferring import Deferral, within_quotas
from detslurm.sdk.submission.derivation import Derivation
from detslurm.sdk.submission.dropped_arguments import dropped_arguments
from detslurm.sdk.submission.entrypoint import check_entrypoint, one_node_problem, other_python
from detslurm.sdk.submission.environment import EnvironmentFiles, find_environment
from detslurm.sdk.submission.notice_checks import notice_notes
from detslurm.sdk.submission.preflight import (
    check_sampler,
    storage_notes,
    warm_start_problems,
)
from detslurm.sdk.submission.prior_results import prior_results
from detslurm.sdk.submission.recording import recording_problems
from detslurm.sdk.submission.sources import (
    Sources,
    source_checkpoint,
    source_notes,
    source_outputs,
    warm_start,
    warm_start_sources,
)
from detslurm.sdk.submission.unused import unused_note
from detslurm.searcher import Search, State, decides_by_results, trial_count
from detslurm.searcher.events import KnownResults
from detslurm.searcher.known import summary
from detslurm.searcher.preview import preview, shortfall
from detslurm.slurm import (
    Allowance,
    Cluster,
    ClusterLimits,
    JobPlan,
    JobRequest,
    PlanError,
    SlurmError,
    plan_job,
)
from detslurm.store import ExperimentDir, Store, probe, recall_used
from detslurm.store.search_records import BLOCK

_CUSTOM = """\
searcher.name: a custom search is submitted by the script that runs its method: \
call detslurm.searcher.LocalSearchRunner there (docs/custom-search.md)"""
_SERIAL = (
    "searcher.name: workers of pbt that wait for the end of a round leave, and jobs must not queue"
    " others here (submit_from_jobs: false): after the first round, members train one after the"
    " other"
)
_NOT_CUSTOM = "searcher.name: a search runner needs `custom`, not {!r}: its own method decides"


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before anything is written or queued."""

    cluster: Cluster
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
    method_runner: str | None = None  # what runs the method of a custom search
    sources: Sources = field(default_factory=dict)  # the checkpoints that it begins with
    source_checkpoint: str | None = None  # the latest of the trial that a warm start names
    source_outputs: str | None = None  # the directory of outputs that a warm start names
    derivation: Derivation | None = None  # the experiment that it comes from
    deferral: Deferral | None = None  # the trials that are submitted later
    environment: EnvironmentFiles | None = None  # what its nodes copy to their own disks
    provenance: ProvenanceCollector | None = None  # the record, while it is collected
    known: KnownResults | None = None  # of earlier experiments, for the search's log
    task: str | None = None  # the kind of a task; None for an experiment

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The configuration as plain data, converted once; read only."""
        return self.config.to_dict()

    @property
    def is_search(self) -> bool:
        """Whether results decide which trials there will be: its jobs are workers for any."""
        return decides_by_results(self.plain["searcher"])

    @property
    def known_summary(self) -> str:
        """How many results of earlier experiments the search begins with, for people."""
        return "" if self.known is None else summary(self.known)

    @property
    def workers(self) -> int:
        """How many elements all arrays have together, those of later ones included."""
        later = self.deferral.elements if self.deferral is not None else 0
        return sum(array.count for array in self.jobs.arrays) + later


def make_plan(
    loaded: LoadedExperiment,
    context_dir: Path,
    includes: Sequence[Path],
    *,
    cluster: Cluster,
    site: SiteProfile | None,
    store: Store,
    method_runner: str | None = None,
    parent: ExperimentDir | None = None,
    state: State | None = None,
) -> Plan:
    """Decide everything that can be decided now. Raises `SubmitError` naming all problems. `state`
    is that of a search which goes on."""
    config, plain = loaded.config, loaded.config.to_dict()
    place, root = context_dir.resolve(), store.path.resolve()
    if place == root:
        raise SubmitError(f"{context_dir} is the store: submit code from a directory of its own")
    outputs = {**_outputs(config, store), **_own_outputs(config, place)}
    frozen = place.is_relative_to(root / "experiments")
    context = collect(context_dir, includes, outputs, frozen=frozen)
    files = {file.name: file.source for file in context.files}
    prepared = _prepared(config, files)
    provenance = ProvenanceCollector(
        CodeSource(
            folder=place,
            python=_training_python(config, files),
            modules=config.slurm.modules,
            prepared=", ".join(prepared) or None,
            in_container=runs_in_container(config),
            copied_from=ExperimentDir.at(place.parent) if _is_copy(place, root) else None,
        )
    )
    found = check_entrypoint(config.entrypoint, files, prepared=bool(prepared))
    submit_from_jobs = site is None or site.submit_from_jobs
    trials, elements, problems = _counted(plain, submit_from_jobs, state)
    report = probe(store.path, fast=True)
    prior = plain["searcher"].get("prior_experiments")
    known = prior_results(plain, store, parent) if prior else None
    sampler = check_sampler(plain, known)
    problems = [
        *found.problems,
        *(context.notes if found.problems else ()),  # a file that is missed may be left out
        *problems,
        *file_problems(config, files),
        *dropped_arguments(config, files),
        *_runner_problems(plain["searcher"]["name"], method_runner),
        *startup_hook.problems(files),
        *container_problems(config, store.path),
        *recording_problems(plain, files),
        *sampler.problems,
        *warm_start_problems(plain, store),
        *(f"{error}; run `detslurm doctor` for details" for error in report.errors),
    ]
    if problems:
        raise SubmitError("\n".join(problems))
    staged = config.slurm.stage_environment
    environment = find_environment(staged) if staged else None
    limits, jobs = jobs_within(config, site, cluster, elements)
    if jobs.template.nodes > 1 and (problem := one_node_problem(config.entrypoint)):
        raise SubmitError(problem)
    slot_type = jobs.template.slot_type
    source = source_checkpoint(plain, store)
    begins_with = warm_start(plain, store, source)
    allowed = _allowed(cluster, jobs.template)
    is_search = decides_by_results(plain["searcher"])
    jobs, deferral, quota_note = within_quotas(jobs, allowed, limits, is_search=is_search)
    visible = report.warnings if cluster.name != "local" else ()  # a local job runs right here
    unused = _unused_notes(store, plain, cpu_slots=slot_type == "cpu")
    staging = [] if environment is None else _staging_notes(environment, config)
    notes = (
        *found.warnings,
        *accelerate_notes(config.entrypoint, jobs.template),
        *(requeue_owners.notes(config.entrypoint, files) if config.preempt_signal else ()),
        *startup_hook.notes(files, in_container=runs_in_container(config, slot_type)),
        *container_notes(config, site, slot_type, os.environ),
        *staging,
        *_search_notes(plain, submit_from_jobs, state),
        *context.notes,
        *source_notes(store, begins_with),
        *jobs.notes,
        *([quota_note] if quota_note else []),
        *storage_notes(config),
        *notice_notes(config, site),
        *sampler.notes,
    )
    return Plan(
        cluster=cluster,
        config=config,
        text=loaded.text,
        context=context,
        trials=trials,
        each=config.slurm.trials_per_job,
        jobs=jobs,
        on_preempt=_on_preempt(config, limits, jobs.template),
        kill_wait=limits.kill_wait,
        warnings=(*loaded.warnings, *notes, *visible, *unused),
        submit_from_jobs=submit_from_jobs,
        method_runner=method_runner,
        sources=warm_start_sources(store, begins_with),
        source_checkpoint=source,
        source_outputs=source_outputs(plain, store),
        deferral=deferral,
        environment=environment,
        provenance=provenance,
        known=known,
    )


def _is_copy(place: Path, root: Path) -> bool:
    return place.parent.parent == root / "experiments" and place.name == "code"


def _training_python(config: ExperimentConfig, files: Mapping[str, Path]) -> str | None:
    staged = config.slurm.stage_environment
    if isinstance(staged, str):
        return str(Path(staged).expanduser().absolute() / "bin" / "python3")
    return other_python(config.entrypoint, files)


def _runner_problems(searcher: str, method_runner: str | None) -> Sequence[str]:
    if (searcher == "custom") == (method_runner is not None):
        return []
    return [_CUSTOM if method_runner is None else _NOT_CUSTOM.format(searcher)]


def _outputs(config: ExperimentConfig, store: Store) -> dict[Path, str]:
    """Paths that experiments write to, resolved; in a `directory` only the code knows them."""
    storage = config.checkpoint_storage
    checkpoints = (
        {Path(storage.path).resolve(): "checkpoints"} if isinstance(storage, SharedFS) else {}
    )
    return {**checkpoints, store.path.resolve(): "the store of experiments"}


def _own_outputs(config: ExperimentConfig, context: Path) -> dict[Path, str]:
    """The paths in the code's directory that no run begins with: each begins with the trial's."""
    paths = config.outputs.paths if config.outputs is not None else ()
    return {
        context / name: "outputs of an earlier training (a new trial begins without them)"
        for name in paths
    }


def _staging_notes(environment: EnvironmentFiles, config: ExperimentConfig) -> Sequence[str]:
    given = config.entrypoint or ""
    if f"{environment.prefix}/" not in (given if isinstance(given, str) else " ".join(given)):
        return []
    return [f"entrypoint: what it names in {environment.prefix} is run from there, not staged"]


def _unused_notes(store: Store, config: dict[str, Any], *, cpu_slots: bool) -> Sequence[str]:
    used = recall_used(store, config)
    found = unused_note(used, config, cpu_slots=cpu_slots) if used is not None else None
    return [] if found is None else [found]


def _allowed(cluster: Cluster, template: JobRequest) -> Allowance:
    found = cluster.allowance(template)
    if found.problem:
        raise SubmitError(found.problem)
    return found


def jobs_within(
    config: ExperimentConfig, site: SiteProfile | None, cluster: Cluster, elements: int
) -> tuple[ClusterLimits, JobPlan]:
    """The jobs within the cluster's limits. Raises `SubmitError`."""
    try:
        limits = cluster.limits()
        jobs = plan_job(config, site, limits, elements)
    except (SlurmError, PlanError) as err:
        raise SubmitError(str(err)) from err
    return limits, jobs


def _counted(
    config: dict[str, Any], submit_from_jobs: bool, state: State | None
) -> tuple[int, int, list[str]]:
    try:
        return *trials_and_jobs(config, submit_from_jobs, state), []
    except ValueError as err:
        return 0, 0, [f"searcher.name: {err}"]


def trials_and_jobs(
    config: Mapping[str, Any], submit_from_jobs: bool, state: State | None = None
) -> tuple[int, int]:
    """How many trials there are, or may be, and how many jobs for them. Raises `ValueError`. The
    jobs of a search are workers: as many as trials may run at once, and where jobs must not submit
    others, as many as there may be trials. A search that goes on begins in a `state`."""
    searcher, each = config["searcher"], config["slurm"]["trials_per_job"]
    if not decides_by_results(searcher):
        trials = trial_count(searcher, config["hyperparameters"])
        return trials, -(-trials // each)
    state = Search(config).initial() if state is None else state
    first = len(state.waiting())
    trials = max(preview(config).trials or BLOCK, state.created)
    at_once = first if submit_from_jobs else max(searcher.get("max_trials") or 0, first)
    return trials, -(-at_once // each)


def _search_notes(config: dict[str, Any], submit_from_jobs: bool, state: State | None) -> list[str]:
    if not decides_by_results(config["searcher"]):
        return []
    note = shortfall(preview(config)) if state is None else None
    serial = not submit_from_jobs and config["searcher"].get("num_rounds", 1) > 1
    return [*([] if note is None else [note]), *([_SERIAL] if serial else [])]


def _prepared(config: ExperimentConfig, files: Collection[str]) -> list[str]:
    slurm, variables = config.slurm, config.environment.environment_variables
    names = [name for device in DEVICES for name in variables.of(device)]
    sets_path = any(name == "PATH" or name.startswith("PYTHON") for name in names)
    found = {
        "slurm.setup": slurm.setup,
        "slurm.modules": slurm.modules,
        "slurm.container_prefix": slurm.container_prefix,
        "slurm.container": slurm.container != "none" and runs_in_container(config),
        "slurm.stage_environment": isinstance(slurm.stage_environment, str),
        startup_hook.NAME: startup_hook.NAME in files,
        "environment.environment_variables": sets_path,
    }
    return [name for name, given in found.items() if given]


def _on_preempt(config: ExperimentConfig, limits: ClusterLimits, request: JobRequest) -> str:
    wanted = config.slurm.on_preempt
    if wanted != "auto":
        return wanted
    partition = limits.partition(request.partition)
    mode = limits.preempt_mode if partition is None else partition.preempt_mode
    return "successor" if "CANCEL" in mode else "requeue"
