"""The image of a container: where it lies, and which image it is, for the record of a run."""

from __future__ import annotations

import hashlib
import os
import stat
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from detslurm.exec.container_runtimes import names_of_image
from detslurm.exec.podman import PODMAN, podman_lines

_SIF = slice(32, 42), b"SIF_MAGIC\0"
_SIF_ID = slice(48, 64)


def image_path(image: str, runtime: str, root: str | None) -> str:
    """The image below `slurm.image_root`, or as it was given."""
    if root is None or image.startswith("/"):
        return image
    places = (Path(root, name) for name in names_of_image(runtime, image))
    return next((str(place) for place in places if place.exists()), image)


def image_identity(image: str, runtime: str, environment: Mapping[str, str] = os.environ) -> str:
    """The image and the facts that distinguish it from another image of that name.

    Those of a file are its size, its time, and the id that Apptainer gave to a SIF file. Those of a
    directory are its time and the digest of Charliecloud's metadata. Podman is asked for digest and
    id. The image alone where nothing is known of it.

    Example:
        >>> image_identity("docker://python:3.12", "apptainer")
        'docker://python:3.12'
    """
    facts: list[str] = []
    with suppress(OSError):
        if runtime in PODMAN:
            facts = _of_podman(runtime, image, environment)
        elif image.startswith("/"):
            facts = _facts(image)
    return f"{image} ({', '.join(facts)})" if facts else image


def _facts(path: str) -> list[str]:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        state = os.fstat(handle)
        if stat.S_ISDIR(state.st_mode):
            # Places for mounts, which are made in an image, change the time of its root.
            with suppress(FileNotFoundError):
                state = os.stat("etc", dir_fd=handle)
            return [*_of_charliecloud(path), _modified(state)]
        head = os.read(handle, _SIF_ID.stop)
    finally:
        os.close(handle)
    where, magic = _SIF
    own = [f"SIF {uuid.UUID(bytes=head[_SIF_ID])}"] if head[where] == magic else []
    return [*own, f"{state.st_size} bytes", _modified(state)]


def _modified(state: os.stat_result) -> str:
    return f"modified {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(state.st_mtime))}"


def _of_charliecloud(path: str) -> list[str]:
    """The digest of the metadata, which have the image's history; empty without any."""
    with suppress(OSError):
        data = Path(path, "ch", "metadata.json").read_bytes()
        return [f"metadata {hashlib.sha256(data).hexdigest()[:12]}"]
    return []


def _of_podman(runtime: str, image: str, environment: Mapping[str, str]) -> list[str]:
    argv = [runtime, "image", "inspect", "--format={{.Digest}} {{.Id}}", image]
    lines = podman_lines(argv, environment)
    digest, _, own = (lines[0] if lines else "").partition(" ")
    return [digest, f"id {own[:12]}"] if own else []
