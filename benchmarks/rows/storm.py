"""A start storm: 64 elements of an array at once on 4 nodes, where each look-up takes 1 ms.

The store, the environment and the standard library lie on that file system: a preloaded library
delays all calls of Python's with a path there (not those of the dynamic loader), and counts them.
The elements share this machine's cores, which bound what no file system delays: a lone element
shows what the delays alone cost.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import detslurm
from benchmarks.bench import Bench
from benchmarks.report import Row, Skip
from detslurm.store import Store
from tests.cluster import Cluster, ClusterSpec, User, guarded, missing_programs, wait_for

ELEMENTS = 64
DELAY = 1000  # microseconds
PATIENCE = 120.0
SCRIPT = """\
import os, sys, time
now = time.time()
with open(os.environ["SLOW_COUNT"], "rb") as count:
    calls = int.from_bytes(count.read(), sys.byteorder)
print("started", os.environ["STORM_BEGAN"], now, calls, flush=True)
"""
CONFIG = """\
name: storm
entrypoint: python3 train.py
hyperparameters:
  x: {{type: int, minval: 0, maxval: 10000, count: {count}}}
searcher: {{name: grid, metric: loss, max_length: 1}}
slurm:
  slot_type: cpu
  setup: {setup}
"""


class Storm(NamedTuple):
    """Seconds from each batch script's first line to the first line of the user's code."""

    each: list[float]
    all: float  # from the first of the batch scripts to the last line
    calls: int  # of all processes before the first of these lines

    @classmethod
    def read(cls, lines: list[str]) -> Storm:
        """By the lines that the scripts have printed."""
        words = [line.partition("started ")[2].split() for line in lines if "started " in line]
        if not words:
            raise RuntimeError("no element has started")
        times = [(float(began), float(started)) for began, started, _ in words]
        each = [started - began for began, started in times]
        span = max(started for _, started in times) - min(began for began, _ in times)
        return cls(sorted(each), span, min(int(calls) for _, _, calls in words))


class Site:
    """A cluster with room for all elements, and its file system."""

    def __init__(self, cluster: Cluster, delays: Path) -> None:
        self._cluster, self._delays = cluster, delays
        user = cluster.user("alice")
        self._folder = user.folder_in(cluster.layout.shared, "storm")
        path = f"{Path(sys.executable).parent}:{user.env['PATH']}"
        env = user.env | {"DETSLURM_ROOT": str(self._folder / "store"), "PATH": path}
        self._user: User = replace(user, cwd=self._folder, env=env)
        self._count = self._folder / "calls"
        (self._folder / "code").mkdir()
        (self._folder / "code" / "train.py").write_text(SCRIPT)

    def _setup(self) -> list[str]:
        """What batch scripts begin with."""
        self._count.write_bytes(bytes(8))
        self._user.own(self._folder)
        slow = {
            str(self._folder / "store"),
            sys.prefix,
            sysconfig.get_path("stdlib"),
            *(place for place in sys.path if place.startswith("/")),
            str(Path(detslurm.__file__).parent),
        }
        return [
            "export STORM_BEGAN=$(date +%s.%N)",
            f"export SLOW_US={DELAY} SLOW_UNDER={':'.join(sorted(slow))}",
            f"export SLOW_COUNT={self._count} LD_PRELOAD={self._delays}",
        ]

    def ours(self, count: int) -> Storm:
        """`count` trials of a grid."""
        config = self._folder / "storm.yaml"
        setup = json.dumps(self._setup())
        config.write_text(CONFIG.format(count=count, setup=setup))
        self._user.own(self._folder)
        said = self._user.run("detslurm", "submit", str(config), "code", "--json").stdout
        self._wait()
        store = Store(Path(self._user.env["DETSLURM_ROOT"]))
        experiment = store.experiment(json.loads(said)["data"]["experiment_id"])
        logs = experiment.path.glob("trials/*/*/run-1.log")
        return Storm.read([line for log in logs for line in log.read_text().splitlines()])

    def bare(self, count: int) -> Storm:
        """The same script in an array of as many elements."""
        script = self._folder / "bare.sh"
        lines = ["#!/bin/sh", *self._setup(), "srun --quiet python3 code/train.py"]
        script.write_text("\n".join(lines) + "\n")
        self._user.own(self._folder)
        for old in self._folder.glob("bare-*.out"):
            old.unlink()
        array = [f"--array=0-{count - 1}", "--output=bare-%a.out", "--cpus-per-task=1"]
        self._user.run("sbatch", *array, str(script))
        self._wait()
        outputs = self._folder.glob("bare-*.out")
        return Storm.read([line for out in outputs for line in out.read_text().splitlines()])

    def _wait(self) -> None:
        wait_for(lambda: not self._cluster.queued(self._user.name), PATIENCE, "the storm to end")


def measure(bench: Bench) -> Iterator[Row]:
    """Beside an array of bare scripts; then a lone element."""
    if missing := missing_programs(accounting=True):
        raise Skip(f"not installed: {', '.join(missing)}")
    if (compiler := shutil.which("cc")) is None:
        raise Skip("there is no C compiler")
    folder = bench.folder()
    folder.chmod(0o755)
    source = Path(__file__).parents[1] / "slow_paths.c"
    delays = folder / "slow_paths.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", delays, source, "-ldl"], check=True)
    delays.chmod(0o755)
    with ExitStack() as stack:
        cpus = ELEMENTS // 4
        cluster = stack.enter_context(guarded(Cluster(ClusterSpec(name="storm", cpus=cpus))))
        yield from _rows(Site(cluster, delays))


def _rows(site: Site) -> Iterator[Row]:
    what = f"{ELEMENTS} starts at once"
    ours, bare = site.ours(ELEMENTS), site.bare(ELEMENTS)
    for which, own, other in (
        ("median element", median(ours.each), median(bare.each)),
        ("last element", ours.each[-1], bare.each[-1]),
        ("all of them", ours.all, bare.all),
    ):
        yield Row(
            what=f"{what}, 1 ms a call: {which}", ours=own, unit="s",
            anchor=other, peer="sbatch, srun python3",
        )  # fmt: skip
    one, bare = site.ours(1), site.bare(1)
    yield Row(
        what="a start alone, 1 ms a call: to your first line", ours=one.each[0], unit="s",
        anchor=bare.each[0], peer="sbatch, srun python3",
    )  # fmt: skip
    yield Row(
        what="a start alone, to your first line", ours=one.calls, unit="path calls",
        anchor=bare.calls, peer="sbatch, srun python3",
    )  # fmt: skip
