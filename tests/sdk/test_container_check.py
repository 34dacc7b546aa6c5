"""The job of `doctor --container` leaves nothing behind, however it ends."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest

from detslurm.sdk import container_check
from detslurm.sdk.container_check import examine_container
from detslurm.sdk.doctor import Finding
from detslurm.slurm import JobInfo, JobRequest
from tests.sdk.scenes import Queue
from tests.sdk.test_container_findings import GOOD


class Node(Queue):
    """A cluster that answers for its job with a state, or is interrupted."""

    def __init__(self, state: str, facts: bytes | None = None) -> None:
        super().__init__()
        self._state, self._facts = state, facts

    def submit(self, request: JobRequest) -> str:
        job_id = super().submit(request)
        if self._facts is not None:
            (request.folder / "facts.json").write_bytes(self._facts)
        (request.folder / f"slurm-{job_id}.out").write_text("python3: no such file\n")
        return job_id

    def evidence(
        self, job_ids: Collection[str], *, since: float | None = None
    ) -> dict[str, JobInfo]:
        if self._state == "interrupt":
            raise KeyboardInterrupt
        return {ref: JobInfo(ref=ref, state=self._state, reason="Priority") for ref in job_ids}


def examined(node: Node, root: Path, runtime: str | None = "apptainer") -> list[Finding]:
    """The findings on an image."""
    return examine_container("/images/torch.sif", lambda: node, root, runtime=runtime)


def test_the_job_is_short_and_plain(tmp_path: Path) -> None:
    """One minute, never requeued; its files are gone, and so is a store that was not there."""
    node, root = Node("COMPLETED", msgspec.json.encode(GOOD)), tmp_path / "store"
    assert {finding.level for finding in examined(node, root)} == {"ok", "note"}
    (request,) = node.requests
    assert (request.time_minutes, request.requeue, request.is_array) == (1, False, False)
    assert not node.calls and not root.exists()


def test_an_interrupt_cancels_the_job(tmp_path: Path) -> None:
    """Ctrl-C."""
    node = Node("interrupt")
    with pytest.raises(KeyboardInterrupt):
        examined(node, tmp_path)
    assert node.calls == [("cancel", "101")] and not list(tmp_path.glob("doctor-*"))


def test_a_job_that_does_not_start_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Slurm's reason, and what to do."""
    monkeypatch.setattr(container_check, "PATIENCE", 0.0)
    node = Node("PENDING")
    (found,) = examined(node, tmp_path)
    assert found.level == "broken" and "(Priority)" in found.text and "--pool" in found.advice
    assert node.calls == [("cancel", "101")]


def test_a_job_that_fails_shows_its_output(tmp_path: Path) -> None:
    """Its last lines."""
    (found,) = examined(Node("FAILED"), tmp_path)
    assert found.text == "job 101 has ended without a result (FAILED)\npython3: no such file"


def test_a_site_without_containers(tmp_path: Path) -> None:
    """No job is submitted."""
    node = Node("COMPLETED")
    (found,) = examined(node, tmp_path, runtime=None)
    assert found.area == "runtime" and "--runtime" in found.advice and not node.requests


def test_a_runtime_that_is_none(tmp_path: Path) -> None:
    """The configuration's own message."""
    (found,) = examined(Node("COMPLETED"), tmp_path, runtime="dockr")
    assert found.level == "broken" and "apptainer" in found.text
