"""The text of a site profile, filled in from Slurm's own information."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from detslurm._base.quantities import counted
from detslurm.slurm.interface import ClusterLimits, PartitionLimits

_HEAD = """\
# Site profile of the cluster {cluster}, written from `scontrol show config` and `show partition`.
# It lies below every experiment that is submitted here: what an experiment sets itself, wins.
# Use it as ~/.config/detslurm/site.yaml, for all users as /etc/detslurm/site.yaml, or name it in
# $DETSLURM_SITE.
"""
_TAIL = """\
# root: /scratch/$USER/detslurm       # where experiments, logs and checkpoints are kept
# account: my-project                 # --account of every job
# modules: [cuda/12.4]
# setup: ["source /opt/site/env.sh"]  # shell lines before every trial
"""
_MPI_PREFERENCE = ("pmix", "pmi2", "cray_shasta")


def site_profile_from(limits: ClusterLimits, mpi_types: Sequence[str] = ()) -> str:
    """YAML of a site profile that fits; `mpi_types` is what `srun --mpi=list` names."""
    return "\n".join([_HEAD.format(cluster=limits.cluster), *_settings(limits, mpi_types), _TAIL])


def _settings(limits: ClusterLimits, mpi_types: Sequence[str]) -> Iterator[str]:
    gpus = "gpu" in limits.gres_types
    has_gpus = any(p.gpus_per_node for p in limits.partitions.values())
    if limits.default_partition:
        yield f"partition: {_text(limits.default_partition)}"
    yield f"slot_type: {'cuda' if has_gpus else 'cpu'}"
    yield f"gres_supported: {json.dumps(gpus)}"
    yield f"tres_supported: {json.dumps(gpus and limits.tres_gpus)}"
    mpi = next((name for name in _MPI_PREFERENCE if name in mpi_types), None)
    if mpi:
        yield f"mpi: {mpi}"
    yield ""
    yield "partitions:"
    for partition in limits.partitions.values():
        yield from _partition(partition, has_gpus)


def _partition(partition: PartitionLimits, site_has_gpus: bool) -> Iterator[str]:
    longest = "no limit" if partition.max_time is None else counted(partition.max_time, "minute")
    yield f"  # {_layout(partition)}; time limit: {longest}"
    yield f"  {_text(partition.name)}:"
    yield f"    preempt_mode: {_preempt_mode(partition)}"
    if partition.grace_time:
        yield f"    grace_time: {partition.grace_time}"
    if site_has_gpus:
        yield f"    slot_type: {'cuda' if partition.gpus_per_node else 'cpu'}"
    if len(partition.gpu_types) > 1:
        kinds = ", ".join(partition.gpu_types)
        yield f"    # gpu_type: one of {kinds}"


def _layout(partition: PartitionLimits) -> str:
    parts = [counted(len(partition.nodes), "node")]
    if partition.cpus_per_node:
        parts.append(f"{counted(partition.cpus_per_node, 'CPU')} each")
    if partition.gpus_per_node:
        kinds = "/".join(partition.gpu_types)
        parts.append(
            f"{counted(partition.gpus_per_node, 'GPU')} each" + (f" ({kinds})" if kinds else "")
        )
    return ", ".join(parts)


def _preempt_mode(partition: PartitionLimits) -> str:
    modes = partition.preempt_mode.lower().split(",")
    known = ("requeue", "cancel", "suspend", "gang")
    return next((mode for mode in known if mode in modes), '"off"')


def _text(value: str) -> str:
    return value if value.isidentifier() and value.lower() not in _YAML_WORDS else json.dumps(value)


_YAML_WORDS = frozenset({"on", "off", "yes", "no", "y", "n", "true", "false", "null"})
