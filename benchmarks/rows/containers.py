"""A container: from the start of the node's agent to the code, beside a run without one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measure import interleaved
from benchmarks.peers import REPOSITORY
from benchmarks.report import Row, Skip
from benchmarks.rows.startup import Startup


def measure(bench: Bench) -> Iterator[Row]:
    """With Charliecloud, whose own share is a tenth of a second; the rest is our library's copy."""
    contained = Startup(bench, slurm=", container: charliecloud", image=str(_image(bench)))
    bare = Startup(bench)
    with_container, without = interleaved(
        contained.agent_seconds, bare.agent_seconds, rounds=7
    )  # fmt: skip
    yield Row(
        what="agent before the user's code in a container", ours=1e3 * with_container, unit="ms",
        anchor=1e3 * without, peer="the same without",
    )  # fmt: skip


def _image(bench: Bench) -> Path:
    if shutil.which("ch-run") is None:
        raise Skip("ch-run is not installed")
    argv = [str(REPOSITORY / "scripts" / "image.sh"), "bookworm"]
    made = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        raise Skip("there is no image")
    folder = bench.folder() / "image"
    folder.mkdir()
    tar = made.stdout.split()[-1]
    subprocess.run(["tar", "--extract", "--no-same-owner", f"--file={tar}"], cwd=folder, check=True)
    return folder
