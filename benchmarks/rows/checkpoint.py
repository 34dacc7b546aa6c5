"""A checkpoint of 512 MB through `store_path`, beside the same files written by hand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measure import interleaved, timed
from benchmarks.report import Row
from detslurm.core._checkpoint import CheckpointContext
from detslurm.core._checkpoint_records import CheckpointRecords
from detslurm.core._distributed import DistributedContext
from detslurm.core._recorder import Recorder
from detslurm.storage import SharedFS

FILES, MEGABYTES = 8, 64


def measure(bench: Bench) -> Iterator[Row]:
    """Seconds until all is on disk: files by hand are synced one by one, then their directory."""
    folder = bench.folder()
    block = os.urandom(1 << 20)
    recorder = Recorder(folder / "run-1.jsonl")
    storage = SharedFS(folder / "checkpoints")
    records = CheckpointRecords(recorder, needs_steps=True)
    context = CheckpointContext(DistributedContext(), storage, records)

    def ours() -> float:
        def save() -> None:
            with context.store_path({"steps_completed": 1}) as (path, _):
                _write(path, block, sync=False)

        seconds = timed(save)
        shutil.rmtree(storage.base)
        return seconds

    def by_hand() -> float:
        place = folder / "by-hand"
        place.mkdir()

        def save() -> None:
            _write(place, block, sync=True)
            _sync(place)

        seconds = timed(save)
        shutil.rmtree(place)
        return seconds

    mine, other = interleaved(ours, by_hand, rounds=8)
    recorder.close()
    size = FILES * MEGABYTES
    yield Row(
        what=f"checkpoint of {size} MB by store_path", ours=mine, unit="s",
        anchor=other, peer="same files by hand, fsync", most_ratio=1.05,
    )  # fmt: skip


def _write(place: Path, block: bytes, *, sync: bool) -> None:
    for number in range(FILES):
        with (place / f"part-{number}").open("wb") as out:
            for _ in range(MEGABYTES):
                out.write(block)
            if sync:
                out.flush()
                os.fsync(out.fileno())


def _sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
