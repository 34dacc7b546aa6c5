"""The job of `detslurm doctor --container`: try an image on this node, as a run would start it.

`python -m detslurm.exec.container_check FOLDER` reads FOLDER/config.json and writes the facts to
FOLDER/facts.json.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from detslurm._base import contract
from detslurm._base.flag import PreemptFlag
from detslurm._base.node_files import own_name, remove, temporary_directory
from detslurm.config.run_config import RunConfig
from detslurm.exec import container_probe
from detslurm.exec.container_image import image_identity, image_path
from detslurm.exec.container_run import ContainerRun
from detslurm.exec.container_runtimes import PROGRAMS
from detslurm.exec.containers import contained, tmpdir_of
from detslurm.exec.environment import slot_type_of
from detslurm.exec.node_run import NodeRun, NotReady
from detslurm.exec.orphans import RunMark
from detslurm.slurm import Allocation
from detslurm.store import ContainerFacts, ExperimentDir, InsideFacts
from detslurm.store.run_records import StartRecord

T = TypeVar("T")

_SECONDS = 40.0  # for the container, in a job of a minute
_RANK_SECONDS = 10.0  # for the container of a rank
_LONGEST = 2000  # characters of output


def main(folder: Path) -> None:
    """Find out all facts, and write them."""
    config = RunConfig.of(json.loads((folder / "config.json").read_text()))
    allocation = Allocation.from_environment()
    if allocation is None:
        raise SystemExit("detslurm: this is not a job")
    # Two nodes, so that there is the command of an MPI rank, too.
    node = NodeRun(
        ExperimentDir.at(folder.parent / "experiments" / "0"),
        StartRecord(run=1),
        config,
        allocation._replace(nodes=allocation.nodes[:1] * 2),
        [0],
        RunMark(str(folder), 0, 1, allocation.ref),
    )
    facts = {**_of_node(node), **_of_container(node, folder)}
    draft = folder / "facts.new"
    draft.write_bytes(msgspec.json.encode(msgspec.convert(facts, ContainerFacts)))
    draft.rename(folder / "facts.json")


def _of_node(node: NodeRun) -> dict[str, Any]:
    slurm, gpus = node.config.slurm, node.allocation.slot_ids
    image = node.config.image(slot_type_of(node.config, gpus)) or ""
    path = image_path(image, slurm.container, slurm.image_root)
    return {
        "node": os.uname().nodename,
        "runtime": slurm.container,
        "version": _version(slurm.container),
        "image": image_identity(path, slurm.container),
        "namespaces": _makes_namespaces(),
        "subuids": _has_subuids(),
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "gpus": len(gpus),
    }


def _version(runtime: str) -> str | None:
    program = next(filter(None, map(shutil.which, PROGRAMS[runtime])), None)
    if program is None:
        return None
    option = "version" if runtime == "enroot" else "--version"
    text = _ran([program, option], {"USER": getpass.getuser(), **os.environ}, _RANK_SECONDS)
    return f"{program} {text.strip().partition(os.linesep)[0]}"


def _makes_namespaces() -> bool | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        argv = ["unshare", "--user", "--map-root-user", "true"]
        done = subprocess.run(argv, capture_output=True, timeout=_RANK_SECONDS, check=False)
        return done.returncode == 0
    return None


def _has_subuids() -> bool:
    owners = {getpass.getuser(), str(os.getuid())}
    with suppress(OSError):
        lines = Path("/etc/subuid").read_text(errors="replace").splitlines()
        return any(line.partition(":")[0] in owners for line in lines)
    return False


def _of_container(node: NodeRun, folder: Path) -> dict[str, Any]:
    workdir = Path(temporary_directory()) / own_name("doctor")
    workdir.mkdir(mode=0o700)
    container = ContainerRun(node.config, workdir)
    try:
        shutil.copyfile(container_probe.__file__, workdir / "probe.py")
        return _tried(node, container, workdir, folder)
    except (NotReady, OSError, ValueError) as err:
        return {"output": str(err)}
    finally:
        container.remove_traces()
        remove(workdir)


def _tried(node: NodeRun, container: ContainerRun, workdir: Path, folder: Path) -> dict[str, Any]:
    peers = {
        "container_addrs": ["127.0.0.1"], "container_rank": 0, "container_slot_counts": [1],
    }  # fmt: skip
    alone = node._replace(allocation=node.allocation._replace(nodes=node.allocation.nodes[:1]))
    environment = alone.environment(peers, PreemptFlag.create().name)
    probe = ["python3", str(workdir / "probe.py")]
    places = {"store": str(folder), "HOME": environment.get("HOME")}
    places["TMPDIR"] = tmpdir_of(alone, environment) or "/tmp"
    words = [f"{name}={path}" for name, path in places.items() if path]
    argv, placed = contained(node, [*probe, "found.json", *words], environment, workdir)
    output = _ran(argv, placed, _SECONDS, workdir)
    return {
        "started": container.blame(1, "") is None,
        "output": output.strip()[-_LONGEST:],
        "inside": _read(workdir / "found.json", InsideFacts),
        "pmix": _pmix(node, placed, probe, workdir),
    }


def _pmix(
    node: NodeRun, environment: Mapping[str, str], probe: Sequence[str], workdir: Path
) -> tuple[str, ...] | None:
    """The variables of PMIx in the container of a rank."""
    if node.allocation.cluster == "local":
        return None
    rank = [*json.loads(environment[contract.CONTAINER])[1:], *probe, "rank.json"]
    here = node.allocation._replace(nodes=node.allocation.nodes[:1])
    step = here.step_command(rank, mpi=node.config.slurm.mpi or "pmix")
    _ran(step, environment, _RANK_SECONDS, workdir)
    found = _read(workdir / "rank.json", _RankFacts)
    return None if found is None else found.pmix


class _RankFacts(msgspec.Struct):
    pmix: tuple[str, ...]


def _read(path: Path, kind: type[T]) -> T | None:
    with suppress(OSError, ValueError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None


def _ran(
    argv: Sequence[str], env: Mapping[str, str], seconds: float, cwd: Path | None = None
) -> str:
    """The output of a command, or a sentence where it takes too long."""
    process = subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with process:
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return f"not ready after {seconds:.0f} s"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
