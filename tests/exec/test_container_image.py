"""An image is known by more than its name: images of the same name are told apart."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from detslurm.exec.container_image import image_identity

LATER = 1_800_000_000


def test_a_sif_file_has_its_own_id(tmp_path: Path) -> None:
    """The header's, with the size and the time."""
    own, image = uuid.uuid4(), tmp_path / "torch.sif"
    script = b"#!/usr/bin/env run-singularity".ljust(32, b"\0")
    image.write_bytes(script + b"SIF_MAGIC\x0001\x0002\0")
    image.write_bytes(image.read_bytes() + own.bytes + bytes(100))
    os.utime(image, (LATER, LATER))
    found = image_identity(str(image), "apptainer")
    assert found == f"{image} (SIF {own}, 164 bytes, modified 2027-01-15T08:00:00Z)"


def test_another_squashfs_file_of_that_name_is_another_image(tmp_path: Path) -> None:
    """By its size or its time; a file that is shorter than a header is no failure."""
    image = tmp_path / "torch.sqsh"
    seen = set()
    for data, at in ((b"hsqs", LATER), (b"hsqs!", LATER), (b"hsqs!", LATER + 1)):
        image.write_bytes(data)
        os.utime(image, (at, at))
        seen.add(image_identity(str(image), "charliecloud"))
    assert len(seen) == 3


def test_a_directory_has_the_digest_of_charliecloud(tmp_path: Path) -> None:
    """Of the metadata; another build has others. The time is /etc's: mounts make places in /."""
    (tmp_path / "etc").mkdir()
    os.utime(tmp_path / "etc", (LATER, LATER))
    assert image_identity(str(tmp_path), "charliecloud") == (
        f"{tmp_path} (modified 2027-01-15T08:00:00Z)"
    )
    metadata = tmp_path / "ch" / "metadata.json"
    metadata.parent.mkdir()
    metadata.write_text("{}")
    first = image_identity(str(tmp_path), "charliecloud")
    assert f"{tmp_path} (metadata 44136fa355b3, " in first
    metadata.write_text('{"history": [1]}')
    assert image_identity(str(tmp_path), "charliecloud") != first


def test_podman_is_asked(tmp_path: Path) -> None:
    """An image that it does not know keeps its name alone."""
    program = tmp_path / "podman"
    program.write_text('#!/bin/sh\n[ "$4" = torch:2 ] && echo sha256:abc 0123456789abcdef\n')
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert image_identity("torch:2", "podman", path) == "torch:2 (sha256:abc, id 0123456789ab)"
    assert image_identity("torch:3", "podman", path) == "torch:3"


@pytest.mark.parametrize("image", ["docker://python:3.12", "/nowhere/image.sif"])
def test_what_is_not_known_is_left_out(image: str) -> None:
    """The name stays."""
    assert image_identity(image, "apptainer") == image
