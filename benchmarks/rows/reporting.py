"""`report_training_metrics`: what a report costs the training loop."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.calls import trace
from benchmarks.measure import interleaved, timed
from benchmarks.report import Row
from detslurm.core._distributed import DistributedContext
from detslurm.core._recorder import Recorder
from detslurm.core._train import TrainContext

REPORTS = 200_000
FLOOR = "JSONL, held open"
TRACKERS = [
    ("torch's SummaryWriter", "torch.utils.tensorboard", "tensorboard"),
    ("tensorboardX", "tensorboardX", "tensorboardX"),
]
SCRIPT = """\
import detslurm as det
with det.core.init() as core:
    for step in range({reports}):
        core.train.report_training_metrics(step, {{"loss": 0.5}})
"""


def measure(bench: Bench) -> Iterator[Row]:
    """Calls a second beside a plain JSONL writer and beside trackers that are installed."""
    folder = bench.folder()
    count = 0

    def fresh() -> Path:
        nonlocal count
        count += 1
        return folder / f"{count}.jsonl"

    contenders = {"": lambda: _ours(fresh()), FLOOR: lambda: _jsonl(fresh())}
    for peer, module, package in TRACKERS:
        if importlib.util.find_spec(package):
            contenders[peer] = partial(_tensorboard, module, fresh())
    seconds = dict(zip(contenders, interleaved(*contenders.values()), strict=True))
    ours = REPORTS / seconds.pop("")
    for peer, theirs in seconds.items():
        yield Row(
            what="report_training_metrics", ours=ours / 1e3, unit="k/s",
            anchor=REPORTS / theirs / 1e3, peer=peer, least=100,
            least_ratio=0.8 if peer == FLOOR else None,
        )  # fmt: skip
    yield Row(
        what="report_training_metrics", ours=calls_of_a_report(bench), unit="path calls a report",
        most=0,
    )  # fmt: skip


def calls_of_a_report(bench: Bench) -> float:
    """Path calls of one report: what 10,000 more of them add to a script by hand."""
    environment = bench.environment(bench.folder())

    def calls(reports: int) -> int:
        return trace(
            [sys.executable, "-c", SCRIPT.format(reports=reports)], environment
        ).paths  # fmt: skip

    calls(1)  # the store itself is made once
    return max(calls(11_000) - calls(1_000), 0) / 10_000


def _ours(path: Path) -> float:
    dist = DistributedContext()
    recorder = Recorder(path)
    train = TrainContext(
        dist, recorder, flag=None, best_validation=lambda: None, metadata=None
    )  # fmt: skip
    seconds = timed(lambda: _each(lambda step: train.report_training_metrics(step, {"loss": 0.5})))
    recorder.close()
    return seconds


def _jsonl(path: Path) -> float:
    with path.open("w") as out:
        return timed(
            lambda: _each(
                lambda step: out.write(json.dumps({"step": step, "loss": 0.5}) + "\n")
            )
        )  # fmt: skip


def _tensorboard(module: str, path: Path) -> float:
    writers = importlib.import_module(module)
    part = REPORTS // 20  # it is that slow
    with writers.SummaryWriter(os.fspath(path)) as writer:
        spent = timed(lambda: _each(lambda step: writer.add_scalar("loss", 0.5, step), part))
    return spent * REPORTS / part


def _each(report: Callable[[int], object], reports: int = REPORTS) -> None:
    for step in range(reports):
        report(step)
