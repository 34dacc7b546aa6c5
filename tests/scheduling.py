"""Which worker runs which test: those that wait for Slurm's clocks beside those that compute.

pytest-xdist hands the next test to whichever worker is free. Every worker would start every
cluster then, and the machine would compute at some times and wait at others. Here each cluster is
owned by few workers, which run its tests first; what needs no cluster runs beside them.
Tests marked `slow` come first, so that no worker is left alone with one at the end.

A worker alone knows the tests' fixtures and marks, the scheduler alone decides: the first worker
writes the plan to a file, and the scheduler reads it when all workers have collected.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARE = {"slurm": 0.6, "strange": 0.3}
"""Which part of the workers, at least one, owns each cluster from the start."""

WORTH_A_CLUSTER = 10
"""With as many tests waiting, a worker that is out of work starts one more cluster for them."""


def slow_first(items: list[pytest.Item]) -> None:
    """Order tests: what takes long, then what goes through the front door, then the rest."""
    items.sort(key=lambda item: (not item.get_closest_marker("slow"), "e2e" not in item.path.parts))


def cluster_of(item: pytest.Item) -> str:
    """The cluster that a test needs, "" for none (or one of its own)."""
    fixtures = set(getattr(item, "fixturenames", ()))
    if not item.get_closest_marker("cluster") or "slurm_programs" in fixtures:
        return ""
    strange = item.get_closest_marker("strange_site") or "slurm_strange" in fixtures
    return "strange" if strange and "slurm" not in fixtures else "slurm"


def group_of(item: pytest.Item) -> str:
    """What runs on one worker together: else each worker would make their fixture.

    Tests of one `xdist_group`, or of a module that share a fixture of its own; else a test alone.
    """
    if mark := item.get_closest_marker("xdist_group"):
        return str(mark.args[0])
    assert isinstance(item, pytest.Function)
    known = item._fixtureinfo.name2fixturedefs.values()
    shared = any(fixture.scope == "module" for fixtures in known for fixture in fixtures)
    return str(item.path) if shared else item.nodeid


@dataclass
class Roles:
    """Which worker owns which clusters, and what it does next."""

    workers: int
    owned: dict[str, set[str]] = field(default_factory=dict)

    def choose(self, worker: str, waiting: Mapping[str, str]) -> str | None:
        """The first of `waiting` (group -> its cluster) that this worker should run; None: none.

        A cluster that still has tests always has an owner, or may be taken by whoever asks.
        """
        heads: dict[str, str] = {}
        for group, cluster in waiting.items():
            heads.setdefault(cluster, group)
        left = Counter(waiting.values())
        own = self.owned.setdefault(worker, set())
        for cluster in sorted(heads, key=lambda cluster: self._rank(own, cluster)):
            if cluster in own or not cluster or self._may_join(cluster, left):
                own |= {cluster} - {""}
                return heads[cluster]
        return None

    @staticmethod
    def _rank(own: set[str], cluster: str) -> int:
        """Its own cluster comes first; for an owner, no cluster comes before another cluster."""
        if cluster in own:
            return 0
        return (1 if own else 2) if not cluster else (2 if own else 1)

    def _may_join(self, cluster: str, left: Counter[str]) -> bool:
        owners = sum(cluster in owned for owned in self.owned.values())
        return owners < max(1, int(self.workers * SHARE[cluster])) or (
            not left[""] and left[cluster] >= WORTH_A_CLUSTER * owners
        )


class SchedulingByCluster(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker the next tests that fit the clusters it has started."""

    def __init__(self, config: pytest.Config, log: Producer | None, plan: Path) -> None:
        super().__init__(config, log)
        self._plan_file = plan
        self._plan: dict[str, tuple[str, str]] = {}
        self._roles = Roles(self.numnodes)

    def schedule(self) -> None:
        """Read the plan before the first test is given out."""
        if not self._plan:
            self._plan = json.loads(self._plan_file.read_text())
        super().schedule()

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that a dead worker has died of; the tests behind it go to others.

        xdist would give out all of its tests again: that one, which ends the next worker, too,
        and those that are done, of which no worker reports anything.
        """
        self._roles.owned.pop(node.gateway.id, None)
        units = self.assigned_work[node]
        left = [test for unit in units.values() for test, done in unit.items() if not done]
        behind = {
            group: {test: False for test in unit if test in left[1:]}
            for group, unit in units.items()
        }
        self.assigned_work[node] = {group: unit for group, unit in behind.items() if unit}
        super().remove_node(node)
        return left[0] if left else None

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker that has no test two: it begins one when it knows the next.

        One that still collects, in place of a dead one, gets its own when it has collected.
        """
        if node in self.registered_collections:
            had = self._pending_of(self.assigned_work[node])
            super()._reschedule(node)
            if not had and not node.shutting_down:
                super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return self._plan[nodeid][0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        waiting = {group: self._plan[next(iter(unit))][1] for group, unit in self.workqueue.items()}
        if (group := self._roles.choose(node.gateway.id, waiting)) is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)


_FOLDER = pytest.StashKey[Path]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """In the main process: tell each worker where the plan is expected."""
    node.workerinput["plan"] = str(_plan_file(node.config))


def _plan_file(config: pytest.Config) -> Path:
    if _FOLDER not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="detslurm-plan-")
        config.add_cleanup(folder.cleanup)
        config.stash[_FOLDER] = Path(folder.name)
    return config.stash[_FOLDER] / "plan.json"


def write_plan(session: pytest.Session) -> None:
    """In the first worker: what the scheduler has to know of each test."""
    found = getattr(session.config, "workerinput", {})
    if found.get("workerid") == "gw0":
        plan = {item.nodeid: (group_of(item), cluster_of(item)) for item in session.items}
        Path(found["plan"]).write_text(json.dumps(plan))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SchedulingByCluster | None:
    """In the main process: this way of scheduling, unless `--dist` names another."""
    if config.getoption("dist") != "load":
        return None
    return SchedulingByCluster(config, log, _plan_file(config))
