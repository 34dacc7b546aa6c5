"""Several nodes, several processes on each: PyTorch's DDP through the launcher."""

from __future__ import annotations

import hashlib
import math
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm._addresses import first_interface, interface_address, own_address
from detslurm.exec.ports import candidates
from tests.cluster import Cluster
from tests.cluster.processes import alive
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import kill_runner
from tests.e2e.test_main_job import make_room
from tests.exec.test_rendezvous import free

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

LAUNCHED = "python3 -m detslurm.launch.torch_distributed train.py"
TWO_BY_TWO = ("resources.slots_per_trial=4", "slurm.slots_per_node=2", f"entrypoint={LAUNCHED}")

# A regression whose 16 samples a step are dealt to the ranks: any number of them gives one loss.
TRAIN = """\
    import hashlib, os, pathlib, time
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
    # Whoever is to be preempted, or killed, waits for that.
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
    dist.destroy_process_group()
"""


def project(desk: Desk, name: str, held_at: int) -> Path:
    return desk.project(TRAIN, f"hyperparameters: {{held_at: {held_at}}}", name)


def losses(desk: Desk, number: int) -> list[tuple[int, float]]:
    return [(row.steps, row.metrics["loss"]) for row in desk.metrics(number)]


@pytest.mark.slow
def test_two_nodes_by_two_slots_train_as_one_process(desk: Desk, site: Cluster) -> None:
    """Four ranks on two nodes, preempted on the way, give the losses of one process with the same
    global batch. All know the chief's address and the run's key, which is nowhere in the store."""
    one = desk.submit(project(desk, "one", 0), f"entrypoint={LAUNCHED}")
    four = desk.submit(project(desk, "four", 4), *TWO_BY_TWO, "resources.resource_pool=low")
    desk.wait_for_state(one, "COMPLETED")
    desk.wait_for_steps(four, 4)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    desk.wait_for_state(four, "COMPLETED")

    assert desk.outcomes(four) == ["preempted", "completed"]
    assert desk.trial(four).runs[1].resumed_steps == 4
    assert [step for step, _ in losses(desk, one)] == list(range(1, 41))
    for (_, of_four), (_, of_one) in zip(losses(desk, four), losses(desk, one), strict=True):
        assert math.isclose(of_four, of_one, rel_tol=1e-9)
    assert [len(run.job["nodes"]) for run in desk.trial(four).runs] == [2, 2]
    log = desk.log(four)
    for rank in range(4):
        assert log.count(f"[rank={rank}] || rank {rank} of 4\n") == 2
    # Whatever /etc/hosts makes of this machine's name: an address that other nodes can reach.
    (chief,) = set(re.findall(r"\|\| nodes (\S+) ", log))
    assert chief == own_address(["one", "other"], 0)
    keys = set(re.findall(r"\|\| key (\w+)", log))
    assert len(keys) == 2, "a run's ranks have one, the next run's another"
    assert keys.isdisjoint(map(fingerprint, words_of(desk.store.path)))


def words_of(folder: Path) -> Iterator[bytes]:
    """Everything in the files of a folder that could be a run's token."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pt":
            yield from re.findall(rb"\b[0-9a-f]{32}\b", path.read_bytes())


def fingerprint(word: bytes) -> str:
    return hashlib.sha256(word).hexdigest()


def pids(desk: Desk, number: int, run: int) -> dict[int, int]:
    """Rank -> process id in a run, once all four have said theirs."""

    def said() -> dict[int, int]:
        path = desk.trial_dir(number).log_path(run)
        lines = path.read_text().splitlines() if path.exists() else []
        words = [line.split() for line in lines if "|| pid " in line]
        found = {int(w[-1]): int(w[w.index("pid") + 1]) for w in words}
        return found if len(found) == 4 else {}

    return wait_for(said, PATIENCE, f"four ranks of run {run}")


def ancestors(pid: int) -> dict[str, int]:
    """What stands between Slurm and a worker: the process ids of torchrun and the agent."""
    found: dict[str, int] = {}
    while "agent" not in found:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        names = {"torchrun": b"torch.distributed.run", "agent": b"detslurm.exec.agent"}
        found |= {name: pid for name, module in names.items() if b"\0" + module + b"\0" in line}
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


# The ranks are there together until somebody ends them; none hears of another's end by itself.
WAITS = """\
    import os, time
    import detslurm as det

    peers = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=peers) as core:
        print("pid", os.getpid(), "of rank", peers.rank, flush=True)
        time.sleep(3600)
"""


def test_whatever_is_killed_the_run_starts_again_and_leaves_nothing(desk: Desk) -> None:
    """kill -9 of a rank, of torchrun or of a node's agent ends the run on both nodes; the next one
    begins in the same job, and no process of the old one remains. After kill -9 of the runner no
    process of the job remains on any node."""
    number = desk.submit(desk.project(WAITS), *TWO_BY_TWO)
    for run, victim in enumerate(("rank", "torchrun", "agent"), start=1):
        ranks = pids(desk, number, run)
        programs = ancestors(ranks[3])
        os.kill(ranks[3] if victim == "rank" else programs[victim], signal.SIGKILL)
        wait_for(lambda: len(desk.outcomes(number)) == run + 1, PATIENCE, "the next run")  # noqa: B023
        old = [*ranks.values(), *programs.values()]
        wait_for(lambda: not any(map(alive, old)), PATIENCE, f"the {victim}'s run to be gone")  # noqa: B023
    pids(desk, number, 4)
    assert desk.outcomes(number) == ["restart", "restart", "restart", None]
    assert len({run.job["ref"] for run in desk.trial(number).runs}) == 1
    assert "was killed by SIGKILL" in (desk.trial(number).runs[0].reason or "")
    kill_runner(desk, number)


MEETS = """\
    import os
    import detslurm as det

    dist = det.core.DistributedContext.from_torch_distributed()
    names = "MASTER_ADDR", "MASTER_PORT", "DET_CHIEF_IP", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"
    print(*dist.allgather(" ".join(os.environ[name] for name in names)), sep="\\n")
"""


def outward_interface() -> str:
    """An interface of this machine's whose address its name does not resolve to, if it has one."""
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    return first_interface(",".join([*names, "lo"]))


def test_where_the_ranks_meet(desk: Desk) -> None:
    """On the chosen interface, at the next port where the first is in use; threads are shared out
    without a notice from torchrun."""
    interface = outward_interface()
    options = (*TWO_BY_TWO, f"slurm.network_interface={interface},lo")
    number = desk.submit(desk.project(MEETS), *options, "--paused")
    # Whatever else of this machine listens on one of them now, does so for the whole test.
    ports = [port for port in candidates(f"{desk.job(number)}.1") if free(port)]
    with socket.create_server(("", ports[0])):
        desk.run("experiment", "activate", str(number))
        assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    address = interface_address(interface)
    log = desk.log(number)
    assert log.count(f"|| {address} {ports[1]} {address} {interface} 1\n") == 16, log
    assert "Setting OMP_NUM_THREADS" not in log
