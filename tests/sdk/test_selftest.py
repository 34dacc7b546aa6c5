"""The lines of a selftest, by the facts that sites with faults give."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from detslurm.look.selftest_page import selftest_page
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.selftest.checks import (
    SelfCheck,
    controller_check,
    site_checks,
    story_check,
    traces_check,
)
from detslurm.sdk.selftest.facts import NodesJobFacts, SiteFacts, StoryFacts, TrialRun
from detslurm.sdk.selftest.nodes_checks import nodes_checks, outside
from detslurm.sdk.selftest.running import SelfTestReport, selftest
from detslurm.sdk.selftest.stories import Story, preemptible, stories
from detslurm.slurm import ClusterLimits, JobRequest, LocalCluster, NodeInfo, PartitionLimits
from detslurm.store.selftest_facts import NodeAnswer, NodeFacts, NodesFacts

NODES = ("n1", "n2", "n3")
LOW = PartitionLimits(name="low", preempt_mode="REQUEUE", nodes=NODES)
MAIN = PartitionLimits(name="main", default=True, priority_tier=10, nodes=NODES, gpus_per_node=4)
LIMITS = ClusterLimits(cluster="c", partitions={"main": MAIN, "low": LOW})
SITE = SiteFacts(
    limits=LIMITS,
    pool="main",
    sbatch="/usr/bin/sbatch",
    is_script=False,
    listed=True,
    memory={"--mem": "", "--mem-per-cpu": ""},
    nodes=tuple(NodeInfo(name=name, state="IDLE", partitions=("main",)) for name in NODES),
)
GOOD = NodeFacts(time=100.0, utc_offset=0, owner=1001, tmp_free=1 << 34, tmp_exec=True)
ANSWERS = tuple(NodeAnswer(node=n, facts=GOOD, asked=99.5, answered=100.5) for n in NODES)
FOUND = NodesFacts(answers=ANSWERS, pmix_ranks=3, pmix_wanted=3)
RECORD = {"JobId": "7", "JobName": "x", "Partition": "main", "NumNodes": "3-3", "Requeue": "1"}
JOB = NodesJobFacts(
    request=JobRequest(name="x", command=("x",), folder=Path("/x"), partition="main", nodes=3),
    record={**RECORD, "SubmitTime": "-"},
    listed=True,
    found=FOUND,
    started=True,
    submitted=90.0,
    read=110.0,
    shown_submit=91.0,
    uid=1001,
)
LEAVES = Story(
    name="requeue",
    entrypoint="x",
    remedy="allow it",
    leaves="preempted",
    slurm={"on_preempt": "requeue"},
)
SUCCESSOR = TrialRun(outcome="completed", ref="8")
FAILED = TrialRun(outcome="error", reason="exit 3")
RAN_AGAIN = StoryFacts(
    state="COMPLETED",
    done=1,
    runs=(TrialRun(outcome="preempted", ref="7"), TrialRun(outcome="completed", ref="7")),
)


def on_n2(**changes: object) -> NodesJobFacts:
    """The job where n2 has other facts."""
    second = msgspec.structs.replace(ANSWERS[1], facts=msgspec.structs.replace(GOOD, **changes))
    return answered(second)


def answered(second: NodeAnswer) -> NodesJobFacts:
    """The job where n2 has another answer."""
    answers = (ANSWERS[0], second, ANSWERS[2])
    return replace(JOB, found=msgspec.structs.replace(FOUND, answers=answers))


def bad(checks: Iterable[SelfCheck]) -> dict[str, str]:
    """The verdicts that are not ok; each warning and each broken line has a remedy."""
    found = list(checks)
    assert all(check.remedy for check in found if check.verdict in ("warning", "broken"))
    return {check.name: check.verdict for check in found if check.verdict != "ok"}


def test_a_good_cluster_has_only_good_lines() -> None:
    """Of site, nodes, experiments and calls."""
    assert not bad([*site_checks(SITE), *nodes_checks(JOB), story_check(LEAVES, RAN_AGAIN)])
    assert not bad([controller_check([0.1]), traces_check(None, ())])


def test_the_absent_is_unknown() -> None:
    """Whatever a site does not show, or has not begun in time."""
    dark = SiteFacts(limits=ClusterLimits(), pool=None, memory={"--mem": None})
    assert bad(site_checks(dark)) == dict.fromkeys(
        ("sbatch", "partition", "nodes in service", "KillWait", "sbatch --mem"), "unknown"
    )
    waits = replace(JOB, found=None, started=False, shown_submit=None, problem="Priority")
    assert bad(nodes_checks(waits)) == {"controller's time": "unknown", "nodes": "unknown"}
    unseen = replace(waits, record={}, listed=False)
    assert bad(nodes_checks(unseen))["job as asked"] == "unknown"
    assert bad([story_check(LEAVES, StoryFacts(state="ACTIVE", waits="PENDING Priority"))]) == {
        "requeue": "unknown"
    }
    figure = Story(name="GPU", entrypoint="x", remedy="", figure=1)
    assert bad([story_check(figure, StoryFacts(state="COMPLETED"))]) == {"GPU": "unknown"}
    assert bad(nodes_checks(on_n2(owner=None, tmp_exec=None, tmp_free=None))) == dict.fromkeys(
        ("owner of files", "disk of nodes", "programs in TMPDIR"), "unknown"
    )
    assert bad([controller_check([])]) == {"controller": "unknown"}


FAULTS: dict[str, tuple[Iterable[SelfCheck], dict[str, str]]] = {
    "store not on one node": (nodes_checks(on_n2(store="No such file")), {"store": "broken"}),
    "store not on the first node": (
        nodes_checks(replace(JOB, lacking={"n1": "the store is not there"})),
        {"store": "broken"},
    ),
    "no requeue": (
        [
            *nodes_checks(replace(JOB, record={**RECORD, "Requeue": "0"})),
            story_check(LEAVES, replace(RAN_AGAIN, runs=(RAN_AGAIN.runs[0], SUCCESSOR))),
        ],
        {"job as asked": "warning", "requeue": "warning"},
    ),
    "KillWait 0": (
        site_checks(replace(SITE, limits=replace(LIMITS, kill_wait=0))),
        {"KillWait": "broken"},
    ),
    "broken PMIx": (
        nodes_checks(replace(JOB, found=msgspec.structs.replace(FOUND, pmix_ranks=0))),
        {"PMIx": "broken"},
    ),
    "full /tmp": (
        nodes_checks(on_n2(tmp_problem="No space left on device")),
        {"disk of nodes": "broken"},
    ),
    "nearly full /tmp": (nodes_checks(on_n2(tmp_free=1 << 20)), {"disk of nodes": "warning"}),
    "a node's clock an hour off": (
        nodes_checks(on_n2(time=3700.0)),
        {"clocks of nodes": "broken"},
    ),
    "TaskProlog that prints": (
        nodes_checks(answered(msgspec.structs.replace(ANSWERS[1], printed="Welcome"))),
        {"output of steps": "warning"},
    ),
    "sbatch wrapper": (site_checks(replace(SITE, is_script=True)), {"sbatch": "warning"}),
    "job_submit that rewrites": (
        nodes_checks(replace(JOB, record={**RECORD, "JobName": "site x"})),
        {"job as asked": "warning"},
    ),
    "missing munge on a node": (
        nodes_checks(answered(NodeAnswer(node="n2", error="Unable to connect to munge"))),
        {"srun steps": "broken"},
    ),
    "munge missing for users alone": (
        nodes_checks(on_n2(controller="Protocol authentication error")),
        {"Slurm on nodes": "broken"},
    ),
    "root_squash": (nodes_checks(on_n2(owner=65534)), {"owner of files": "broken"}),
    "noexec /tmp": (nodes_checks(on_n2(tmp_exec=False)), {"programs in TMPDIR": "broken"}),
    "hidden partition": (site_checks(replace(SITE, listed=False)), {"partition": "warning"}),
    "memory per node refused": (
        site_checks(replace(SITE, memory={"--mem": "Memory required by task is not available"})),
        {"sbatch --mem": "warning"},
    ),
    "the controller in another time zone": (
        nodes_checks(replace(JOB, shown_submit=91.0 + 9 * 3600)),
        {"controller's time": "broken"},
    ),
    "the nodes in another time zone": (
        nodes_checks(replace(JOB, utc_offset=9 * 3600)),
        {"time zone": "warning"},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_own_line(name: str) -> None:
    """No other line is wrong."""
    checks, expected = FAULTS[name]
    assert bad(checks) == expected


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        ({"refusal": "sbatch: no"}, "broken", "refused: sbatch: no"),
        ({"state": "ERROR", "runs": (FAILED,)}, "broken", "exit 3"),
        ({"state": "COMPLETED", "runs": RAN_AGAIN.runs[1:]}, "broken", "completed"),
        ({"state": "RUNNING"}, "unknown", "not finished"),
    ],
)  # fmt: skip
def test_an_experiment_that_did_not_go_as_it_should(
    changes: dict[str, object], verdict: str, text: str
) -> None:
    """Its line has the reason."""
    line = story_check(LEAVES, replace(StoryFacts(), **changes))  # type: ignore[arg-type]
    assert line.verdict == verdict and text in line.figure


def test_singletons_of_mpi_are_broken() -> None:
    """Each of two ranks took itself for all."""
    story = Story(name="MPI", entrypoint="x", remedy="set slurm.mpi", figure=2)
    line = story_check(story, StoryFacts(state="COMPLETED", figure=1.0))
    assert (line.verdict, line.figure) == ("broken", "1 instead of 2 in 0 s")


def test_a_clock_is_judged_by_what_is_certain() -> None:
    """An answer lies between question and answer; only what lies outside counts."""
    assert outside(5, 1, 9) == 0 and outside(0, 1, 9) == -1 and outside(11, 1, 9) == 2


def test_the_experiments_fit_the_cluster() -> None:
    """Nothing is tried that a cluster does not have."""

    def names(limits: ClusterLimits, nodes: tuple[NodeInfo, ...], *, mpi: bool) -> set[str]:
        return {one.name for one in stories(limits, None, nodes, Path("/x"), mpi=mpi)}

    least = {"time limit", "requeue", "array"}
    assert names(LIMITS, SITE.nodes, mpi=True) == least | {"preemption", "two nodes", "MPI", "GPU"}
    small = PartitionLimits(name="main", default=True, nodes=("n1",))
    one = ClusterLimits(partitions={"main": small})
    assert names(one, SITE.nodes[:1], mpi=True) == least
    narrow = PartitionLimits(name="main", default=True, nodes=NODES, max_nodes=1)
    assert names(ClusterLimits(partitions={"main": narrow}), SITE.nodes, mpi=True) == least


def test_only_open_partitions_take_part_in_a_preemption() -> None:
    """The one whose jobs preempt has all nodes of the other one."""
    assert preemptible(LIMITS, "main") == (LOW, MAIN)
    for other in (
        replace(MAIN, allow_groups=("staff",)),
        replace(MAIN, nodes=("n1",)),
        replace(MAIN, priority_tier=1),
    ):
        assert preemptible(ClusterLimits(partitions={"main": other, "low": LOW}), None) is None


def test_without_slurm_there_is_nothing_to_try(tmp_path: Path) -> None:
    """The local cluster is no site."""
    with pytest.raises(LifecycleError, match="Slurm"):
        selftest(lambda: LocalCluster(tmp_path), tmp_path)


def test_the_page_shows_all_lines_as_text() -> None:
    """Markup of a site's messages is text."""
    line = SelfCheck("store", "broken", "n1: <b>gone</b>", "Mount & see.")
    report = SelfTestReport(
        cluster="c<", slurm="24.11.5", detslurm="0.1.0", date="2026-11-29", user="alice", host="h",
        pool="main", seconds=3.0, checks=(line,), calls={"sbatch": 2},
    )  # fmt: skip
    page = selftest_page(report)
    assert "&lt;b&gt;gone&lt;/b&gt;" in page and "Mount &amp; see." in page and "c&lt;" in page
    assert "24.11.5" in page and "sbatch 2" in page and "Signed:" in page and "<script" not in page
    assert report.broken and report.to_dict()["healthy"] is False
