"""The experiments of a selftest: each tries one thing that users will need. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from detslurm._base.states import PREEMPTED, TIME_LIMIT
from detslurm.slurm import ClusterLimits, NodeInfo, PartitionLimits

ARRAY_TRIALS: Final = 4
_BY_PARTITION: Final = "preempt/partition_prio"
_TRAIN: Final = "python3 train.py"
# A plugin may remove --exclusive, and OverSubscribe=FORCE overrules it. Then other users' jobs on
# the node would give way, too. With its deadline Slurm drops the job that preempts, at the latest a
# minute before the trial leaves the node to others.
_RAISE: Final = (
    'scontrol --oneliner show job "$SLURM_JOB_ID" | grep -q " OverSubscribe=NO "'
    ' || {{ echo "the node is shared with other jobs" >&2; exit 1; }};'
    " env -u SBATCH_PARTITION -u SBATCH_EXCLUSIVE sbatch --parsable --partition={high} --nodes=1"
    ' --nodelist="$SLURMD_NODENAME" --time=1 --deadline=now+4minutes --output=/dev/null{options}'
    ' --job-name=detslurm-selftest --wrap=true >> "{folder}/preemptor"'
)


@dataclass(frozen=True, kw_only=True)
class Story:
    """One experiment."""

    name: str  # of its line in the table
    entrypoint: str
    remedy: str
    figure: int | None = None  # what its trial has to report
    shown: str = ""  # that in words
    leaves: str | None = None  # how its first run has to end, so that a second one goes on
    surely_leaves: bool = True  # whether a failure before that is the site's
    slots: int = 1
    trials: int = 1
    slurm: dict[str, Any] = field(default_factory=dict)  # more of that section
    pool: str | None = None  # by default the selftest's

    def config(
        self, pool: str | None, exclude: Sequence[str], storage: Path, options: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The configuration of the experiment, on nodes that are not in `exclude`, with the
        site's `options` of sbatch."""
        partition = self.pool or pool
        without = [f"--exclude={','.join(exclude)}"] if exclude else []
        arguments = [*options, *self.slurm.get("sbatch_args", ()), *without]
        many = {"index": {"type": "categorical", "vals": list(range(self.trials))}}
        return {
            "name": f"selftest: {self.name}",
            "entrypoint": self.entrypoint,
            "max_restarts": 0,
            "hyperparameters": many if self.trials > 1 else {},
            "searcher": {
                "name": "grid" if self.trials > 1 else "single",
                "metric": "figure",
                "max_length": 2,
            },
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(storage)},
            "resources": {
                "slots_per_trial": self.slots,
                **({"resource_pool": partition} if partition else {}),
            },
            "slurm": {
                "time": 5,
                "signal_lead": 60,  # less than `time`, whatever the site's
                "stage_environment": False,
                **self.slurm,
                "sbatch_args": arguments,
            },
        }


def stories(
    limits: ClusterLimits,
    pool: str | None,
    nodes: Sequence[NodeInfo],
    folder: Path,
    *,
    mpi: bool,
    options: str = "",
) -> Iterator[Story]:
    """The experiments for a cluster, those that take longest first.

    `nodes` are empty where the site does not show them; `options` are those of sbatch for jobs of
    the site, after a blank.
    """
    here = limits.partition(pool)
    yield Story(
        name="time limit",
        entrypoint=f"{_TRAIN} first true",
        leaves=TIME_LIMIT,
        remedy="Jobs must get --signal before their limit, and may submit a successor (sbatch)"
        " from a node: see submit_from_jobs in the site profile.",
        slurm={"time": 2, "signal_lead": 60, "on_preempt": "successor"},
    )
    yield Story(
        name="requeue",
        entrypoint=f"{_TRAIN} first 'scancel --signal=TERM \"$SLURM_JOB_ID\"'",
        leaves=PREEMPTED,
        remedy="Allow `scontrol requeue` from a node, and leave --requeue to jobs; else set"
        " on_preempt: successor in the site profile.",
        slurm={"time": 10, "on_preempt": "requeue"},
    )
    if (pair := preemptible(limits, pool)) is not None:
        low, high = pair
        command = _RAISE.format(high=high.name, folder=folder, options=options)
        yield Story(
            name="preemption",
            entrypoint=f"{_TRAIN} first '{command}'",
            leaves=PREEMPTED,
            surely_leaves=False,  # the user may not be admitted to the higher partition
            remedy=f"Check PreemptType, and PreemptMode and GraceTime of partition {low.name}.",
            slurm={"time": 10, "sbatch_args": ["--exclusive"]},
            pool=low.name,
        )
    count = len(nodes) if nodes else len(here.nodes) if here is not None else 0
    if count != 1 and not (here is not None and here.max_nodes == 1):
        two: dict[str, Any] = {"slots": 2, "figure": 2, "shown": "2 of 2 ranks"}
        yield Story(
            name="two nodes",
            entrypoint=f"{_TRAIN} nodes",
            remedy="Nodes must reach each other by TCP on high ports; slurm.network_interface names"
            " the network.",
            slurm={"slots_per_node": 1},
            **two,
        )
        if mpi:
            yield Story(
                name="MPI",
                entrypoint="python3 -m detslurm.launch.mpi train.py mpi",
                remedy="`srun --mpi=list` must offer what this Python's MPI needs; set slurm.mpi.",
                slurm={"slots_per_node": 1},
                **two,
            )
    if here is not None and here.gpus_per_node:
        yield Story(
            name="GPU",
            entrypoint=_TRAIN,
            figure=1,
            shown="1 GPU",
            remedy="Slurm must set CUDA_VISIBLE_DEVICES (or ROCR_VISIBLE_DEVICES) for a job with a"
            " GPU; see slot_type and gpu_type in the site profile.",
            slurm={"slot_type": "cuda"},
        )
    yield Story(
        name="array",
        entrypoint=_TRAIN,
        trials=ARRAY_TRIALS,
        remedy="Read the reason; `detslurm doctor` checks store, Slurm and Python.",
    )


def preemptible(
    limits: ClusterLimits, pool: str | None
) -> tuple[PartitionLimits, PartitionLimits] | None:
    """A partition whose jobs give way, the pool if possible, and one whose jobs preempt them.

    Jobs of the first must not take the place of others themselves: its trial wants a whole node.
    """
    if limits.preempt_type != _BY_PARTITION:
        return None
    up = [p for p in limits.partitions.values() if p.up and _is_open(p)]
    low = [p for p in up if {"REQUEUE", "CANCEL"} & set(p.preempt_mode.split(","))]
    low = [p for p in low if not displaces(limits, p)]
    for victim in sorted(low, key=lambda p: p.name != (pool or limits.default_partition)):
        above = [p for p in up if p.priority_tier > victim.priority_tier]
        above = [p for p in above if set(p.nodes) >= set(victim.nodes)]
        if above:
            return victim, min(above, key=lambda p: p.priority_tier)
    return None


def displaces(limits: ClusterLimits, partition: PartitionLimits | None) -> bool:
    """Whether jobs of a partition may take the place of other users' jobs; True if unknown."""
    if limits.preempt_type in ("preempt/none", "(null)"):
        return False
    if partition is None or limits.preempt_type != _BY_PARTITION:
        return True
    return any(
        not {"REQUEUE", "CANCEL", "SUSPEND"}.isdisjoint(p.preempt_mode.split(","))
        and p.priority_tier < partition.priority_tier
        and not (p.nodes and partition.nodes and {*p.nodes}.isdisjoint(partition.nodes))
        for p in limits.partitions.values()
    )


def _is_open(partition: PartitionLimits) -> bool:
    """Whether it admits everybody, as far as is known."""
    return not (partition.allow_accounts or partition.allow_groups or partition.allow_qos)
