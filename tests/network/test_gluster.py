"""Two nodes with a mount each: what one has done the other goes by, however long it remembers."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.waiting import wait_for
from tests.envelope import unwrap
from tests.network.gluster import PATIENCE, Node, finished, missing, mounted

CROWD, TIMES = 3, 4

SEARCH = """\
    name: search
    entrypoint: python3 train.py
    searcher:
      name: async_halving
      metric: loss
      time_metric: batches
      max_time: 9
      num_rungs: 2
      divisor: 3
      max_trials: 4
      max_concurrent_trials: 2
    hyperparameters:
      x: {type: double, minval: 0, maxval: 1}
    slurm: {slot_type: cpu}
"""
# Trials wait until both nodes are at work.
TRAIN = """\
    import os
    import time

    import detslurm as det

    while "go" not in os.listdir(os.environ["DETSLURM_ROOT"]):
        time.sleep(0.1)
    with det.core.init() as core:
        for step in range(1, 10):
            loss = det.get_cluster_info().trial.hparams["x"] + 1 / step
            core.train.report_validation_metrics(step, {"loss": loss, "batches": step})
            if core.preempt.should_preempt():
                break
"""

RUNS = """\
import json, sys
from detslurm.sdk import Client
trials = Client(warn=lambda text: None).experiment(int(sys.argv[1])).trials()
print(json.dumps([(run.host, run.outcome) for trial in trials for run in trial.view.runs]))
"""
SEEN = """\
import json, sys
from pathlib import Path
from tests.store.test_event_log import opened
print(json.dumps(opened(Path(sys.argv[1])).catch_up()["seen"]))
"""


@pytest.fixture(params=[1, 30], ids=["a second", "30 seconds"], scope="module")
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Node]]:
    if why := missing():
        pytest.skip(f"no GlusterFS: {why}")
    folder = tmp_path_factory.mktemp("gluster")
    with mounted(folder, request.param, ["one", "two"]) as found:
        yield found


def environment(node: Node) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "DETSLURM_ROOT": str(node.path / "store"),
        "DETSLURM_LOCAL_CPUS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def test_crowds_on_both_nodes_share_ids_and_events(nodes: list[Node]) -> None:
    """No id is given twice, no event is lost or doubled, and both read the same."""
    env = environment(nodes[0])
    nodes[0].run(["mkdir", "-p", f"{nodes[0].path}/store/events"], env)
    crowd = [sys.executable, "-m", "tests.network.crowd", env["DETSLURM_ROOT"]]
    names = [(node, f"{node.name}-{i}") for i in range(CROWD) for node in nodes]
    started = [node.start([*crowd, name, str(TIMES)], env) for node, name in names]
    said = [json.loads(finished(process)) for process in started]
    assert all(one["ended"] for one in said)
    claimed = [tuple(pair) for one in said for pair in one["claimed"]]
    for ids in zip(*claimed, strict=True):
        assert len(set(ids)) == len(names) * TIMES
    rows = [unwrap(detslurm(node, "e", "list", "--json")) for node in nodes]
    assert rows[0] == rows[1] and len(rows[0]) == len(names) * TIMES
    seen = [
        json.loads(node.run([sys.executable, "-c", SEEN, f"{node.path}/store/events"], env))
        for node in nodes
    ]
    assert seen[0] == seen[1]
    assert sorted(seen[0]) == sorted(f"{name}.{i}" for _, name in names for i in range(TIMES))


def detslurm(node: Node, *args: str) -> str:
    return node.run(["detslurm", *args], environment(node))


def test_a_search_has_workers_on_both_nodes(nodes: list[Node], tmp_path: Path) -> None:
    """Each takes trials; commands on the node that submitted nothing follow it to its end."""
    one, two = nodes
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    config = tmp_path / "experiment.yaml"
    config.write_text(textwrap.dedent(SEARCH))
    said = detslurm(one, "submit", str(config), "--cluster", "local", "--json")
    number = unwrap(said[said.index("{") :])["experiment_id"]
    folder = one.path / "store" / "experiments" / str(number)
    runner = [sys.executable, "-m", "detslurm.exec.runner", str(folder), "0"]
    other = two.start(runner, environment(two) | {"DETSLURM_LOCAL_JOB_ID": "900"})
    wait_for(lambda: len(dict(runs_of(two, number))) == 2, PATIENCE, "runs on both nodes")
    detslurm(two, "e", "set", "name", str(number), "both")
    two.run(["touch", f"{two.path}/store/go"], environment(two))
    detslurm(two, "e", "wait", str(number))
    finished(other)
    for node in nodes:
        (row,) = (r for r in unwrap(detslurm(node, "e", "list", "--json")) if r["id"] == number)
        assert (row["name"], row["state"]) == ("both", "COMPLETED")
    assert {outcome for _, outcome in runs_of(one, number)} == {"completed"}


def runs_of(node: Node, number: int) -> list[list[str]]:
    """Host and outcome of every run, as a node sees them."""
    said = node.run([sys.executable, "-c", RUNS, str(number)], environment(node))
    found: list[list[str]] = json.loads(said.splitlines()[-1])
    return found


def names_it(folder: Path) -> list[bytes]:
    """Command lines of all processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_bytes())
    return [line for line in found if os.fsencode(folder) in line]


def test_nothing_outlives_its_maker(tmp_path: Path) -> None:
    """Killed at once, it leaves no mount and no daemon."""
    if why := missing():
        pytest.skip(f"no GlusterFS: {why}")
    with mounted(tmp_path, 1, ["only"]) as (node,):
        assert Path(f"/proc/{node.pid}").exists()
    wait_for(lambda: not names_it(tmp_path), PATIENCE, "the end of all daemons")
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
