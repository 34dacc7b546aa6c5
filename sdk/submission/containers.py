"""Container settings at a submission: those without effect, and those that no run could obey."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm._base.contract import CONTAINER_WORKDIR
from detslurm.config import ExperimentConfig, SiteProfile
from detslurm.config.schema.environment import DEVICES
from detslurm.config.schema.resources import BindMount

_TAKE_FILES = ("apptainer", "charliecloud", "enroot", "pyxis")
_MOST_PLACES = 3  # that a message names for each path
_OUTSIDE = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_GUIDE = 'see "Containers" in docs/on-your-cluster.md'


def runs_in_container(config: ExperimentConfig, slot_type: str | None = None) -> bool:
    """Whether the code runs in a container; without `slot_type`, whether an image is named."""
    slurm = config.slurm
    has_image = any(_images(config, slot_type or slurm.slot_type))
    return bool(slurm.container_prefix) or (slurm.container != "none" and has_image)


def container_problems(config: ExperimentConfig, store: Path) -> list[str]:
    """Why each run would fail, as far as the configuration shows."""
    if not runs_in_container(config):
        return list(_changes_into_containers(config))
    if config.slurm.container == "none":
        return []
    mounts = [
        *(("bind_mounts", path) for mount in config.bind_mounts for path in _paths(mount)),
        ("the store", str(store)),
    ]
    problems = [
        f"{name}: {path}: no container runtime mounts a path with : or ,"
        for name, path in mounts
        if ":" in path or "," in path
    ]
    if config.slurm.private_tmp and config.slurm.container == "charliecloud":
        problems.append(
            "slurm.private_tmp: Charliecloud always shows the node's /tmp. Leave the key out, or"
            " choose another slurm.container"
        )
    return problems


def _paths(mount: BindMount) -> Iterable[str]:
    return dict.fromkeys((mount.host_path, mount.container_path))


def container_notes(
    config: ExperimentConfig, site: SiteProfile | None, slot_type: str, env: Mapping[str, str]
) -> list[str]:
    """Return messages about containers on slots of this type; `env` is that of this process."""
    notes = [*_of_own_python(env)]
    if not runs_in_container(config, slot_type):
        return [*notes, *_without_effect(config, site or SiteProfile(), slot_type)]
    if config.slurm.container == "none":
        return notes
    read_only = [mount.container_path for mount in config.bind_mounts if mount.read_only]
    if read_only and config.slurm.container == "charliecloud":
        notes.append(
            f"bind_mounts: {', '.join(read_only)} can be written to in the container, because"
            " Charliecloud has no read-only mounts"
        )
    (image,) = _images(config, slot_type)
    return [*notes, *_of_image(config, image)]


def _images(config: ExperimentConfig, slot_type: str | None) -> list[str]:
    devices = DEVICES if slot_type is None else (slot_type,)
    return list(filter(None, (getattr(config.environment.image, device) for device in devices)))


def _of_image(config: ExperimentConfig, image: str) -> Iterator[str]:
    runtime, root = config.slurm.container, config.slurm.image_root
    if image.startswith("/"):
        if runtime in _TAKE_FILES and not Path(image).exists():
            yield (
                f"environment.image: {image} is not on this machine. If the nodes don't have it"
                " either, no run can begin"
            )
    elif runtime == "charliecloud" and not (root and Path(root, image).exists()):
        where = "slurm.image_root is not set" if root is None else f"{root} has no such directory"
        yield (
            f"environment.image: Charliecloud starts images that are directories, and {where}:"
            f" unpack {image} to the directory of that name below slurm.image_root, or give a path"
        )


def _of_own_python(env: Mapping[str, str]) -> Iterator[str]:
    """Wrappers such as Tykky's start Python in a container, which `sys.executable` hides."""
    image = next((env[name] for name in _OUTSIDE if env.get(name)), None)
    if image is not None:
        yield (
            f"detslurm itself runs in a container here ({image}). Jobs start {sys.executable} on"
            " their nodes outside of that container, and fail at once where it does not exist."
            " Install detslurm into a Python outside, and name the image with slurm.container and"
            f" environment.image ({_GUIDE})"
        )


# -- without a container -------------------------------------------------------------------------


def _without_effect(config: ExperimentConfig, site: SiteProfile, slot_type: str) -> Iterator[str]:
    runtime = config.slurm.container
    own = {
        "environment.image": any(_images(config, None)),
        "bind_mounts": any(mount not in site.bind_mounts for mount in config.bind_mounts),
        "slurm.container": runtime not in ("none", site.container),
    }
    keys = [key for key, is_given in own.items() if is_given]
    if not keys:
        return
    cause, advice = "slurm.container is none", "Set slurm.container"
    if runtime != "none":
        cause, advice = f"environment.image names no image for {slot_type} slots", "Name an image"
    effect = f"{' and '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect"
    if found := "; ".join(_named_paths(config)):
        found, advice = f" There, {found}.", f"{advice}, or write the paths of the node"
    yield f"{effect}: {cause}, and the code runs on the node.{found} {advice} ({_GUIDE})"


def _named_paths(config: ExperimentConfig) -> Iterator[str]:
    """The paths of a container that the configuration names, with places and paths on the node."""
    for path, instead in _outside(config).items():
        named = (name for name, text in _texts(config) if _names(path, text))
        places = list(dict.fromkeys(named))
        if places:
            more = ", ..." if len(places) > _MOST_PLACES else ""
            yield f"{path} ({', '.join(places[:_MOST_PLACES])}{more}) is {instead}"


def _outside(config: ExperimentConfig) -> dict[str, str]:
    mounts = {mount.container_path.rstrip("/"): mount.host_path for mount in config.bind_mounts}
    differing = {
        target: source
        for target, source in mounts.items()
        if target.startswith("/") and target != source.rstrip("/")
    }
    return {CONTAINER_WORKDIR: "the working directory, `.`", **differing}


def _changes_into_containers(config: ExperimentConfig) -> Iterator[str]:
    entrypoint = _text(config.entrypoint)
    for path, instead in _outside(config).items():
        if _names(path, entrypoint, r"\bcd\s+(?:--\s+)?[\"']?"):
            yield (
                f"entrypoint: `cd {path}` leads to a path of containers, and the code runs on the"
                f" node: there it is {instead}. Change the entrypoint, or set slurm.container"
                f" ({_GUIDE})"
            )


def _texts(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    yield "entrypoint", _text(config.entrypoint)
    variables = config.environment.environment_variables
    assignments = {name: v for device in DEVICES for name, v in variables.of(device).items()}
    yield from assignments.items()
    yield from _leaves("hyperparameters", config.to_dict()["hyperparameters"])
    yield from _leaves("data", config.to_dict()["data"])


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            plain = key in ("val", "vals") and "type" in value
            yield from _leaves(name if plain else f"{name}.{key}", below)
    elif isinstance(value, Sequence):
        for below in value:
            yield from _leaves(name, below)


def _names(path: str, text: str, before: str = r"(?<![\w.\-/])") -> bool:
    return re.search(rf"{before}{re.escape(path)}(?![\w.\-])", text) is not None


def _text(entrypoint: str | Sequence[str] | None) -> str:
    return entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
