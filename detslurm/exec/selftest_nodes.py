"""The job of `detslurm selftest`: ask each node of the allocation for its facts.

`python -m detslurm.exec.selftest_nodes FOLDER` starts one `srun` a node, so that a broken node
hides no other, and writes FOLDER/facts.json.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from detslurm.exec.selftest_node import MARK
from detslurm.slurm import Allocation
from detslurm.slurm.mpi import mpi_types
from detslurm.store import fs
from detslurm.store.selftest_facts import NodeAnswer, NodeFacts, NodesFacts

_AT_ONCE: Final = 16
_SECONDS: Final = 60.0
_RANK: Final = "detslurm-rank"


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
    argv = [sys.executable, "-P", "-m", "detslurm.exec.selftest_node", str(folder)]
    asked = time.time()
    out, error = _step(allocation, (node,), argv)
    lines = out.splitlines()
    facts = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    return NodeAnswer(
        node=node,
        facts=msgspec.json.decode(facts[0], type=NodeFacts) if facts else None,
        asked=asked,
        answered=time.time(),
        printed="\n".join(line for line in lines if not line.startswith(MARK)),
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
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"srun: no answer within {_SECONDS:.0f} seconds"
    return done.stdout, "\n".join(done.stderr.strip().splitlines()[-3:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
