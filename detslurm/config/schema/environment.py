"""The environment of the training code: variables, and what only containers have."""

from __future__ import annotations

import re
from typing import Annotated, Any

from detslurm.config.fields import IGNORED, SECRET, FrozenDict, Section, accepts, deprecated, must

DEVICES = ("cpu", "cuda", "rocm")
_VARIABLE = re.compile(r"[^\s=]+=.*", re.DOTALL)
_GPU = deprecated("gpu is called cuda now")


def _variable(value: Any) -> str | None:
    return None if _VARIABLE.fullmatch(value) else ""


Variable = Annotated[str, must(_variable, "text of the form NAME=value")]


class Variables(Section, frozen=True, kw_only=True):
    """Environment variables as `NAME=value`, for each kind of slot; a later one wins."""

    cpu: tuple[Variable, ...] = ()
    cuda: tuple[Variable, ...] = ()
    rocm: tuple[Variable, ...] = ()

    def of(self, device: str) -> dict[str, str]:
        """The variables for trials on `device` (cpu, cuda or rocm), in order."""
        entries: tuple[str, ...] = getattr(self, device)
        return dict(entry.split("=", 1) for entry in entries)


class VariablesInput(Variables, frozen=True, kw_only=True):
    """As users may write it."""

    gpu: Annotated[tuple[Variable, ...], _GPU] = ()


class Image(Section, frozen=True, kw_only=True):
    """A container image for each kind of slot."""

    cpu: str | None = None
    cuda: str | None = None
    rocm: str | None = None


class ImageInput(Image, frozen=True, kw_only=True):
    """As users may write it."""

    gpu: Annotated[str | None, _GPU] = None


class Environment(Section, frozen=True, kw_only=True):
    """The surroundings of the training code."""

    environment_variables: Annotated[
        Variables,
        accepts(
            tuple[Variable, ...] | VariablesInput,
            "a list of NAME=value, or a mapping of cpu, cuda, rocm to such lists",
        ),
    ] = Variables()
    image: Annotated[
        Image,
        accepts(str | ImageInput, "text, or a mapping of cpu, cuda, rocm to text"),
    ] = Image()
    ports: Annotated[FrozenDict, IGNORED] = FrozenDict()
    proxy_ports: Annotated[tuple[Any, ...], IGNORED] = ()
    force_pull_image: Annotated[bool, IGNORED] = False
    registry_auth: Annotated[FrozenDict | None, IGNORED, SECRET] = None
    add_capabilities: Annotated[tuple[str, ...], IGNORED] = ()
    drop_capabilities: Annotated[tuple[str, ...], IGNORED] = ()
    pod_spec: Annotated[FrozenDict | None, IGNORED] = None
