"""The job of `detslurm selftest`: ask each node of the allocation for its facts.

`python -m detslurm.exec.selftest_nodes FOLDER` starts one `srun` a node, so that a broken node
hides no other, and writes FOLDER/facts.json. With a second word it is the task of such a step: it
tries FOLDER, the node's disk, its clock and Slurm, and prints the facts as a line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from detslurm.slurm import Allocation, SlurmError, command, mpi_types
from detslurm.store import NodeAnswer, NodeFacts, NodesFacts, fs

_AT_ONCE: Final = 16
_STEP_SECONDS: Final = 60.0
_SECONDS: Final = 20.0
_MEGABYTE: Final = b"\0" * (1 << 20)
_RANK: Final = "detslurm-rank"
_MARK: Final = "detslurm-selftest-facts "
"""So begins the line with the facts: a site's TaskProlog may print others."""


def main(folder: Path) -> None:
    """Ask all nodes, then PMIx on those that have answered, and write the facts."""
    allocation = Allocation.from_environment()
    if allocation is None:
        raise SystemExit("detslurm: this is not a job")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = tuple(pool.map(lambda node: _ask(allocation, node, folder), allocation.nodes))
    good = tuple(answer.node for answer in answers if answer.facts is not None)
    wanted = len(good) if "pmix" in mpi_types() else 0
    ranks, error = _pmix(allocation, good) if wanted else (0, "")
    facts = NodesFacts(
        answers=answers,
        pmix_ranks=ranks,
        pmix_wanted=wanted,
        pmix_error=error,
        calls=len(answers) * 2 + 1 + bool(wanted),
    )
    fs.replace_file(folder / "facts.json", msgspec.json.encode(facts))


def _ask(allocation: Allocation, node: str, folder: Path) -> NodeAnswer:
    argv = [sys.executable, "-P", "-m", "detslurm.exec.selftest_nodes", str(folder), "node"]
    asked = time.time()
    out, error = _step(allocation, (node,), argv)
    lines = out.splitlines()
    facts = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
    return NodeAnswer(
        node=node,
        facts=msgspec.json.decode(facts[0], type=NodeFacts) if facts else None,
        asked=asked,
        answered=time.time(),
        printed="\n".join(line for line in lines if not line.startswith(_MARK)),
        error=error,
    )


def _pmix(allocation: Allocation, nodes: Sequence[str]) -> tuple[int, str]:
    """How many ranks have a rank of PMIx's, and the errors."""
    shell = f'echo "{_RANK} ${{PMIX_RANK-}}"'
    out, error = _step(allocation, nodes, ["sh", "-c", shell], mpi="pmix")
    lines = [line.split() for line in out.splitlines()]
    return len({words[1] for words in lines if words[:1] == [_RANK] and words[1:]}), error


def _step(
    allocation: Allocation, nodes: Sequence[str], argv: list[str], mpi: str | None = None
) -> tuple[str, str]:
    """The output of a step on these nodes: stdout, and the last lines of stderr."""
    there = allocation._replace(nodes=tuple(nodes), gpus_of_job=None)
    words = there.step_command(argv, mpi=mpi)
    place = words.index("srun") + 1
    words.insert(place, f"--nodelist={','.join(nodes)}")
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_STEP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"srun: no answer within {_STEP_SECONDS:.0f} seconds"
    return done.stdout, "\n".join(done.stderr.strip().splitlines()[-3:])


def node_facts(folder: Path) -> NodeFacts:
    """All facts of this node."""
    now = time.time()
    store, owner = _store(folder)
    tmp = Path(os.environ.get("TMPDIR") or "/tmp")
    free, problem, executes = _disk(tmp)
    return NodeFacts(
        time=now,
        utc_offset=_utc_offset(),
        store=store,
        owner=owner,
        tmp=str(tmp),
        tmp_free=free,
        tmp_problem=problem,
        tmp_exec=executes,
        controller=_controller(),
    )


def _store(folder: Path) -> tuple[str | None, int | None]:
    """Why the store can't be used, and the owner of a new file there."""
    path = folder / f"node-{os.uname().nodename}-{os.getpid()}"
    try:
        path.write_bytes(b"")
        owner = path.stat().st_uid
        path.unlink()
    except OSError as error:
        return f"{error.filename}: {error.strerror}", None
    return None, owner


def _disk(tmp: Path) -> tuple[int | None, str | None, bool | None]:
    """Free bytes, why a megabyte can't be written, and whether a program can be started."""
    try:
        state = os.statvfs(tmp)
        free = state.f_bavail * state.f_frsize
    except OSError as error:
        return None, f"{tmp}: {error.strerror}", None
    try:
        with tempfile.TemporaryDirectory(prefix="detslurm-selftest-", dir=tmp) as folder:
            (Path(folder) / "data").write_bytes(_MEGABYTE)
            return free, None, _executes(Path(folder) / "program")
    except OSError as error:
        return free, f"{tmp}: {error.strerror}", None


def _executes(program: Path) -> bool:
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o700)
    try:
        return subprocess.run([program], check=False, timeout=_SECONDS).returncode == 0
    except PermissionError:
        return False


def _utc_offset() -> int:
    """That of the node, not that of a TZ which the job brings along."""
    os.environ.pop("TZ", None)
    time.tzset()
    return time.localtime().tm_gmtoff


def _controller() -> str | None:
    """Why the controller does not answer: runners ask it for requeues from here."""
    job = os.environ.get("SLURM_JOB_ID", "")
    try:
        command.run(["scontrol", "--oneliner", "show", "job", job], patience=0, within=_SECONDS)
    except SlurmError as error:
        return error.message
    return None


if __name__ == "__main__":
    if sys.argv[2:]:
        facts_line = msgspec.json.encode(node_facts(Path(sys.argv[1]))).decode()
        print(_MARK + facts_line, flush=True)
    else:
        main(Path(sys.argv[1]))
