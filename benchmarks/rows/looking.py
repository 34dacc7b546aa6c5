"""A snapshot of trained experiments, beside what TensorBoard needs to load the same curve."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.looking import CHUNK, trained
from benchmarks.measure import run
from benchmarks.report import Row
from detslurm.store import Store, TrialDir, metric_columns

STEPS = 16 * CHUNK
"""Of each trial: a little more than a million."""

TRIALS = 100
_PART = 8  # TensorBoard is that slow: it loads so small a part
PEER = f"TensorBoard's EventAccumulator, {_PART} x a part"

SNAPSHOT = """\
import sys, time
from pathlib import Path
from detslurm.sdk import Client
client = Client(Path(sys.argv[1]))
began = time.process_time()
from detslurm.look.snapshot import encode, snapshot
size = len(encode(snapshot([client.experiment(int(sys.argv[2]))])))
"""
TENSORBOARD = """\
import sys, time
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
began = time.process_time()
found = EventAccumulator(sys.argv[1])
found.Reload()
size = len(found.Scalars("loss"))
"""
# Not what the parent is told of its child: that has the parent's own pages at the fork.
REPORT = """\
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
print(time.process_time() - began, int(peak) / 1024, size)
"""


class Cost(NamedTuple):
    """Seconds of the processor, megabytes of memory, and what came out of it."""

    seconds: float
    memory: float
    size: int


def measure(bench: Bench) -> Iterator[Row]:
    """An experiment whose metrics are compacted, and one curve alone."""
    root = bench.folder() / "store"
    store = Store.open(root)
    many = trained(store, TRIALS, STEPS)
    cost = cost_of(SNAPSHOT, root, many.id)
    what = f"snapshot of {TRIALS} x {STEPS:,} steps"
    yield Row(what=what, ours=cost.seconds, unit="s", most=3)
    yield Row(what=what, ours=cost.size / 1e6, unit="MB of JSON", most=5)
    yield Row(what=what, ours=cost.memory, unit="MB of memory", most=300)
    one = trained(store, 1, STEPS)
    peer = _peer(bench.folder(), one.trial(one.created().first_trial))
    yield from _beside(peer, "compacted", cost_of(SNAPSHOT, root, one.id))
    one.metrics_path.unlink()
    yield from _beside(peer, "from the log", cost_of(SNAPSHOT, root, one.id))


def _beside(peer: float | None, source: str, ours: Cost) -> Iterator[Row]:
    what = f"snapshot of {STEPS:,} steps, {source}"
    yield Row(what=what, ours=ours.seconds, unit="s", anchor=peer, peer=PEER, most_ratio=1)
    yield Row(what=what, ours=ours.memory, unit="MB of memory")


def cost_of(code: str, *arguments: object) -> Cost:
    """What a piece of Python costs in a process of its own."""
    spent = run([sys.executable, "-c", code + REPORT, *map(str, arguments)])
    seconds, memory, size = spent.output.splitlines()[-1].split()
    return Cost(float(seconds), float(memory), int(size))


def _peer(folder: Path, trial: TrialDir) -> float | None:
    """Seconds of TensorBoard on the trial's losses; None where it is not installed."""
    if find_spec("tensorboard") is None:
        return None
    steps, metrics = metric_columns(trial, "training", ["loss"])
    part = STEPS // _PART
    pairs = zip(steps[:part], metrics["loss"][:part], strict=True)
    write_events(folder / "events.out.tfevents.1.n1", (("loss", *pair) for pair in pairs))
    return _PART * cost_of(TENSORBOARD, folder).seconds


def write_events(path: Path, scalars: Iterable[tuple[str, int, float]]) -> None:
    """Tags, steps and values as TensorBoard's own writer puts them down."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=0, file_version="brain.Event:2").SerializeToString())
        for tag, step, number in scalars:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=float(number))])
            event = Event(wall_time=1.0 * step, step=int(step), summary=summary)
            writer.write(event.SerializeToString())
        writer.flush()
