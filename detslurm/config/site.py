"""Site profiles: what a cluster's users share, and what lies below every experiment there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from detslurm import _env
from detslurm.config.errors import ConfigErrors, ConfigProblem
from detslurm.config.fields import Positive, Section, Text, must, word
from detslurm.config.frozen import FrozenDict, freeze
from detslurm.config.schema.slurm import OnPreempt, SlotType, TimeLimit, Word
from detslurm.config.schema.storage import CheckpointStorage

SYSTEM_PROFILE = Path("/etc/detslurm/site.yaml")


def _root(value: Any) -> str | None:
    fine = value.startswith(("/", "~/", "$")) or value == "~"
    return None if fine else ""


class Partition(Section, frozen=True, kw_only=True):
    """What is known of one partition; it goes below the configuration of experiments in it."""

    slots_per_node: Positive | None = None
    gpu_type: Word | None = None
    slot_type: SlotType | None = None
    time: TimeLimit = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Text | None = None
    preempt_mode: Word | None = None
    grace_time: Annotated[int, Meta(ge=0)] | None = None
    defaults: FrozenDict = FrozenDict()


class SiteProfile(Section, frozen=True, kw_only=True):
    """A cluster as its users see it: what Slurm offers there, defaults, where things go."""

    root: Annotated[
        Text | None, must(_root, "an absolute path, or one that begins with ~/ or $NAME,")
    ] = None
    partition: Annotated[Text | None, must(word)] = None
    slot_type: SlotType | None = None
    gres_supported: bool = True
    tres_supported: bool = True
    gpu_type: Word | None = None
    slots_per_node: Positive | None = None
    account: Word | None = None
    qos: Word | None = None
    time: TimeLimit = None
    constraint: Text | None = None
    mpi: Word | None = None
    setup: tuple[str, ...] = ()
    modules: tuple[Word, ...] = ()
    container_prefix: tuple[Text, ...] = ()
    on_preempt: OnPreempt | None = None
    signal_lead: Annotated[int, Meta(ge=0, le=65535)] | None = None
    network_interface: Word | None = None
    submit_from_jobs: bool = True
    partitions: dict[str, Partition] = msgspec.field(default_factory=dict)
    checkpoint_storage: CheckpointStorage | None = None
    defaults: FrozenDict = FrozenDict()
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
    "setup", "modules", "container_prefix", "on_preempt", "signal_lead",
    "network_interface",
)  # fmt: skip


def _layer(profile: SiteProfile | Partition) -> dict[str, Any]:
    plain = msgspec.json.decode(msgspec.json.encode(profile))
    slurm = {key: plain[key] for key in _SLURM_FIELDS if plain.get(key) not in (None, [])}
    layer: dict[str, Any] = {"slurm": slurm} if slurm else {}
    if plain.get("partition"):
        layer["resources"] = {"resource_pool": plain["partition"]}
    if plain.get("checkpoint_storage"):
        layer["checkpoint_storage"] = plain["checkpoint_storage"]
    return layer


def profile_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The profile that applies here: $DETSLURM_SITE, the user's own, the system's, or none."""
    if named := environ.get(_env.SITE):
        return Path(named)
    candidates = [SYSTEM_PROFILE]
    if home := _home(environ):
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        candidates.insert(0, config / "detslurm" / "site.yaml")
    return next((path for path in candidates if path.exists()), None)


def load_site(path: Path | str | None = None) -> SiteProfile:
    """The profile at `path`, or the one that applies here; without any, an empty one."""
    found = Path(path) if path is not None else profile_path()
    if found is None:
        return SiteProfile()
    from detslurm.config.site_loading import read_site

    return read_site(found)


def store_root(site: SiteProfile | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the store is: $DETSLURM_ROOT, else the site profile's root, else ~/detslurm."""
    named = environ.get(_env.ROOT)
    if not named:
        site = load_site() if site is None else site
        named = site.root or "~/detslurm"
    if named == "~" or named.startswith("~/"):
        home = _home(environ)
        if home is None:
            message = f"there is no home directory to keep the store in; set {_env.ROOT}"
            raise ConfigErrors([ConfigProblem(_env.ROOT, None, None, "", message)])
        named = str(home) + named[1:]
    path = os.path.expandvars(named)
    if path.startswith("$"):
        message = f"the store's root {path} names a variable that isn't set"
        source = site.source if site and not environ.get(_env.ROOT) else _env.ROOT
        raise ConfigErrors([ConfigProblem(source, None, None, "root", message)])
    return Path(os.path.abspath(path))  # noqa: PTH100


def _home(environ: Mapping[str, str]) -> Path | None:
    try:
        return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except (RuntimeError, KeyError):
        return None


def decode_site(plain: Mapping[str, Any]) -> SiteProfile:
    """A profile from checked plain data."""
    return msgspec.convert(plain, SiteProfile, dec_hook=lambda kind, value: freeze(value))
