"""Several nodes, several processes on each: PyTorch's DDP through the launcher."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from detslurm._base.addresses import first_interface, interface_address, own_address
from detslurm.exec.ports import candidates
from tests.cluster import Cluster
from tests.cluster.processes import alive
from tests.cluster.spec import LIGHT_STARTS
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import kill_runner, pids_of_ranks, programs_above
from tests.e2e.test_main_job import make_room
from tests.exec.test_rendezvous import free

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

LAUNCHED = "python3 -m detslurm.launch.torch_distributed train.py"
# On the strange site torch is met as it is; test_pytorch.py trains with it.
LIGHT = f"environment.environment_variables={[f'{k}={v}' for k, v in LIGHT_STARTS.items()]}"
TWO_BY_TWO = (
    "resources.slots_per_trial=4",
    "slurm.slots_per_node=2",
    f"entrypoint={LAUNCHED}",
    LIGHT,
)

# A regression whose 16 samples a step are dealt to the ranks: any number of them gives one loss.
TRAIN = """\
    import gc, hashlib, os, pathlib, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import detslurm as det

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    info = det.get_cluster_info()
    print("rank", rank, "of", size, flush=True)
    print("nodes", *info.container_addrs, flush=True)
    print("key", hashlib.sha256(os.environ["DETSLURM_RUN_TOKEN"].encode()).hexdigest(), flush=True)

    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    net = DistributedDataParallel(net.double())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    # Whoever is to be preempted waits for that.
    held_at = info.trial.hparams["held_at"] if info.latest_checkpoint is None else 0

    peers = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=peers) as core:
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                state = torch.load(path / "state.pt")
            step = state["step"]
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
        while step < 40:
            numbers = torch.Generator().manual_seed(step)
            x = torch.randn(16, 8, generator=numbers, dtype=torch.float64)
            mine = x[rank * 16 // size : (rank + 1) * 16 // size]
            loss = ((net(mine)[:, 0] - mine.prod(1)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach()
            dist.all_reduce(total)
            step += 1
            if rank == 0:
                core.train.report_training_metrics(step, {"loss": total.item() / size})
            stop = core.preempt.should_preempt()
            while step == held_at and not stop:
                time.sleep(0.05)
                stop = core.preempt.should_preempt()
            if rank == 0 and (stop or step % 10 == 0):
                with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state | {"step": step}, path / "state.pt")
            if stop:
                break
    # gloo's threads end with the last reference to their group. Torch aborts where one of them
    # still holds a tensor when Python ends (https://github.com/pytorch/pytorch/issues/190489).
    net = optimizer = loss = total = None
    dist.destroy_process_group()
    gc.collect()
"""


def losses_alone() -> list[float]:
    """What torch alone computes in one process that has every batch as a whole."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for step in range(40):
        numbers = torch.Generator().manual_seed(step)
        x = torch.randn(16, 8, generator=numbers, dtype=torch.float64)
        loss = ((net(x)[:, 0] - x.prod(1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_two_nodes_by_two_slots_train_as_one_process(desk: Desk, site: Cluster) -> None:
    """Four ranks on two nodes, preempted on the way, give the losses of one process with the same
    global batch. All know the chief's address and the run's key, which is nowhere in the store."""
    config = desk.project(TRAIN, "hyperparameters: {held_at: 4}")
    four = desk.submit(config, *TWO_BY_TWO, "resources.resource_pool=low")
    desk.wait_for_steps(four, 4)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    desk.wait_for_state(four, "COMPLETED")

    assert desk.outcomes(four) == ["preempted", "completed"]
    assert desk.trial(four).runs[1].resumed_steps == 4
    rows = desk.metrics(four)
    assert [row.steps for row in rows] == list(range(1, 41))
    assert [row.metrics["loss"] for row in rows] == pytest.approx(losses_alone(), rel=1e-9)
    assert [len(run.job.nodes) for run in desk.trial(four).runs] == [2, 2]
    log = desk.log(four)
    for rank in range(4):
        assert log.count(f"[rank={rank}] || rank {rank} of 4\n") == 2
    # Whatever /etc/hosts makes of this machine's name: an address that other nodes can reach.
    (chief,) = set(re.findall(r"\|\| nodes (\S+) ", log))
    assert chief == own_address(["one", "other"], 0)
    keys = set(re.findall(r"\|\| key (\w+)", log))
    assert len(keys) == 2, "a run's ranks have one, the next run's another"
    site.wait_state(desk.job(four), "COMPLETED")  # it has deleted what nobody keeps
    assert keys.isdisjoint(map(fingerprint, words_of(desk.store.path)))


def words_of(folder: Path) -> Iterator[bytes]:
    """Everything in the files of a folder that could be a run's token."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pt":
            yield from re.findall(rb"\b[0-9a-f]{32}\b", path.read_bytes())


def fingerprint(word: bytes) -> str:
    return hashlib.sha256(word).hexdigest()


# The ranks are there together until somebody ends them; none hears of another's end by itself.
WAITS = """\
    import os, time
    import detslurm as det

    peers = det.core.DistributedContext.from_torch_distributed()
    names = "MASTER_ADDR", "MASTER_PORT", "DET_CHIEF_IP", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"
    print(*peers.allgather(" ".join(os.environ[name] for name in names)), sep="\\n")
    with det.core.init(distributed=peers) as core:
        print("pid", os.getpid(), "of rank", peers.rank, flush=True)
        time.sleep(3600)
"""


@pytest.mark.nightly
def test_where_ranks_meet_and_whatever_is_killed(desk: Desk) -> None:
    """On the chosen interface, at the next port where the first is in use; threads are shared out
    without a notice from torchrun.

    kill -9 of torchrun or of a node's agent ends the run on both nodes; the next one begins in the
    same job, and no process of the old one remains. After kill -9 of the runner no process of the
    job remains on any node."""
    interface = outward_interface()
    options = (*TWO_BY_TWO, f"slurm.network_interface={interface},lo")
    number = desk.submit(desk.project(WAITS), *options, "--paused")
    # Whatever else of this machine listens on one of them now, does so until the ranks have met.
    ports = [port for port in candidates(f"{desk.job(number)}.1") if free(port)]
    with socket.create_server(("", ports[0])):
        desk.run("experiment", "activate", str(number))
        pids_of_ranks(desk, number, 1)
    address = interface_address(interface)
    log = desk.log(number)
    assert log.count(f"|| {address} {ports[1]} {address} {interface} 1\n") == 16, log
    for run, victim in enumerate(("torchrun", "agent"), start=1):
        ranks = pids_of_ranks(desk, number, run)
        programs = programs_above(ranks[3])
        os.kill(programs[victim], signal.SIGKILL)
        wait_for(lambda: len(desk.outcomes(number)) == run + 1, PATIENCE, "the next run")  # noqa: B023
        old = [*ranks.values(), *programs.values()]
        wait_for(lambda: not any(map(alive, old)), PATIENCE, f"the {victim}'s run to be gone")  # noqa: B023
    pids_of_ranks(desk, number, 3)
    assert desk.outcomes(number) == ["restart", "restart", None]
    assert len({run.job.ref for run in desk.trial(number).runs}) == 1
    assert "Setting OMP_NUM_THREADS" not in desk.log(number)
    kill_runner(desk, number)


def outward_interface() -> str:
    """An interface of this machine's whose address its name does not resolve to, if it has one."""
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    return first_interface(",".join([*names, "lo"]))
