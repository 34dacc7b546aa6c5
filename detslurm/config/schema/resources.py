"""A trial's request to the cluster, and its mounts in a container."""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta

from detslurm.config.fields import (
    IGNORED,
    NonNegative,
    Section,
    Text,
    accepts,
    deprecated,
    must,
    word,
)
from detslurm.config.schema.storage import absolute

_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_SIZE = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kmgtp]?)i?b?\s*", re.IGNORECASE)


def memory_bytes(value: int | str) -> int | None:
    """Bytes of a memory size such as `1.5 gb`; None if it is none."""
    if isinstance(value, int):
        return value if value >= 0 else None
    match = _SIZE.fullmatch(value)
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()]) if match else None


def _memory(value: Any) -> str | None:
    return "must be a valid memory size" if memory_bytes(value) is None else None


def _in_container(value: Any) -> str | None:
    return 'must not be "."' if value == "." else None


class Device(Section, frozen=True, kw_only=True):
    """A device of the host, made available in the container."""

    host_path: Text
    container_path: Text
    mode: str = "mrw"


class BindMount(Section, frozen=True, kw_only=True):
    """A directory of the host, mounted in the container."""

    host_path: Annotated[Text, must(absolute, "an absolute path")]
    container_path: Annotated[Text, must(_in_container)]
    read_only: bool = False
    propagation: str = "rprivate"


DeviceText = Annotated[str, Meta(pattern="^/[^:]*:/[^:]*(:[rwm]*)?$")]
DevicesInput = tuple[Device | DeviceText, ...]


class Resources(Section, frozen=True, kw_only=True):
    """Slots, and the place in the queue."""

    slots_per_trial: NonNegative = 1
    slots: Annotated[NonNegative | None, deprecated("here it means slots_per_trial")] = None
    resource_pool: Annotated[str, must(word)] = ""
    max_slots: NonNegative | None = None
    weight: Annotated[float, Meta(gt=0)] = 1
    priority: Annotated[int, Meta(ge=1, le=99)] | None = None
    is_single_node: bool | None = None
    shm_size: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        IGNORED,
        accepts(int | str, 'a number of bytes or a size such as "1.5 gb"'),
        must(_memory),
    ] = None
    devices: Annotated[
        tuple[Device, ...],
        IGNORED,
        accepts(DevicesInput, 'a list of "/host:/container:mode" or of mappings'),
    ] = ()
    native_parallel: Annotated[bool, IGNORED] = False
    agent_label: Annotated[str | None, IGNORED] = None
