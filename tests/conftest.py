"""Fixtures of the whole suite: the clusters, and ordinary users on them."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.builds import pytest_unconfigure, start_builds
from tests.cluster import Cluster, ClusterSpec, User, guarded, missing_programs
from tests.cluster.spec import LIGHT_STARTS, ONE_THREAD
from tests.horovod import horovod, put_last
from tests.scheduling import (
    pytest_configure_node,
    pytest_xdist_make_scheduler,
    slow_first,
    write_plan,
)
from tests.store.clients import KINDS

__all__ = ["horovod", "pytest_configure_node", "pytest_unconfigure", "pytest_xdist_make_scheduler"]

# A busy machine is no reason for a property to fail, and neither is chance: the examples are the
# same each time. `--hypothesis-profile=explore` draws others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", settings.get_profile("explore"), derandomize=True)
settings.load_profile("suite")

# Before torch is there, and for all that tests start.
os.environ.update(ONE_THREAD | LIGHT_STARTS)

# A worker's heap is large, and what tests import stays.
gc.set_threshold(50_000)

# What tests start must hear that its terminal is gone, also where `nohup` lets the suite ignore it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# And Ctrl-C, which a script's background jobs ignore.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Login = Callable[..., User]
ON_A_CLUSTER = {"slurm", "slurm_strange", "slurm_programs", "site", "login"}
"""Fixtures that need Slurm."""

ON_EVERY_CLIENT = ("tests.sdk.", "tests.store.test_claims", "tests.store.test_folds")
"""Modules whose stores are seen through every kind of client, for they cost little."""


def _need_programs(accounting: bool) -> None:
    if missing := missing_programs(accounting):
        pytest.skip(f"no Slurm cluster: not installed: {', '.join(missing)}")


@pytest.fixture(scope="session", autouse=True)
def nobody_is_told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The suite's experiments are not those that its user wants notices of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def slurm_programs() -> None:
    """For tests that start a cluster (without accounting) by themselves."""
    _need_programs(accounting=False)


def _cluster(spec: ClusterSpec) -> Iterator[Cluster]:
    _need_programs(spec.accounting)
    with guarded(Cluster(spec)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """The suite's cluster: accounting, `low` requeues what it preempts, plain SIGTERM."""
    yield from _cluster(ClusterSpec(name="suite"))


@pytest.fixture(scope="session")
def slurm_strange() -> Iterator[Cluster]:
    """A site where everything that a site or a user's shell can choose is chosen otherwise."""
    yield from _cluster(
        ClusterSpec(
            name="strange",
            accounting=False,
            preempt_mode="CANCEL",
            send_user_signal=True,
            max_array_size=21,
            kill_wait=5,
            min_job_age=10,
            job_name_prefix="site x=",
            debian_hosts=True,
            umask=0o027,
            shared_tmp=True,
            variables={"TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8"},
        )
    )


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Cluster:
    """The cluster of this test: the suite's own, or the strange one for tests marked so.

    Surroundings vary at no cost this way: about half of the tests through the front door are
    marked `strange_site`.
    """
    strange = request.node.get_closest_marker("strange_site")
    cluster: Cluster = request.getfixturevalue("slurm_strange" if strange else "slurm")
    return cluster


@pytest.fixture
def login(request: pytest.FixtureRequest) -> Iterator[Login]:
    """`login(cluster, "alice")`: an ordinary user with an empty working directory and store.

    Their jobs end with the test.
    """
    seats: list[tuple[Cluster, User]] = []

    def sit_down(cluster: Cluster, name: str = "alice") -> User:
        user = at_work(cluster.user(name), cluster, request.node.name)
        seats.append((cluster, user))
        return user

    yield sit_down
    for cluster, user in seats:
        cluster.cancel_all(user.name)


def at_work(user: User, cluster: Cluster, test: str) -> User:
    """The user in a working directory and with a store of their own."""
    short = re.sub(r"\W+", "-", test)[:40].strip("-")
    folder = user.folder_in(cluster.layout.shared, short)
    (folder / "work").mkdir()
    user.own(folder)
    path = f"{Path(sys.executable).parent}:{user.env['PATH']}"
    env = user.env | {"DETSLURM_ROOT": str(folder / "store"), "PATH": path}
    return replace(user, cwd=folder / "work", env=env)


@pytest.fixture
def alice(site: Cluster, login: Login) -> User:
    """An ordinary user of the test's cluster."""
    return login(site, "alice")


@pytest.fixture
def bob(site: Cluster, login: Login) -> User:
    """Another ordinary user of the test's cluster."""
    if os.geteuid():
        pytest.skip("two users at once: only root can act as several users")
    return login(site, "bob")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--client nfs`, `--client fuse`: stores are seen through a client that remembers."""
    parser.addoption("--client", choices=KINDS, help="what kind of client sees the tests' stores")
    parser.addoption("--chaos", type=int, metavar="TRIALS", help="chaos of that many trials")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`client`: the kind of client through which a test sees its stores."""
    if "client" not in metafunc.fixturenames:
        return
    named = metafunc.config.getoption("--client")
    every = KINDS if metafunc.module.__name__.startswith(ON_EVERY_CLIENT) else KINDS[:1]
    metafunc.parametrize("client", [named] if named else every)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`-m "not cluster"` leaves out what needs Slurm; slow tests come first, Horovod's last.

    Nightly tests run where `-m` asks for them, or where the command names files.
    """
    slow_first(items)
    put_last(items)
    if "nightly" not in config.option.markexpr and not any(".py" in arg for arg in config.args):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if item not in nightly]
        config.hook.pytest_deselected(items=nightly)
    for item in items:
        if ON_A_CLUSTER & set(getattr(item, "fixturenames", ())):
            item.add_marker("cluster")


# First of all: xdist's own hook reports that this worker is ready, and the scheduler may begin.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Say which tests there are, and begin what some of them need."""
    write_plan(session)
    start_builds(session)
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, object, object]:
    """Say last of all which parts were skipped, and why."""
    result = yield
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped here, and why", "-")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
    return result
