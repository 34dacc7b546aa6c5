"""From an experiment's configuration to its submission; pure, so that --dry-run shows all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm._base.quantities import counted
from detslurm.config.sbatch_args import refuse
from detslurm.slurm.arrays import JobArray, plan_arrays
from detslurm.slurm.interface import ClusterLimits, PartitionLimits
from detslurm.slurm.layout import PlanError, layout
from detslurm.slurm.priority import nice_of, priority_of_weight
from detslurm.slurm.request import JobRequest, Layout

if TYPE_CHECKING:
    from detslurm.config import ExperimentConfig, SiteProfile


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything about an experiment's jobs but their names, commands and folder."""

    template: JobRequest
    arrays: tuple[JobArray, ...]
    slot_type: str
    notes: tuple[str, ...] = ()

    def request(
        self,
        array: JobArray,
        *,
        name: str,
        command: Sequence[str],
        folder: Path,
        comment: str | None = None,
        hold: bool = False,
    ) -> JobRequest:
        """The job of one array, less its dependency on others."""
        return self.template.with_changes(
            name=name,
            command=tuple(command),
            folder=folder,
            comment=comment,
            hold=hold,
            count=array.count if array.count > 1 else None,
            throttle=array.throttle if array.count > 1 else None,
        )


def plan_job(
    config: ExperimentConfig,
    site: SiteProfile | None,
    limits: ClusterLimits | None,
    trials: int,
) -> JobPlan:
    """The plan for this number of trials. Raises PlanError for what the cluster does not offer."""
    check_sbatch_args(config.slurm.sbatch_args)
    local = limits is not None and limits.cluster == "local"
    partition = None if local else config.resources.resource_pool or None
    here = limits.partition(partition) if limits is not None else None
    slot_type = _slot_type(config, here)
    slots = config.resources.slots_per_trial
    if local:
        _check_local(slots, slot_type, here)
        wanted = Layout()
    else:
        wanted = _layout(config, site, here, slot_type)
    minutes = _time_minutes(config)
    template = JobRequest(
        name="detslurm",
        command=("true",),
        folder=Path("/"),
        slots=slots,
        slot_type=slot_type,
        **asdict(wanted),
        partition=partition,
        account=config.slurm.account,
        qos=config.slurm.qos,
        constraint=config.slurm.constraint,
        time_minutes=minutes,
        nice=_nice(config, limits),
        requeue=config.slurm.on_preempt != "successor",
        signal_lead=signal_lead(config.slurm.signal_lead, minutes, here),
        sbatch_args=tuple(dict.fromkeys(config.slurm.sbatch_args)),
        modules=config.slurm.modules,
        setup=config.slurm.setup,
    )
    arrays = plan_arrays(
        trials,
        max_array_size=limits.max_array_size if limits is not None else 1001,
        max_array_tasks=limits.max_array_tasks if limits is not None else None,
        throttle=throttle(config),
    )
    return JobPlan(template, arrays, slot_type, _notes(limits, here, partition, trials))


def check_sbatch_args(arguments: Sequence[str]) -> None:
    """PlanError for the first option that detslurm must set itself."""
    for entry in arguments:
        reason = refuse(entry)
        if reason:
            raise PlanError(f"slurm.sbatch_args: {reason}")


def throttle(config: ExperimentConfig) -> int | None:
    """How many trials may run at once: searcher.max_concurrent_trials and resources.max_slots."""
    bounds = []
    concurrent = getattr(config.searcher, "max_concurrent_trials", 0)
    if concurrent:
        bounds.append(concurrent)
    slots, most = config.resources.slots_per_trial, config.resources.max_slots
    if most is not None and slots:
        if most < slots:
            raise PlanError(
                f"resources.max_slots ({most}) is less than one trial's slots ({slots}):"
                " no trial could ever start"
            )
        bounds.append(most // slots)
    return min(bounds, default=None)


def signal_lead(wanted: int, minutes: int | None, here: PartitionLimits | None) -> int:
    """Seconds before the limit for SIGUSR1: at most a third of the time that there is.

    A lead as long as the limit itself would end every segment as soon as it begins.
    """
    if not minutes:
        minutes = (here.default_time or here.max_time) if here is not None else None
    return min(wanted, minutes * 60 // 3) if minutes else wanted


def _slot_type(config: ExperimentConfig, here: PartitionLimits | None) -> str:
    """The configured type, else GPUs where the partition has some (or nothing is known of it)."""
    if config.slurm.slot_type:
        return config.slurm.slot_type
    return "cpu" if here is not None and here.gpus_per_node == 0 else "cuda"


def _layout(
    config: ExperimentConfig,
    site: SiteProfile | None,
    here: PartitionLimits | None,
    slot_type: str,
) -> Layout:
    wanted = layout(
        config.resources.slots_per_trial,
        slot_type,
        slots_per_node=config.slurm.slots_per_node,
        gpu_type=config.slurm.gpu_type,
        gres=site.gres_supported if site is not None else True,
        tres=site.tres_supported if site is not None else True,
        single_node=bool(config.resources.is_single_node),
        limits=here,
    )
    if here is not None and here.max_nodes is not None and wanted.nodes > here.max_nodes:
        raise PlanError(
            f"a trial of {counted(config.resources.slots_per_trial, 'slot')} needs"
            f" {counted(wanted.nodes, 'node')} and"
            f" partition {here.name} gives a job at most {here.max_nodes}"
        )
    return wanted


def _check_local(slots: int, slot_type: str, here: PartitionLimits | None) -> None:
    have = here and (here.cpus_per_node if slot_type == "cpu" else here.gpus_per_node)
    if slots > (have or 0):
        what = "CPUs" if slot_type == "cpu" else "GPUs"
        raise PlanError(
            f"resources.slots_per_trial is {slots}, and this machine has {have or 0} {what}"
            " (slurm.slot_type chooses between cpu and cuda)"
        )


def _nice(config: ExperimentConfig, limits: ClusterLimits | None) -> int | None:
    """Where both are given, priority counts: Determined has one of them act at a time, too.

    Without either, a job gets the nice of the default priority, for the room above it, only where
    an hour of waiting makes up for that. Elsewhere jobs of others would pass it, perhaps all.
    """
    given, weight = config.resources.priority, config.resources.weight
    nice = nice_of(priority_of_weight(weight) if given is None else given)
    if given is None and weight == 1 and (limits is None or limits.age_points < nice):
        return None
    return nice


def _time_minutes(config: ExperimentConfig) -> int | None:
    """The time limit in whole minutes, rounded up; 0 asks Slurm for none at all."""
    if config.slurm.time is None:
        return None
    seconds = config.slurm.time_seconds
    return 0 if seconds is None else -(-seconds // 60)


def _notes(
    limits: ClusterLimits | None, here: PartitionLimits | None, partition: str | None, trials: int
) -> tuple[str, ...]:
    """Advice for the user that is not an error."""
    if limits is None or limits.cluster == "local":
        return ()
    notes = []
    if not limits.partitions:
        notes.append("this site's partitions are not shown to you: their limits are unknown")
    elif partition and here is None:
        known = ", ".join(limits.partitions)
        notes.append(f"partition {partition} is not known here (there are: {known})")
    if here is not None and not here.up:
        notes.append(f"partition {here.name} is down: jobs will wait")
    if trials > limits.max_job_count:
        notes.append(f"{trials} trials are more than the cluster's MaxJobCount")
    return tuple(notes)
