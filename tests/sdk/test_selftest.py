"""The lines of a selftest, by the facts that sites with faults give."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from detslurm.cli.selftest import _lines
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
from detslurm.sdk.selftest.running import SelfTestReport, _SelfTest, nodes_to_ask, selftest
from detslurm.sdk.selftest.stories import Story, preemptible, stories
from detslurm.sdk.selftest.story_runs import StoryRuns
from detslurm.sdk.submission.deferring import no_room
from detslurm.slurm import ClusterLimits, JobRequest, LocalCluster, NodeInfo, PartitionLimits
from detslurm.store.selftest_facts import NodeAnswer, NodeFacts, NodesFacts
from tests.sdk.scenes import Queue

NODES = ("n1", "n2", "n3")
LOW = PartitionLimits(name="low", preempt_mode="REQUEUE", nodes=NODES)
MAIN = PartitionLimits(name="main", default=True, priority_tier=10, nodes=NODES, gpus_per_node=4)
LIMITS = ClusterLimits(
    cluster="c", preempt_type="preempt/partition_prio", partitions={"main": MAIN, "low": LOW}
)
SITE = SiteFacts(
    limits=LIMITS,
    pool="main",
    sbatch="/usr/bin/sbatch",
    is_script=False,
    listed=True,
    memory={"--mem": "", "--mem-per-cpu": ""},
    nodes=tuple(NodeInfo(name=n, state="IDLE", partitions=("main",), cpus=8) for n in NODES),
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
REPORT = SelfTestReport(
    cluster="c<", slurm="24.11.5", detslurm="0.1.0", date="2026-11-29", user="alice", host="h",
    pool="main", seconds=3.0, checks=(), calls={"sbatch": 2},
)  # fmt: skip
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
        ({"refusal": "AssocMaxSubmitJobLimit"}, "unknown", "refused: AssocMaxSubmitJobLimit"),
        ({"refusal": no_room("MaxSubmitJobs=4")}, "unknown", "refused: there is no room"),
        ({"refusal": "Unable to contact slurm controller"}, "unknown", "refused: Unable"),
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
        limits = replace(LIMITS, partitions={"main": other, "low": LOW})
        assert preemptible(limits, None) is None


def test_no_job_of_another_user_gives_way_to_a_preemption() -> None:
    """Not to the trial, which waits for a whole node, where its partition preempts a lower one; and
    nothing is tried where Slurm does not say what preempts."""
    lowest = replace(LOW, name="lowest", priority_tier=0)
    partitions = {**LIMITS.partitions, "lowest": lowest}
    assert preemptible(replace(LIMITS, partitions=partitions), "low") == (lowest, LOW)
    hidden = {**partitions, "lowest": replace(lowest, nodes=())}
    assert preemptible(replace(LIMITS, partitions=hidden), "low") == (hidden["lowest"], LOW)
    for unknown in ("", "preempt/qos", "preempt/none"):
        assert preemptible(replace(LIMITS, preempt_type=unknown), "low") is None


@pytest.mark.parametrize("shares", ["NO", "YES"])
def test_a_node_that_others_may_share_is_not_preempted(tmp_path: Path, shares: str) -> None:
    """A plugin has taken --exclusive away, or the partition has OverSubscribe=FORCE."""
    for name, text in (
        ("scontrol", f"JobId=7 OverSubscribe={shares} Contiguous=0"),
        ("sbatch", "8;c"),
    ):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$@" > "$0.asked"; echo "{text}"\n')
        program.chmod(0o700)
    folder = tmp_path / "a folder"
    folder.mkdir()
    found = stories(LIMITS, "low", SITE.nodes, folder, mpi=False)
    [entrypoint] = [story.entrypoint for story in found if story.name == "preemption"]
    *_, raises = shlex.split(entrypoint)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    done = subprocess.run(["sh", "-c", raises], env=env, check=False)
    assert (done.returncode == 0) == (shares == "NO")
    if shares == "NO":
        assert (folder / "preemptor").read_text() == "8;c\n"
        asked = (tmp_path / "sbatch.asked").read_text()
        assert "--nodelist=n1" in asked and "--deadline=" in asked and "--exclusive" not in asked
    else:
        assert not (tmp_path / "sbatch.asked").exists()


def test_what_preempts_is_cancelled_before_its_node_is_free(tmp_path: Path) -> None:
    """Else it could take the place of a job that comes next; and no job is forgotten."""
    queue = Queue()
    queue.put("7", "COMPLETED")
    queue.put("8", "CANCELLED")

    class Runs(StoryRuns):
        job_count = job_calls = 0

        def __init__(self) -> None:
            pass

        def end(self) -> list[str]:
            queue.calls.append(("kill",))
            return []

    (tmp_path / "preemptor").write_text("8;c\n")
    test = _SelfTest(queue, tmp_path, 0.0, lambda text: None)
    test._end(Runs(), tmp_path / "preemptor", "7")
    assert queue.calls[:2] == [("cancel", "8"), ("kill",)]
    assert queue.queries == [["7", "8"]] and not test.left


def test_all_nodes_are_asked_only_where_that_harms_nobody() -> None:
    """Else idle nodes that are awake, or few where they are hidden."""
    busy = replace(SITE.nodes[2], state="MIXED", cpus_used=1)
    site = replace(SITE, nodes=(*SITE.nodes[:2], busy, *[replace(busy, name="n4")] * 4))
    assert nodes_to_ask(site, full=False) == (2, 0)
    assert nodes_to_ask(site, full=True) == (2, 5)
    assert nodes_to_ask(replace(site, pool="low"), full=True) == (7, 0)
    assert nodes_to_ask(replace(site, limits=ClusterLimits()), full=True) == (2, 5)
    asleep = replace(SITE.nodes[0], state="IDLE+CLOUD+POWERED_DOWN")
    cloud = replace(site, pool="low", nodes=(*SITE.nodes[1:], asleep))
    assert nodes_to_ask(cloud, full=True) == (2, 1)
    filled = replace(cloud, nodes=(*SITE.nodes[1:], replace(busy, cpus_used=8)))
    assert nodes_to_ask(filled, full=True) == (2, 1)
    hidden = replace(MAIN, nodes=tuple(f"n{number}" for number in range(9)))
    limits = replace(LIMITS, partitions={"main": hidden, "low": LOW})
    assert nodes_to_ask(replace(site, limits=limits, nodes=()), full=True) == (4, 5)
    small = replace(LIMITS, partitions={"low": replace(LOW, max_nodes=2)})
    few = replace(site, pool="low", limits=small)
    assert nodes_to_ask(few, full=False) == (2, 0) and nodes_to_ask(few, full=True) == (2, 5)


def test_a_site_profile_holds_for_the_experiments() -> None:
    """Its options of sbatch stay; its lead fits a short limit, and no environment is staged."""
    story = Story(name="x", entrypoint="x", remedy="", slurm={"sbatch_args": ["--exclusive"]})
    slurm = story.config("main", ["n1"], Path("/x"), ["--licenses=a"])["slurm"]
    assert slurm["sbatch_args"] == ["--licenses=a", "--exclusive", "--exclude=n1"]
    assert slurm["signal_lead"] < 60 * slurm["time"] and slurm["stage_environment"] is False


def test_a_terminal_does_not_obey_a_nodes_text() -> None:
    """Such as what a TaskProlog prints."""
    line = SelfCheck("output of steps", "warning", "n1: \x1b]0;owned\x07", "Mend it.")
    text = "\n".join(_lines(replace(REPORT, checks=(line,))))
    assert "\x1b]" not in text and "\x07" not in text and "owned" in text


def test_without_slurm_there_is_nothing_to_try(tmp_path: Path) -> None:
    """The local cluster is no site."""
    with pytest.raises(LifecycleError, match="Slurm"):
        selftest(lambda: LocalCluster(tmp_path), tmp_path)


def test_the_page_shows_all_lines_as_text() -> None:
    """Markup of a site's messages is text."""
    line = SelfCheck("store", "broken", "n1: <b>gone</b>", "Mount & see.")
    report = replace(REPORT, checks=(line,))
    page = selftest_page(report)
    assert "&lt;b&gt;gone&lt;/b&gt;" in page and "Mount &amp; see." in page and "c&lt;" in page
    assert "24.11.5" in page and "sbatch 2" in page and "Signed:" in page and "<script" not in page
    assert report.broken and report.to_dict()["healthy"] is False
