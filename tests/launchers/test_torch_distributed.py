"""The launcher on one node: workers, their failures, and signals that come by."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launchers.workers import Workers, whole_imports

SHOWN = ("USE_TORCH_DISTRIBUTED", "True")


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    return Workers("detslurm.launch.torch_distributed", ["--nproc-per-node=2"], tmp_path)


def test_a_worker_that_fails_ends_the_other(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_imports(monkeypatch)
    workers.one_fails(*SHOWN)


def test_sigterm_without_preemption_ends_everything(workers: Workers) -> None:
    workers.all_are_asked_to_end(*SHOWN)


def test_a_preemption_ends_nobody(workers: Workers) -> None:
    workers.all_are_preempted(*SHOWN)


def test_no_worker_outlives_the_launcher(workers: Workers) -> None:
    workers.launcher_is_killed(*SHOWN)
