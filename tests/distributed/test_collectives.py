"""One suite of collective calls over the transports that need no MPI."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm.core import DistributedContext, DistributedError
from detslurm.core._launched import topology_by_slurm, topology_by_tf_config
from detslurm.core.transports.health import CHECK_INTERVAL, Health
from detslurm.core.transports.sockets.handshake import Address
from detslurm.core.transports.sockets.rendezvous import Rendezvous, host, join
from tests.distributed import scenarios
from tests.distributed.ranks import free_port, in_threads, topologies

REPOSITORY = Path(__file__).resolve().parents[2]
SHAPES = {  # ranks on each node
    "local": ["2", "4"],
    "tcp": ["2", "3", "1,1", "2,1", "2,2", "1,1,1,1", "1,2,3,4"],
    "auto": ["1", "2", "2,2", "1,2", "3,1", "4,1,3", "4,3,2,1"],
}
EVERY = [(transport, shape) for transport, shapes in SHAPES.items() for shape in shapes]
# Threads are in all shapes; processes in those that differ in their connections.
PLACES = [
    "local/2", "local/4", "tcp/2", "tcp/1,1", "tcp/1,2,3,4", "auto/1", "auto/2,2", "auto/4,1,3",
]  # fmt: skip
SOME = ["local/3", "tcp/2", "auto/2,2"]


def groups(*scenarios: str, places: Sequence[str] = SOME) -> list[str]:
    """Each scenario at each place."""
    return [f"{scenario}/{place}" for place in places for scenario in scenarios]


COLLECTIVES = groups("collectives", places=PLACES)
UNEQUAL, LARGE = groups("unequal"), groups("large")
MISTAKES = groups(
    "different_calls", "different_calls_large", "different_scopes", "unpicklable",
    places=[*SOME, "tcp/2,2"],
)  # fmt: skip
GOING = groups("one_leaves", "goodbyes", "killed", "leaves_children", "interrupted")
SLOW = groups("slow", places=["local/2", "tcp/1,1"])
SIDE_BY_SIDE = groups("side_by_side", places=["local/2", "tcp/2"] * 3)


def run(*names: str, **env: str) -> dict[str, str]:
    """Run groups of processes: what is wrong with each of them, nothing where all is well."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.ranks", *names],
        cwd=REPOSITORY,
        env=os.environ | env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _ in found] == [name for word in names for name in word.split("+")]
    return {name: "".join(wrong for other, wrong in found if other == name) for name, _ in found}


@pytest.fixture(scope="module")
def wrong() -> dict[str, str]:
    """What is wrong with each group: one process starts them all, for Python takes long to."""
    alike = run(*COLLECTIVES, *UNEQUAL, *LARGE, *MISTAKES, *GOING, "+".join(SIDE_BY_SIDE))
    return alike | run(*SLOW, DETSLURM_PEER_TIMEOUT="1")


@pytest.mark.parametrize("group", COLLECTIVES)
def test_collectives_between_processes(group: str, wrong: dict[str, str]) -> None:
    """Order by rank, None for workers, the chief's object for all; empty to megabytes."""
    assert not wrong[group], wrong[group]


@pytest.mark.parametrize(("transport", "shape"), EVERY)
def test_collectives_between_threads(transport: str, shape: str) -> None:
    """All ranks may be threads of one process."""
    in_threads(scenarios.collectives, [int(n) for n in shape.split(",")], transport=transport)


def test_forced_tcp_on_ports_of_choice() -> None:
    """`force_tcp` with ports, as Determined's tests of user code use it."""
    in_threads(scenarios.collectives, [2], force_tcp=True, pub_port=free_port(), port_offset=1)


@pytest.mark.parametrize("group", UNEQUAL)
def test_unequal_objects(group: str, wrong: dict[str, str]) -> None:
    """Sizes from 1 byte to 1 MB in one call, and local calls that only one node makes."""
    assert not wrong[group], wrong[group]


@pytest.mark.parametrize("group", LARGE)
def test_100_megabytes(group: str, wrong: dict[str, str]) -> None:
    """A large object arrives whole."""
    assert not wrong[group], wrong[group]


@pytest.mark.nightly
def test_a_gigabyte() -> None:
    """The largest object that is promised, both ways; inside a node it takes the same code."""
    assert run("huge/tcp/1,1") == {"huge/tcp/1,1": ""}


@pytest.mark.parametrize("group", MISTAKES)
def test_mistakes_raise(group: str, wrong: dict[str, str]) -> None:
    """Ranks that disagree all raise, and go on raising; no message is taken for another."""
    assert not wrong[group], wrong[group]


@pytest.mark.parametrize("group", GOING)
def test_a_rank_goes(group: str, wrong: dict[str, str]) -> None:
    """Leaving in peace loses nothing; who waits for one that left or was killed raises at once."""
    assert not wrong[group], wrong[group]


@pytest.mark.parametrize("group", SLOW)
def test_a_slow_rank_is_not_dead(group: str, wrong: dict[str, str]) -> None:
    """Stopped for longer than the peer timeout, it is waited for."""
    assert not wrong[group], wrong[group]


@pytest.mark.parametrize("group", sorted(set(SIDE_BY_SIDE)))
def test_six_groups_side_by_side(group: str, wrong: dict[str, str]) -> None:
    """Runs that start at the same moment on one node never see each other's messages."""
    assert not wrong[group], wrong[group]


def test_a_process_of_another_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another token nobody joins, and the chief still gets its own worker."""
    port = free_port()
    monkeypatch.setenv("DETSLURM_RUN_TOKEN", "right")
    argv = [sys.executable, "-m", "tests.distributed.test_collectives", str(port)]
    wrong = subprocess.Popen(
        argv,
        cwd=REPOSITORY,
        env=os.environ | {"DETSLURM_RUN_TOKEN": "wrong"},
        stderr=subprocess.PIPE,
        text=True,
    )

    _, said = _while_a_chief_waits(port, wrong)
    assert "belongs to another run" in said


def _while_a_chief_waits(port: int, unknown: subprocess.Popen[str]) -> tuple[str, str]:
    def chief() -> None:
        with DistributedContextOf(0, port) as dist:
            assert dist.allgather(0) == [0, 1]

    thread = threading.Thread(target=chief)
    thread.start()
    out, said = unknown.communicate(timeout=120)
    with DistributedContextOf(1, port) as dist:
        assert dist.allgather(1) == [0, 1]
    thread.join(120)
    return out, said


class DistributedContextOf:
    """One of two ranks that meet at a port."""

    def __init__(self, rank: int, port: int) -> None:
        self.rank, self.port = rank, port

    def __enter__(self) -> DistributedContext:
        self.dist = DistributedContext(
            rank=self.rank,
            size=2,
            local_rank=self.rank,
            local_size=2,
            cross_rank=0,
            cross_size=1,
            force_tcp=True,
            pub_port=self.port,
        )
        return self.dist

    def __exit__(self, *error: object) -> None:
        self.dist.close()


def test_who_leaves_has_told_the_others_of_a_failure() -> None:
    """They may have nobody else who tells them."""
    health = Health()
    order: list[str] = []

    def leave() -> None:
        health.close()
        order.append("left")

    leaving = threading.Thread(target=leave)

    def tell(_: str) -> None:
        leaving.start()
        leaving.join(0.2)
        order.append("told")

    health.on_failure(tell)
    health.fail("a reason")
    leaving.join(60)
    assert order == ["told", "left"]


def test_who_can_tell_of_a_failure_only_later_does_so() -> None:
    """A peer may die between its connection and the communicator that reports failures."""
    health, told = Health(), list[str]()
    health.fail("a reason")
    health.on_failure(told.append)
    health.fail("another")
    assert told == ["a reason"]


def test_a_missing_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chief says who has not come, after the time given."""
    monkeypatch.setenv("DETSLURM_JOIN_TIMEOUT", "0.3")
    with (
        pytest.raises(DistributedError, match=r"not joined: \[1\]"),
        DistributedContextOf(0, free_port()),
    ):
        pass
    with (
        pytest.raises(DistributedError, match="could not be reached"),
        DistributedContextOf(1, free_port()),
    ):
        pass


@pytest.mark.parametrize(("transport", "nodes"), [("local", [3]), ("tcp", [3]), ("tcp", [1, 1, 1])])
def test_a_rank_that_comes_late_is_waited_for(
    transport: str, nodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has joined says now and then that it waits: the chief does not take it for dead."""
    monkeypatch.setenv("DETSLURM_JOIN_TIMEOUT", "60")

    def meet(topology: dict[str, Any]) -> list[int]:
        if topology["rank"] == 2:
            time.sleep(2 * CHECK_INTERVAL)
        dist = DistributedContext(
            **topology, chief_ip="127.0.0.1", transport=transport, _salt=f"{os.getpid()} {nodes}"
        )
        try:
            return dist.allgather(dist.rank)
        finally:
            dist.close()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(meet, topologies(nodes))) == [[0, 1, 2]] * 3


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_rank_that_dies_while_another_is_awaited(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief learns of it at once, also behind a word that it has not read yet."""
    monkeypatch.setenv("DETSLURM_JOIN_TIMEOUT", "60")
    local = f"\0detslurm.{os.getpid()}"
    address: Address = local if transport == "local" else ("127.0.0.1", free_port())
    where = Rendezvous([address], b"key")
    with ThreadPoolExecutor(1) as pool:
        chief = pool.submit(host, where, 3, "the ranks")
        data, control = join(where, 1, "the ranks")
        with data, control:
            control.send(b"word")
        with pytest.raises(DistributedError, match="1 died while the others were joining"):
            chief.result()


def test_a_worker_that_comes_first_leaves_the_port_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens the kernel now and then connects a socket with itself."""
    monkeypatch.setenv("DETSLURM_JOIN_TIMEOUT", "60")
    port = free_port()
    connect = socket.create_connection
    connected_with_itself = threading.Event()

    def first_with_itself(address: tuple[str, int], timeout: float) -> socket.socket:
        if connected_with_itself.is_set():
            return connect(address, timeout)
        sock = connect(address, timeout, source_address=address)
        connected_with_itself.set()
        return sock

    monkeypatch.setattr(socket, "create_connection", first_with_itself)
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(_allgather, 1, port)
        assert connected_with_itself.wait(120)
        assert _allgather(0, port) == worker.result() == [0, 1]


def test_a_chosen_port_that_is_about_to_be_free(caplog: pytest.LogCaptureFixture) -> None:
    """The kernel keeps the port of an ended connection for a minute: the chief waits for it."""
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        with socket.create_server(("127.0.0.1", port)):
            chief = pool.submit(_allgather, 0, port)
            while "waiting for 127.0.0.1" not in caplog.text:
                assert not chief.done()
                time.sleep(0.01)
        assert _allgather(1, port) == chief.result() == [0, 1]


def _allgather(rank: int, port: int) -> list[int]:
    with DistributedContextOf(rank, port) as dist:
        return dist.allgather(rank)


if __name__ == "__main__":
    with DistributedContextOf(1, int(sys.argv[1])):
        pass


def test_process_of_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts go on alone with `except KeyError`, as in Determined; who reads it learns why."""
    monkeypatch.delenv("RANK", raising=False)
    for start_alone in (
        DistributedContext.from_torch_distributed,
        DistributedContext.from_deepspeed,
    ):
        with pytest.raises(KeyError) as caught:
            start_alone()
        assert str(caught.value).startswith("RANK is not in the environment")


def test_the_address_of_rank_0_on_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's launchers give it as MASTER_ADDR; without it an error says what to give."""
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "CROSS_RANK")
    sizes = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "GROUP_WORLD_SIZE": 2, "LOCAL_SIZE": 1}
    for name, value in {**dict.fromkeys(names, 0), **sizes, "CROSS_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("DET_CHIEF_IP", raising=False)
    hvd = SimpleNamespace(
        **dict.fromkeys(("rank", "local_rank", "cross_rank"), lambda: 0),
        **dict.fromkeys(("size", "cross_size"), lambda: 2),
        local_size=lambda: 1,
    )
    starts: list[Callable[[], DistributedContext]] = [
        DistributedContext.from_torch_distributed,
        DistributedContext.from_deepspeed,
        lambda: DistributedContext.from_horovod(hvd),
    ]
    for start in starts:
        with pytest.raises(ValueError, match=r"rank 0 is not known\. Give it as chief_ip"):
            start()
    monkeypatch.setenv("MASTER_ADDR", "nowhere.invalid")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setenv("DETSLURM_JOIN_TIMEOUT", "0.1")
    with pytest.raises(DistributedError, match="the chief could not be reached"):
        DistributedContext.from_torch_distributed()


def slurm_step(**more: str) -> dict[str, str]:
    """The variables of rank 0, the one task of n3, in a step on n1, n2 and n3."""
    ranks = dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID"), "0")
    sizes = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "3", "SLURM_GTIDS": "0"}
    nodes = {"SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)"}
    return {**ranks, **sizes, **nodes, "SLURMD_NODENAME": "n3", **more}


def test_rank_0_of_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its node is the first of the first component, or of the file of hosts; else of the step."""
    (tmp_path / "hosts").write_text("n3\nn1\nn1\nn2\n")
    arbitrary = {"SLURM_NODEID": "2", "SLURM_DISTRIBUTION": "arbitrary"}
    found = {}
    for name, more in {
        "components": {
            "SLURM_NODEID": "0",
            "SLURM_HET_SIZE": "2",
            "SLURM_JOB_NODELIST_HET_GROUP_0": "n3",
            "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]",
        },
        "arbitrary": {**arbitrary, "SLURM_HOSTFILE": str(tmp_path / "hosts")},
        "no file": arbitrary,
        "another's file": {**arbitrary, "SLURM_HOSTFILE": "/etc/hosts"},
    }.items():
        with monkeypatch.context() as step:
            for variable, value in slurm_step(**more).items():
                step.setenv(variable, value)
            found[name] = topology_by_slurm()
    assert found["components"] == found["arbitrary"] == ((0, 4, 0, 1, 0, 3), "n3")
    assert found["no file"] == found["another's file"] == ((0, 4, 0, 1, 2, 3), "n1")


class Tensorflow:
    """As much of TensorFlow as is asked for."""

    def __init__(self, gpus: int) -> None:
        self.config = self.distribute = self
        self._gpus = gpus

    def list_physical_devices(self, kind: str) -> list[str]:
        return [kind] * self._gpus

    def __getattr__(self, name: str) -> Any:
        return lambda: name


def tf_config(kind: str, index: int, **cluster: list[str]) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(("gpus", "strategy"), [(0, "get_strategy"), (2, "MirroredStrategy")])
def test_tensorflow_alone(gpus: int, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TF_CONFIG, or with one worker."""
    monkeypatch.setitem(sys.modules, "tensorflow", Tensorflow(gpus))
    for text in ("", tf_config("worker", 0, worker=["a:1"])):
        monkeypatch.setenv("TF_CONFIG", text)
        context, found = DistributedContext.from_tf_config()
        assert (context.rank, context.size, found) == (0, 1, strategy)


def test_workers_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """They find each other by TF_CONFIG; those of one host are a node."""
    monkeypatch.setitem(sys.modules, "tensorflow", Tensorflow(0))
    monkeypatch.setenv("DETSLURM_RUN_TOKEN", f"{os.getpid()}.{time.monotonic_ns()}")
    found = [topology_by_tf_config(tf_config("chief", 0, chief=["a:1"], worker=["[::1]:1", "a:2"]))]
    found += [
        topology_by_tf_config(tf_config("worker", i, chief=["a:1"], worker=["[::1]:1", "a:2"]))
        for i in range(2)
    ]
    expected = [(0, 3, 0, 2, 0, 2), (1, 3, 0, 1, 1, 2), (2, 3, 1, 2, 0, 2)]
    assert found == [(ranks, "a") for ranks in expected]
    for wrong in ("{", "[]", tf_config("ps", 0, worker=["a:1"]), tf_config("worker", 2)):
        with pytest.raises(ValueError, match="TF_CONFIG is none of"):
            topology_by_tf_config(wrong)

    monkeypatch.setenv("TF_CONFIG", tf_config("worker", 0, worker=["localhost:1", "127.0.0.1:2"]))
    second = tf_config("worker", 1, worker=["localhost:1", "127.0.0.1:2"])
    argv = [sys.executable, "-c", WORKER]
    other = subprocess.Popen(argv, cwd=REPOSITORY, env=os.environ | {"TF_CONFIG": second})
    context, strategy = DistributedContext.from_tf_config()
    assert (context.allgather("first"), strategy) == (
        ["first", "second"],
        "MultiWorkerMirroredStrategy",
    )
    context.close()
    assert other.wait(60) == 0


WORKER = """\
import sys
from tests.distributed.test_collectives import DistributedContext, Tensorflow
sys.modules["tensorflow"] = Tensorflow(0)
assert DistributedContext.from_tf_config()[0].allgather("second") == ["first", "second"]
"""
