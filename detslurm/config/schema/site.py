"""The schema of site profiles: what a cluster's users share, below every experiment there."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from detslurm.config.fields import FrozenDict, Positive, Section, Text, must, word
from detslurm.config.schema.resources import BindMount
from detslurm.config.schema.slurm import ContainerRuntime, OnPreempt, SlotType, TimeLimit, Word
from detslurm.config.schema.storage import CheckpointStorage, absolute


def _root(value: Any) -> str | None:
    fine = value.startswith(("/", "~/", "$")) or value == "~"
    return None if fine else ""


class _Place(Section, frozen=True, kw_only=True):
    """The settings of a whole site, or of a partition, for their experiments."""

    slots_per_node: Positive | None = None
    gpu_type: Word | None = None
    slot_type: SlotType | None = None
    time: TimeLimit = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Text | None = None
    defaults: FrozenDict = FrozenDict()


class Partition(_Place, frozen=True, kw_only=True):
    """The profile of one partition; it goes below the configuration of experiments in it."""

    preempt_mode: Word | None = None
    grace_time: Annotated[int, Meta(ge=0)] | None = None


class SiteEnergy(Section, frozen=True, kw_only=True):
    """The site's energy: CO2 in grams for each kWh from the grid, its PUE, and whether Slurm's
    accounting has the energy of jobs."""

    co2_g_per_kwh: Annotated[float, Meta(ge=0)] | None = None
    pue: Annotated[float, Meta(ge=1)] = 1.0
    accounting: bool = False


class SiteProfile(_Place, frozen=True, kw_only=True):
    """A cluster as its users see it: what Slurm offers there, defaults, where things go."""

    root: Annotated[
        Text | None, must(_root, "an absolute path, or one that begins with ~/ or $NAME,")
    ] = None
    partition: Annotated[Text | None, must(word)] = None
    gres_supported: bool = True
    tres_supported: bool = True
    mpi: Word | None = None
    setup: tuple[str, ...] = ()
    modules: tuple[Word, ...] = ()
    container: ContainerRuntime | None = None
    container_args: tuple[Text, ...] = ()
    container_prefix: tuple[Text, ...] = ()
    image_root: Annotated[Text, must(absolute, "an absolute path")] | None = None
    private_tmp: bool | None = None
    bind_mounts: tuple[BindMount, ...] = ()
    on_preempt: OnPreempt | None = None
    signal_lead: Annotated[int, Meta(ge=0, le=65535)] | None = None
    network_interface: Word | None = None
    purge_days: Positive | None = None
    energy: SiteEnergy = SiteEnergy()
    sshd: bool | Text | None = None
    notices: Annotated[Text, must(absolute, "an absolute path")] | None = None
    submit_from_jobs: bool = True
    partitions: dict[str, Partition] = msgspec.field(default_factory=dict)
    checkpoint_storage: CheckpointStorage | None = None
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain data."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    def layers(self, pool: str) -> list[dict[str, Any]]:
        """Parts of a configuration that go below an experiment in `pool`, highest first."""
        partition = self.partitions.get(pool)
        layers = [dict(self.defaults), _layer(self)]
        if partition is not None:
            layers = [dict(partition.defaults), _layer(partition), *layers]
        return [layer for layer in layers if layer]


_SLURM_FIELDS = (
    "slots_per_node", "gpu_type", "slot_type", "time", "account", "qos", "constraint", "mpi",
    "setup", "modules", "container", "container_args", "container_prefix", "image_root",
    "private_tmp", "on_preempt", "signal_lead",
    "network_interface",
)  # fmt: skip


def _layer(profile: SiteProfile | Partition) -> dict[str, Any]:
    plain = msgspec.json.decode(msgspec.json.encode(profile))
    slurm = {key: plain[key] for key in _SLURM_FIELDS if plain.get(key) not in (None, [])}
    layer: dict[str, Any] = {"slurm": slurm} if slurm else {}
    if plain.get("partition"):
        layer["resources"] = {"resource_pool": plain["partition"]}
    for key in ("checkpoint_storage", "bind_mounts"):
        if plain.get(key):
            layer[key] = plain[key]
    return layer
