"""Every test has a worker, and clusters are started by few of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scheduling import Roles, SchedulingByCluster, group_of

SUITE = {f"s{number}": "slurm" for number in range(120)}
STRANGE = {f"t{number}": "strange" for number in range(40)}
NO_CLUSTER = {f"n{number}": "" for number in range(400)}


def run(workers: int, waiting: dict[str, str], seed: int) -> tuple[Roles, dict[str, list[str]]]:
    """Let workers finish in any order until none finds work: their roles, and what each ran."""
    roles, chance, waiting = Roles(workers), random.Random(seed), dict(waiting)
    done: dict[str, list[str]] = {f"gw{number}": [] for number in range(workers)}
    busy = list(done)
    while busy:
        worker = chance.choice(busy)
        group = roles.choose(worker, waiting)
        if group is None:
            busy.remove(worker)
        else:
            done[worker].append(waiting.pop(group))
    assert not waiting
    return roles, done


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("tests", [SUITE | STRANGE | NO_CLUSTER, SUITE, STRANGE | NO_CLUSTER, {}])
def test_every_test_is_run(workers: int, tests: dict[str, str]) -> None:
    """With any number of workers, none is left over, whoever is quicker."""
    for seed in range(5):
        run(workers, tests, seed)


def test_roles_of_seven_workers() -> None:
    """Four own the suite's cluster, two the strange one, and one computes."""
    roles = Roles(7)
    waiting = NO_CLUSTER | STRANGE | SUITE
    for number in range(7):
        waiting.pop(roles.choose(f"gw{number}", waiting) or "")
    owned = sorted(sorted(clusters) for clusters in roles.owned.values())
    assert owned == [[], *[["slurm"]] * 4, *[["strange"]] * 2]


def test_a_worker_is_true_to_its_cluster() -> None:
    """What it runs first is of its cluster; what needs none comes after that."""
    _, done = run(4, SUITE | STRANGE | NO_CLUSTER, 1)
    for clusters in done.values():
        begin = [cluster for cluster in clusters if cluster]
        assert clusters[: len(begin)] == begin or clusters[0] == ""


def test_few_tests_are_worth_no_other_cluster() -> None:
    """A worker that is out of work leaves the last tests of a cluster to its owners."""
    roles = Roles(2, {"gw0": {"slurm"}, "gw1": set()})
    few = dict(list(SUITE.items())[:5])
    assert roles.choose("gw1", few) is None
    assert roles.choose("gw1", SUITE) == "s0"


class Worker:
    """What the scheduler sees of a worker: it begins a test when it knows the next, or the end."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queue: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        """Take tests by their numbers."""
        self.queue += tests

    def shutdown(self) -> None:
        """No more tests come."""
        self.shutting_down = True

    def next(self) -> int | None:
        """The test that it runs now."""
        needed = 1 if self.shutting_down else 2
        return self.queue.pop(0) if len(self.queue) >= needed else None


def test_a_dead_worker_costs_one_test(tmp_path: Path) -> None:
    """The tests that it had before it are run by the worker in its place, and none twice."""
    tests = [f"t{number}" for number in range(8)]
    (tmp_path / "plan").write_text(json.dumps({test: (test, "") for test in tests}))
    option = SimpleNamespace(loadscopereorder=False, debug=False)
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen"], option=option)
    scheduler = SchedulingByCluster(config, None, tmp_path / "plan")
    ran: list[str] = []
    for name, dies in (("gw0", True), ("gw1", True), ("gw2", False)):
        worker: Any = Worker(name)
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
        scheduler.schedule()
        begun = 0
        while (number := worker.next()) is not None:
            ran.append(tests[number])
            if dies and (begun := begun + 1) == 2:
                assert scheduler.remove_node(worker) == tests[number]
                break
            scheduler.mark_test_complete(worker, number)
    assert sorted(ran) == tests


@pytest.fixture(scope="module")
def costly() -> int:
    """What each worker would make for its own tests of this module."""
    return 1


@pytest.fixture
def cheap(costly: int) -> int:
    return costly


def test_what_shares_a_fixture_runs_on_one_worker(
    request: pytest.FixtureRequest, cheap: int
) -> None:
    """As its module's other tests that need it, directly or not."""
    assert group_of(request.node) == str(request.path)


def test_what_shares_none_runs_on_any_worker(request: pytest.FixtureRequest) -> None:
    """Fixtures of the session are made by each."""
    assert group_of(request.node) == request.node.nodeid
