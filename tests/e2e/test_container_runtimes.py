"""The runtimes and images that tests of containers use, without detslurm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster import Cluster, wait_for
from tests.containers import leftovers
from tests.e2e.desk import PATIENCE, Desk

# One worker unpacks and imports the images.
pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("containers")]

WHERE = "import os, sys; print(*sys.version_info[:2], os.getuid(), os.getcwd())"
SLEEP = "import os, time; print('up', os.getpid(), flush=True); time.sleep(600)"


def ch_run(desk: Desk, image: Path) -> list[str]:
    # With TMPDIR, Charliecloud would show that as /tmp, and nothing else that is below /tmp.
    return ["env", "-u", "TMPDIR", "ch-run", f"--cd={desk.user.cwd}", str(image), "--"]


def podman_run(desk: Desk, image: str) -> list[str]:
    space = ["--pid=host", "--network=host", "--userns=keep-id"]
    work = ["--volume", f"{desk.user.cwd}:{desk.user.cwd}", "--workdir", str(desk.user.cwd)]
    return ["podman", "run", "--rm", *space, *work, "--pull=never", image]


def starts(desk: Desk, container: Sequence[str], minor: int) -> None:
    """In a job on a node, as the user, in the working directory."""
    done = desk.user.run("srun", *container, "python3", "-c", WHERE)
    assert done.stdout.split() == ["3", str(minor), str(desk.user.uid), str(desk.user.cwd)]


@pytest.mark.usefixtures("charliecloud")
def test_charliecloud_starts_images(
    desk: Desk, slurm: Cluster, image: Path, newer_image: Path
) -> None:
    starts(desk, ch_run(desk, image), 11)
    starts(desk, ch_run(desk, newer_image), 13)
    assert not leftovers(slurm, desk.user)


@pytest.mark.usefixtures("podman")
def test_podman_starts_images(
    desk: Desk, slurm: Cluster, podman_image: str, newer_podman_image: str
) -> None:
    starts(desk, podman_run(desk, podman_image), 11)
    starts(desk, podman_run(desk, newer_podman_image), 13)
    wait_for(lambda: not leftovers(slurm, desk.user), PATIENCE, "nothing left of a container")


@pytest.mark.usefixtures("charliecloud", "podman")
def test_leftovers_are_counted(desk: Desk, slurm: Cluster, image: Path, podman_image: str) -> None:
    """While it runs, and none when Podman has removed it; Charliecloud ends with its process."""
    for container in (ch_run(desk, image), podman_run(desk, podman_image)):
        with desk.user.popen([*container, "python3", "-c", SLEEP]) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("up ")
            assert any("time.sleep(600)" in line for line in leftovers(slurm, desk.user))
            desk.user.run("podman", "rm", "--all", "--force", "--time", "0")
            process.kill()
        wait_for(lambda: not leftovers(slurm, desk.user), PATIENCE, "nothing left")
