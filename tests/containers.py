"""Container runtimes for the tests, and images that need no registry."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builds import built
from tests.cluster import Cluster, User, processes, wait_for

KEEPERS = {
    *("ch-run", "conmon", "fuse-overlayfs", "podman", "runc", "slirp4netns", "squashfuse"),
    *("apptainer", "fuse2fs", "squashfuse_ll", "starter"),
}
"""Programs that keep a container running, or its file system mounted."""

STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""
# crun refuses the hybrid of both versions of control groups.
ENGINE = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


@pytest.fixture(scope="session")
def image(pytestconfig: pytest.Config, slurm: Cluster) -> Path:
    """A directory for Charliecloud, the user's own: Debian with Python 3.11 and nothing else."""
    return _unpacked(Path(built(pytestconfig, "image")), slurm)


@pytest.fixture(scope="session")
def newer_image(pytestconfig: pytest.Config, slurm: Cluster) -> Path:
    """The same with Python 3.13, and a msgspec for it."""
    return _unpacked(Path(built(pytestconfig, "newer_image")), slurm)


@pytest.fixture(scope="session")
def charliecloud(slurm: Cluster) -> None:
    """`ch-run` works for the user."""
    _need("ch-run", slurm.user("alice"))


@pytest.fixture(scope="session")
def apptainer(slurm: Cluster) -> None:
    """`apptainer` works for the user; Debian has it since its 14th release."""
    _need("apptainer", slurm.user("alice"))


@pytest.fixture(scope="session")
def sif_image(apptainer: None, slurm: Cluster, newer_image: Path) -> Path:
    """`newer_image` in one file, which the user builds."""
    user, path = slurm.user("alice"), newer_image.with_suffix(".sif")
    if not os.access("/dev/fuse", os.F_OK):
        pytest.skip("no SIF files: there is no /dev/fuse")
    user.run("apptainer", "build", str(user.home / path.name), str(newer_image))
    return user.home / path.name


@pytest.fixture(scope="session")
def podman(slurm: Cluster) -> Iterator[User]:
    """Podman works for the user, with a store of images that the cluster's folder holds."""
    user = slurm.user("alice")
    _need("podman", user)
    if f"{user.name}:" not in Path("/etc/subuid").read_text():
        pytest.skip(f"no Podman: {user.name} has no line in /etc/subuid")
    _configure(user, user.folder_in(slurm.layout.var, "podman"))
    yield user
    # The store goes with the cluster's folder. A container's end starts one more Podman.
    wait_for(lambda: not _killed(slurm), what="the end of all containers")


@pytest.fixture(scope="session")
def podman_image(podman: User, image: Path) -> str:
    """The name of `image` in the user's Podman."""
    return _imported(podman, image)


@pytest.fixture(scope="session")
def newer_podman_image(podman: User, newer_image: Path) -> str:
    """The name of `newer_image` in the user's Podman."""
    return _imported(podman, newer_image)


def _need(program: str, user: User) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no containers by {program}: it is not installed")
    if user.run("unshare", "--user", "true", check=False).returncode:
        pytest.skip("no containers: users may have no user namespaces here")


def _unpacked(tar: Path, cluster: Cluster) -> Path:
    folder = cluster.layout.var / "images" / tar.name.partition("-")[0]
    folder.mkdir(parents=True)
    argv = ["tar", "--extract", "--no-same-owner", f"--file={tar}"]
    subprocess.run(argv, cwd=folder, check=True)
    return cluster.user("alice").own(folder)


def _configure(user: User, folder: Path) -> None:
    settings = user.home / ".config" / "containers"
    settings.mkdir(parents=True)
    (settings / "storage.conf").write_text(STORAGE.format(folder=folder))
    (settings / "containers.conf").write_text(ENGINE)
    user.own(user.home / ".config")


def _imported(user: User, image: Path) -> str:
    name = f"localhost/{image.name}"
    pipe = 'tar --directory "$0" --create . | podman import - "$1"'
    user.run("sh", "-c", pipe, str(image), name)
    return name


def leftovers(cluster: Cluster, user: User) -> list[str]:
    """List the leftovers of this cluster's containers: processes, records of Podman, and files.

    Mounts and user namespaces live as long as a process in them. The process that keeps the
    user's own namespace for Podman stays, as its authors want.
    """
    lines = {pid: " ".join(processes.command(pid)) for pid in _processes(cluster)}
    found = [f"{pid}: {line}" for pid, line in lines.items() if line != "podman"]
    if (user.home / ".config" / "containers").exists():
        found += user.run(
            "podman", "ps", "--all", "--format", "{{.Names}} {{.Status}}"
        ).stdout.splitlines()
    return found + [str(path) for path in user.tmp.glob("ch-run_passwd.*")]


def _processes(cluster: Cluster) -> Iterator[int]:
    outside = Path("/proc/self/ns/user").readlink()
    for pid in processes.pids():
        apart = processes.executable(pid) in KEEPERS or _namespace(pid) not in (outside, None)
        if apart and processes.alive(pid) and _belongs(pid, cluster):
            yield pid


def _killed(cluster: Cluster) -> list[int]:
    found = list(_processes(cluster))
    for pid in found:
        processes.send(pid, signal.SIGKILL)
    return found


def _namespace(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/ns/user").readlink()
    except OSError:
        return None


def _belongs(pid: int, cluster: Cluster) -> bool:
    """Other clusters on this machine have the same users; in a container, the mounts show whose."""
    name = os.fsencode(cluster.root.name)
    try:
        return any(name in Path(f"/proc/{pid}/{what}").read_bytes() for what in _TRACES)
    except OSError:
        return False


_TRACES = ("cmdline", "environ", "mountinfo")
