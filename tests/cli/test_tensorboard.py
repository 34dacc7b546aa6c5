"""`detslurm tensorboard`: TensorBoard itself, opened in a browser."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from detslurm.cli import tunnel
from tests.cli.conftest import Detslurm
from tests.cluster.waiting import wait_for
from tests.sdk.scenes import Scene


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("tensorboard")


def _hear_ctrl_c() -> None:
    """A suite in the background of a shell ignores it, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(*args: str) -> Iterator[tuple[str, IO[str]]]:
    """`detslurm tensorboard start`, ended with Ctrl-C; its address, and what else it prints."""
    command = [sys.executable, "-m", "detslurm", "tensorboard", "start", *args]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=_hear_ctrl_c,
    ) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            assert first.startswith("On your laptop:  ssh -N -L 6006:127.0.0.1:"), first
            assert re.search(r"localhost:6006/\S+/$", process.stdout.readline())
            yield process.stdout.readline().split()[-1], process.stdout
        finally:
            try:
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130
            finally:
                process.kill()


def get(url: str) -> str:
    """What a browser gets."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.slow
def test_metrics_are_shown_in_tensorboard_to_whom_has_the_address(scene: Scene) -> None:
    """An experiment without event files, and a single trial; nothing without the secret."""
    one = scene.experiment(2)
    scene.run(one, 0, losses=[0.5, 0.25], end="completed")
    scene.run(one, 1, losses=[0.75])
    with started("1", "-t", "2") as (url, _):
        wait_for(lambda: '"trial-2' in get(f"{url}data/runs"), 60, "the runs")
        assert '"experiment-1/trial-1"' in get(f"{url}data/runs")
        tags = get(f"{url}data/plugin/scalars/tags")
        assert "validation/loss" in tags
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(re.sub(r"/[^/]+/$", "/data/runs", url))
        if shutil.which("chromium") is None:
            return
        shown = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--virtual-time-budget=30000", "--dump-dom", f"{url}#timeseries"],
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout  # fmt: skip
        assert "validation" in shown
        assert "experiment-1/trial-1" in shown


def test_files_that_code_has_written_are_shown_where_they_are(
    scene: Scene, detslurm: Detslurm
) -> None:
    """`--print` is the command alone; what has none is said."""
    scene.run(scene.experiment(1), losses=[0.5])
    scene.run(scene.experiment(1, job="8"), losses=[0.5])
    files = scene.root / "checkpoints" / "tensorboard" / "experiment" / "1"
    (files / "trial" / "1").mkdir(parents=True)
    result = detslurm("tensorboard", "start", 1, 2, "-t", 1, "--print")
    spec = f"experiment-1:{files},trial-1:{files}/trial/1"
    assert (result.status, result.out) == (0, f"tensorboard --logdir_spec {spec}\n")
    assert "no event files of experiment-2" in result.err


def test_what_can_not_be_shown_is_refused(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing named, nothing reported, no TensorBoard."""
    before = signal.getsignal(signal.SIGTERM)
    scene.experiment(1)
    assert "name an experiment" in detslurm("tensorboard", "start").err
    result = detslurm("tensorboard", "start", 1)
    assert (result.status, "experiment-1 has reported no metrics yet" in result.err) == (1, True)
    monkeypatch.setattr("detslurm.sdk.export.updating.find_spec", lambda name: None)
    result = detslurm("tensorboard", "start", 1)
    assert "pip install 'detslurm[tensorboard]'" in result.err
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_tunnel_leads_through_the_login_node_into_a_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Outside of a job it leads to the login node, which is shared."""
    job = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_HOST": "login1"}
    through = tunnel.tunnel(job, "ada", "node5", "6006:127.0.0.1:1234")
    assert through == "ssh -N -L 6006:127.0.0.1:1234 -J ada@login1 ada@node5"
    socket = tunnel.tunnel({}, "ada", "login1", "8080:/run/user/7/ui.sock")
    assert socket == "ssh -N -L 8080:/run/user/7/ui.sock ada@login1"
    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tunnel.is_login_node({})
    assert not tunnel.is_login_node(job)
