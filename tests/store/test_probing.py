"""The probe tells file systems that keep the promises from those that do not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from detslurm.store import fs, probe
from detslurm.store.probing import mount_of
from tests.store.faults import failing


@pytest.mark.parametrize("fast", [False, True])
def test_a_good_file_system_passes_and_stays_clean(place: Path, fast: bool) -> None:
    """All promises hold, nothing is left behind, and the facts about the mount are there."""
    report = probe(place, fast=fast)
    assert report.ok, report.errors
    assert all(check.ok and check.detail for check in report.checks)
    assert report.fs_type != "unknown"
    assert report.free_bytes
    assert fs.names_in(place) == []


def test_the_fast_variant_is_cheap(place: Path) -> None:
    """A submission pays for two checks only."""
    assert len(probe(place, fast=True).checks) == 2
    assert len(probe(place).checks) == 8


def test_missing_hard_links_are_an_error(place: Path) -> None:
    """The report says which promise fails and why."""
    with failing("link", errno.EOPNOTSUPP, times=100):
        report = probe(place)
    assert not report.ok
    assert "no hard links" in report.errors[0]


def test_a_link_that_overwrites_is_an_error(place: Path) -> None:
    """As rename does, on a file system that maps one to the other."""
    with mock.patch.object(os, "link", os.rename):
        report = probe(place, fast=True)
    assert "two writers both claimed" in report.errors[0]


def test_a_directory_that_cannot_be_written_is_an_error(place: Path) -> None:
    """No traceback: an explanation."""
    report = probe(place / "nowhere")
    assert report.errors == (
        f"write: cannot create a directory in {place}/nowhere: No such file or directory",
    )


MOUNTS = [
    "/dev/vda / ext4 rw 0 0",
    "server:/home /home nfs4 rw,vers=4.2 0 0",
    "tmpfs /home/my\\040scratch tmpfs rw 0 0",
    "broken",
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada/x", "nfs4"),
        ("/home", "nfs4"),
        ("/homes", "ext4"),
        ("/home/my scratch/x", "tmpfs"),
    ],
)
def test_the_mount_that_covers_a_path_is_found(path: str, kind: str) -> None:
    """The longest mount point counts, by whole names, spaces included."""
    assert mount_of(path, MOUNTS)[0] == kind
