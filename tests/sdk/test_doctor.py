"""The doctor says what is broken and what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.sdk import doctor
from detslurm.slurm import ClusterLimits, PartitionLimits, SlurmError
from tests.sdk.scenes import Queue


class Site(Queue):
    """A cluster with rules."""

    def __init__(self, limits: ClusterLimits) -> None:
        super().__init__()
        self._limits = limits

    def limits(self) -> ClusterLimits:
        return self._limits


def test_a_good_directory_has_nothing_broken(tmp_path: Path) -> None:
    """All promises of the store hold on this machine's file system, and nothing is left behind."""
    found = list(doctor.store_findings(tmp_path))
    assert [f for f in found if f.level == "broken"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    """The first submission makes it; until then it is no fault."""
    found = list(doctor.store_findings(tmp_path / "a" / "b"))
    assert found[0].level == "note"
    assert all(f.level != "broken" for f in found)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_takes_no_files_is_broken() -> None:
    """The finding comes with advice."""
    broken = [f for f in doctor.store_findings(Path("/proc")) if f.level == "broken"]
    assert broken
    assert "DETSLURM_ROOT" in broken[0].advice


def test_a_controller_that_does_not_answer_is_broken() -> None:
    """What Slurm said and what to do are both there."""

    def connect() -> Queue:
        raise SlurmError("Unable to contact slurm controller", "Try again.")

    assert list(doctor.slurm_findings(connect)) == [
        doctor.Finding("slurm", "broken", "Unable to contact slurm controller", "Try again.")
    ]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"accounting": False}, "there is no accounting"),
        ({"job_requeue": False}, "JobRequeue=0"),
        ({"partitions": {"p": PartitionLimits("p", preempt_mode="CANCEL")}}, "cancels jobs in p"),
        ({"partitions": {"p": PartitionLimits("p", up=False)}}, "no partition is up"),
        ({"max_array_size": 51}, "an array has up to 50 trials"),
    ],
)
def test_rules_that_shape_submissions_are_named(limits: dict[str, object], expected: str) -> None:
    """Each in a finding of its own."""
    site = Site(ClusterLimits(**limits))  # type: ignore[arg-type]
    assert any(expected in f.text for f in doctor.slurm_findings(lambda: site))


def test_a_broken_site_profile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the file's name and the line."""
    profile = tmp_path / "site.yaml"
    profile.write_text("partitoin: x\n")
    monkeypatch.setenv("DETSLURM_SITE", str(profile))
    found = doctor.examine(tmp_path, Queue)
    broken = [f for f in found if f.level == "broken" and f.area == "site"]
    assert broken and "site.yaml" in broken[0].text and "partition" in broken[0].text
