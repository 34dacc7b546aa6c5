"""Loading: shards and resumed streams of real batches, in this process and in workers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
from collections import namedtuple
from itertools import islice
from multiprocessing import current_process, util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

from detslurm._base.contract import PREEMPT_FLAG
from detslurm._base.flag import PreemptFlag
from detslurm.pytorch._data import DataLoader, data_length, to_device

# What torch says of two workers where a test may use one CPU.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Counted(data.Dataset):  # type: ignore[misc]
    """Numbers, and how often each was asked for, in any process."""

    def __init__(self, size: int = 23) -> None:
        self.asked = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.asked)

    def __getitem__(self, index: int) -> int:
        self.asked[index] += 1
        return index


class Augmented(data.Dataset):  # type: ignore[misc]
    """Each record with the random numbers of every library."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> torch.Tensor:
        numbers = [index, torch.rand(()).item(), random.random(), np.random.rand()]
        return torch.tensor(numbers, dtype=torch.float64)


def stream(loader: DataLoader, count: int, **kwargs: Any) -> list[list[Any]]:
    """The first batches of a training loader."""
    found = loader.get_data_loader(repeat=True, seed=5, **kwargs)
    return [batch.tolist() for batch in islice(found, count)]


BY_FOUR: list[dict[str, Any]] = [
    {"batch_size": 4, "shuffle": True},
    {"batch_size": 4, "shuffle": True, "drop_last": True},
    {"batch_size": 4, "shuffle": True, "generator": torch.Generator()},
    {"batch_size": 4, "sampler": data.RandomSampler(range(23))},
    {
        "batch_size": None,
        "batch_sampler": data.BatchSampler(data.RandomSampler(range(23)), 4, False),
    },
]


@pytest.mark.parametrize("options", BY_FOUR)
def test_skipped_batches_are_not_loaded(options: dict[str, Any]) -> None:
    """Going on in the third epoch touches no record but those of the batch that is read."""
    dataset = Counted()
    loader = DataLoader(dataset, **options)
    whole = stream(loader, 16)
    dataset.asked.zero_()
    assert stream(loader, 1, skip=15) == whole[15:]
    assert dataset.asked.nonzero().flatten().tolist() == sorted(whole[15])
    assert dataset.asked.sum() == len(whole[15])


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_load_ahead_only(persistent: bool) -> None:
    """They don't load what is skipped either."""
    dataset = Counted()
    loader = DataLoader(
        dataset, 4, shuffle=True, num_workers=1, prefetch_factor=2, persistent_workers=persistent
    )
    ahead = [
        record
        for batch in stream(DataLoader(range(23), 4, shuffle=True), 18)[15:]
        for record in batch
    ]
    stream(loader, 1, skip=15)
    assert 0 < dataset.asked.sum() <= len(ahead)
    assert set(dataset.asked.nonzero().flatten().tolist()) <= set(ahead)


WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "prefetch_factor": 1},
]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_workers_change_nothing(workers: dict[str, Any]) -> None:
    """Shards resumed in mid-epoch are the same batches, whoever loads them."""
    plain = DataLoader(range(23), batch_size=4, shuffle=True)
    loader = DataLoader(range(23), batch_size=4, shuffle=True, **workers)
    for rank in range(2):
        shard = {"num_replicas": 2, "rank": rank}
        assert stream(loader, 4, skip=5, **shard) == stream(plain, 9, **shard)[5:]


def test_persistent_workers_serve_every_validation() -> None:
    """A loader that isn't repeated can be iterated over again, by the same workers."""
    loader = DataLoader(range(10), batch_size=4, num_workers=1, persistent_workers=True)
    found = loader.get_data_loader(num_replicas=2, rank=0)
    assert [[b.tolist() for b in found] for _ in range(2)] == [[[0, 1, 2, 3], [8, 9]]] * 2


@pytest.mark.parametrize("count", [1, 2])
def test_augmentation_in_workers_is_taken_up(count: int) -> None:
    """Random numbers in workers follow from the seed and the batch: no matter where training was
    interrupted, or how many workers there are."""
    one = DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=1)
    loader = DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=count)
    whole = stream(one, 9)
    assert stream(loader, 4, skip=5) == whole[5:]
    shards = [stream(loader, 3, skip=1, num_replicas=2, rank=rank) for rank in range(2)]
    assert [b for turn in zip(*shards, strict=True) for b in turn] == whole[2:8]
    drawn = [number for batch in whole for record in batch for number in record[1:]]
    assert len(set(drawn)) == len(drawn)


def own_seed(worker: int) -> None:
    global STARTED
    STARTED = worker


STARTED = -1


class Started(data.Dataset):  # type: ignore[misc]
    """Which worker was set up to read it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return STARTED


def test_the_users_worker_functions_are_called() -> None:
    """`worker_init_fn` and `collate_fn` do their work as ever."""
    loader = DataLoader(
        Started(), batch_size=2, num_workers=2, worker_init_fn=own_seed, collate_fn=torch.tensor
    )
    assert stream(loader, 3) == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(method: str) -> None:
    """What workers need can be sent to them."""
    loader = DataLoader(range(8), batch_size=2, num_workers=1, multiprocessing_context=method)
    assert stream(loader, 2, skip=1) == [[2, 3], [4, 5]]


def test_workers_that_could_not_send_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where paths of sockets would be too long they send nothing, and training waits forever."""
    room = 107 - len("/pymp-12345678/listener-12345678")
    loader = DataLoader(range(8), batch_size=2, num_workers=1)
    # Python remembers there which directory its sockets are in.
    fresh = {k: v for k, v in vars(current_process())["_config"].items() if k != "tempdir"}
    short = tempfile.mkdtemp(dir="/tmp")  # pytest's has a user's name in it
    util.Finalize(None, shutil.rmtree, (short,), exitpriority=-200)  # after Python's own, in it
    for length in (room, room + 1):
        long = Path(short, "x" * (length - len(short) - 1))
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        monkeypatch.setattr(current_process(), "_config", dict(fresh))
        if length > room:
            with pytest.raises(OSError, match="are 1 byte too long; set TMPDIR"):
                stream(loader, 1)
        else:
            assert stream(loader, 1) == [[0, 1]]


def end(worker: int) -> None:
    """Torch raises when a worker is dead, in the middle of whatever the process does."""
    with pytest.raises(RuntimeError, match="killed by signal: Terminated"):
        os.kill(worker, signal.SIGTERM)
        threading.Event().wait(60)


def test_workers_live_through_a_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Slurm's SIGTERM reaches the workers, too, they go on loading; a second one, or one
    without a preemption, ends them."""
    flag = PreemptFlag.create()
    monkeypatch.setenv(PREEMPT_FLAG, flag.name)
    loader = DataLoader(range(100), batch_size=1, num_workers=1, prefetch_factor=1)
    for repeat in (True, False):
        batches = iter(loader.get_data_loader(repeat=repeat))
        next(batches)
        (worker,) = batches._workers
        flag.request_preemption()
        os.kill(worker.pid, signal.SIGTERM)
        assert [next(batches).item() for _ in range(9)] == list(range(1, 10))
        end(worker.pid)


def test_workers_die_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGTERM that comes alone ends a worker, as ever."""
    flag = PreemptFlag.create()
    monkeypatch.setenv(PREEMPT_FLAG, flag.name)
    batches = iter(DataLoader(range(9), num_workers=1, prefetch_factor=1))
    next(batches)
    end(batches._workers[0].pid)  # type: ignore[attr-defined]
    flag.close()


def test_the_seed_is_torchs_own_unless_there_is_a_generator() -> None:
    """Seeding torch, or a generator, is all it takes for the same order again."""

    def order(generator: torch.Generator | None = None) -> list[int]:
        loader = DataLoader(range(99), batch_size=99, shuffle=True, generator=generator)
        (batch,) = loader
        return list(batch.tolist())

    state = torch.get_rng_state()
    try:
        torch.manual_seed(1)
        first = order()
        torch.rand(5)
        assert order() == first
        torch.manual_seed(2)
        assert order() != first
        assert order(torch.Generator().manual_seed(1)) == first
    finally:
        torch.set_rng_state(state)


def test_outside_of_a_trial() -> None:
    """The loader itself can be iterated over: one pass, not sharded."""
    loader = DataLoader(range(5), batch_size=2)
    assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4]]
    assert len(loader) == 3
    shuffled = DataLoader(range(100), batch_size=100, shuffle=True)
    passes = {tuple(batch.tolist()) for _ in range(3) for batch in shuffled}
    assert len(passes) == 3


class Stream(data.IterableDataset):  # type: ignore[misc]
    """Numbers without an index."""

    def __iter__(self) -> Any:
        return iter(range(3))


SAMPLER = data.SequentialSampler(range(4))
BATCHES = data.BatchSampler(SAMPLER, 2, False)
MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (Stream(), {}, "disable_dataset_reproducibility_checks"),
    (range(4), {"batch_size": None}, "batch_size=None"),
    (range(4), {"sampler": SAMPLER, "shuffle": True}, "mutually exclusive"),
    (range(4), {"batch_sampler": BATCHES, "batch_size": 2}, "mutually exclusive"),
    (range(4), {"batch_sampler": BATCHES, "shuffle": True}, "mutually exclusive"),
    (range(4), {"batch_sampler": BATCHES, "sampler": SAMPLER}, "mutually exclusive"),
    (range(4), {"batch_sampler": BATCHES, "drop_last": True}, "mutually exclusive"),
    (range(4), {"num_workers": -1}, "num_workers"),
    (range(4), {"timeout": -1}, "timeout"),
    (range(4), {"prefetch_factor": 2}, "prefetch_factor"),
    (range(4), {"persistent_workers": True}, "persistent_workers"),
]


@pytest.mark.parametrize(("dataset", "options", "says"), MISTAKES)
def test_mistakes_are_told_at_once(dataset: Any, options: dict[str, Any], says: str) -> None:
    """What can't be loaded is a `ValueError` where the loader is made."""
    with pytest.raises(ValueError, match=says):
        DataLoader(dataset, **options)


Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize(
    ("batch", "length"),
    [
        (torch.zeros(3, 2), 3),
        (np.zeros((4, 2)), 4),
        ({"name": "a", "image": torch.zeros(5)}, 5),
        ([["text"], {"image": np.zeros(6)}, torch.zeros(1)], 6),
        (Pair("a", torch.zeros(7)), 7),
    ],
)
def test_records_in_a_batch(batch: Any, length: int) -> None:
    """The first tensor or array tells."""
    assert data_length(batch) == length


def test_batches_without_a_length() -> None:
    """Nothing to count is a `ValueError`, an unknown kind of batch a `TypeError`."""
    with pytest.raises(ValueError, match="get_batch_length"):
        data_length({"name": "a"})
    with pytest.raises(TypeError, match="Data of incorrect type"):
        data_length("text")


class Graphs:
    """A batch of somebody's own."""

    device = "cpu"

    def to(self, device: Any) -> Graphs:
        moved = Graphs()
        moved.device = device
        return moved


def test_whatever_is_nested_is_moved(caplog: pytest.LogCaptureFixture) -> None:
    """Tensors and arrays move, containers keep their kind, the rest stays with one warning."""
    warned: set[type] = set()
    batch = {
        "pair": Pair(torch.zeros(2), np.ones(2)),
        "list": [torch.zeros(1), (np.float64(1.5), "text", "more", np.str_("name"))],
        "names": np.array(["a", "b"]),
        "graphs": Graphs(),
    }
    moved = to_device(batch, "meta", warned)
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].image.device.type == moved["pair"].label.device.type == "meta"
    assert moved["list"][0].device.type == moved["list"][1][0].device.type == "meta"
    assert moved["list"][1][1:] == ("text", "more", "name")
    assert moved["names"].tolist() == ["a", "b"]
    assert isinstance(moved["list"][1], tuple)
    assert moved["graphs"].device == "meta"
    to_device(["again"], "meta", warned)
    assert [r.getMessage() for r in caplog.records] == [
        f"data of type {kind} is not moved to the device" for kind in ("str", "str_", "ndarray")
    ]


def test_values_survive_the_move() -> None:
    """Arrays become tensors with the same values and type."""
    moved = to_device({"a": np.arange(3, dtype=np.int16)}, "cpu")
    assert moved["a"].dtype == torch.int16 and moved["a"].tolist() == [0, 1, 2]


def test_only_what_comes_from_a_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host could read a copy to its own memory before it is there."""
    asked: list[bool] = []

    def to(self: torch.Tensor, device: str, non_blocking: bool = False) -> torch.Tensor:
        asked.append(non_blocking)
        return self

    monkeypatch.setattr(torch.Tensor, "to", to)
    to_device([torch.ones(1), torch.ones(1, device="meta")], "cpu")
    assert asked == [True, False]
