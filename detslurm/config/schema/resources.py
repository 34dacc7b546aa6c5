"""A trial's request to the cluster, and its mounts in a container."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from detslurm.config.fields import (
    IGNORED,
    NonNegative,
    Section,
    Text,
    deprecated,
    must,
    word,
)
from detslurm.config.schema.storage import absolute


def _in_container(value: Any) -> str | None:
    return 'must not be "."' if value == "." else None


class BindMount(Section, frozen=True, kw_only=True):
    """A directory of the host, mounted in the container."""

    host_path: Annotated[Text, must(absolute, "an absolute path")]
    container_path: Annotated[Text, must(_in_container)]
    read_only: bool = False
    propagation: str = "rprivate"


class Resources(Section, frozen=True, kw_only=True):
    """Slots, and the place in the queue."""

    slots_per_trial: NonNegative = 1
    slots: Annotated[NonNegative | None, deprecated("here it means slots_per_trial")] = None
    resource_pool: Annotated[str, must(word)] = ""
    max_slots: NonNegative | None = None
    weight: Annotated[float, Meta(gt=0)] = 1
    priority: Annotated[int, Meta(ge=1, le=99)] | None = None
    is_single_node: bool | None = None
    shm_size: Annotated[Any, IGNORED] = None
    devices: Annotated[tuple[Any, ...], IGNORED] = ()
    native_parallel: Annotated[bool, IGNORED] = False
    agent_label: Annotated[str | None, IGNORED] = None
