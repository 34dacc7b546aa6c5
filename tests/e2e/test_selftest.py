"""`detslurm selftest` on the suite's clusters, and on clusters with planted faults."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster import Cluster, has_pmix, wait_for
from tests.e2e import planted
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.planted import Plant
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

Lines = dict[str, dict[str, str]]
NO_PMIX = {} if has_pmix() else {"PMIx": "unknown", "MPI": "broken"}
"""The lines that are not ok on a Slurm without that plugin, as Debian builds 26.05."""


def selftest(desk: Desk, *options: str, **kwargs: Any) -> Lines:
    """The lines of a selftest by their names; nothing of it is left, and the exit status fits."""
    done = desk.run("selftest", "--json", *options, check=False, timeout=900.0, **kwargs)
    assert done.stdout, done.stderr
    report = unwrap(done.stdout)
    for check in report["checks"]:
        print(f"{check['name']:>22} {check['verdict']:<8} {check['figure']}")
    print({name: value for name, value in report.items() if name != "checks"})
    assert (done.returncode == 0) == report["healthy"], done.stderr
    assert not desk.store.path.exists()
    assert sum(report["calls"].values()) >= report["jobs"] > 0 and report["files"] > 0
    lines = {check["name"]: check for check in report["checks"]}
    assert all(c["remedy"] or c["verdict"] in ("ok", "unknown") for c in lines.values())
    return lines


def verdicts(lines: Lines) -> dict[str, str]:
    """The verdicts of all lines that are not ok."""
    found = {name: line["verdict"] for name, line in lines.items()}
    return {name: verdict for name, verdict in found.items() if verdict != "ok"}


def told_until(desk: Desk, wanted: dict[str, str], *options: str, **kwargs: Any) -> dict[str, str]:
    """The verdicts that a selftest has told when it has told these; Ctrl-C ends it, and nothing is
    left."""
    told: dict[str, str] = {}
    lines = []
    with desk.user.popen(["detslurm", "selftest", *options], **kwargs) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if found := re.match(r"(.*?): (ok|warning|broken|unknown)\b", line):
                told[found[1]] = found[2]
            if wanted.keys() <= told.keys():
                process.send_signal(signal.SIGINT)
                break
        process.communicate(timeout=PATIENCE)
    print("".join(lines))
    assert process.returncode and not desk.store.path.exists()
    return told


def test_the_nodes_are_asked_and_ctrl_c_leaves_nothing(desk: Desk, slurm: Cluster) -> None:
    """All lines on the site and its nodes are ok, and so is a grid; then all jobs are cancelled,
    and all files removed."""
    told = told_until(desk, {"array": "ok"})
    bad = {name: verdict for name, verdict in told.items() if verdict != "ok"}
    assert bad.items() <= NO_PMIX.items() and {"store", "PMIx", "clocks of nodes"} <= told.keys()
    wait_for(lambda: not slurm.queued(desk.user.name), PATIENCE, "the end of all jobs")


@pytest.mark.nightly
def test_an_ordinary_cluster(desk: Desk, slurm: Cluster) -> None:
    """All is well; the page and the text have the table, and a place to sign."""
    assert desk.user.cwd is not None
    page = desk.user.cwd / "selftest.html"
    done = desk.run("selftest", "--full", "-o", str(page), check=False)
    assert done.returncode == bool(NO_PMIX) and "Signed: ____" in done.stdout, done.stdout
    text = page.read_text()
    assert "Signed: ____" in text and "preempted, then the same job ran again" in text
    assert not re.search(r"<script|https?://", text)
    found = dict(re.findall(r"^ *([\w' -]+?)  (ok|warning|BROKEN|unknown) ", done.stdout, re.M))
    assert found.pop("container") == "unknown" and len(found) > 25
    bad = {name: verdict.lower() for name, verdict in found.items() if verdict != "ok"}
    assert bad == NO_PMIX
    assert not slurm.queued(desk.user.name) and not desk.store.path.exists()


@pytest.mark.nightly
@pytest.mark.strange_site
def test_a_strange_cluster(desk: Desk) -> None:
    """Its strangeness is named, and nothing is broken: jobs are renamed, users live in Tokyo, and
    KillWait is short."""
    found = verdicts(selftest(desk))
    assert found.pop("container") == "unknown"
    strange = dict.fromkeys(("KillWait", "job as asked", "time zone"), "warning")
    assert found == strange | NO_PMIX


@pytest.mark.nightly
@pytest.mark.usefixtures("charliecloud")
def test_a_container_is_tried_and_what_takes_too_long_is_unknown(desk: Desk, image: Path) -> None:
    """With half a minute the experiments that have not ended are cancelled, and nothing is broken
    by that."""
    site = desk.write("site.yaml", "container: charliecloud\nslot_type: cpu\n")
    lines = selftest(
        desk, "--container", str(image), "--timeout=0.5", env={"DETSLURM_SITE": str(site)}
    )
    found = verdicts(lines)
    assert lines["container: python"]["verdict"] == "ok" and found.pop("time limit") == "unknown"
    assert {*(found.items() - NO_PMIX.items())} <= {(name, "unknown") for name in found}


class Fault(NamedTuple):
    """A planted fault, the lines that find it, and options of the command."""

    plant: Plant
    lines: dict[str, str]
    options: tuple[str, ...] = ()


REFUSES_MEMORY = """\
   if job.pn_min_memory < 2^40 then
      slurm.log_user("ask for memory per CPU")
      return slurm.ERROR
   end
"""
FAULTS = {
    "store not on one node": Fault(planted.store_missing("n2"), {"store": "broken"}),
    "store not on the first node": Fault(planted.store_missing("n1"), {"store": "broken"}),
    "no requeue": Fault(
        planted.lua("job.requeue = 0"),
        {"job as asked": "warning", "requeue": "warning"},
    ),
    "KillWait 0": Fault(planted.reshaped(kill_wait=0), {"KillWait": "broken"}),
    "broken PMIx": Fault(planted.pmix_broken, {"PMIx": "broken"}),
    "full /tmp": Fault(planted.tmp_full, {"disk of nodes": "broken"}),
    "clock an hour off": Fault(planted.clock_off, {"clocks of nodes": "broken"}),
    "TaskProlog that prints": Fault(
        planted.task_prolog("echo print Welcome to the cluster\n"), {"output of steps": "warning"}
    ),
    "sbatch wrapper": Fault(
        planted.wrapper("sbatch", 'echo "Checking your quota" >&2\nexec {real} "$@"\n'),
        {"sbatch": "warning"},
    ),
    "job_submit that rewrites": Fault(
        planted.lua('job.name = "renamed"\n   job.time_limit = 3'), {"job as asked": "warning"}
    ),
    "noexec /tmp": Fault(planted.tmp_noexec, {"programs in TMPDIR": "broken"}),
    "hidden partition": Fault(
        planted.reshaped(extra=("PartitionName=secret Nodes=n[1-2] Hidden=YES",)),
        {"partition": "warning"},
        ("--pool=secret",),
    ),
    "memory per node refused": Fault(
        planted.lua(REFUSES_MEMORY), {"sbatch --mem": "warning", "sbatch --mem-per-cpu": "ok"}
    ),
    "Slurm in another time zone": Fault(
        planted.wrapper("scontrol", 'TZ=Asia/Tokyo exec {real} "$@"\n'),
        {"controller's time": "broken"},
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(desk: Desk, slurm: Cluster, name: str) -> None:
    """Its own line names it."""
    fault = FAULTS[name]
    if name == "broken PMIx" and NO_PMIX:
        pytest.skip("no broken PMIx: this Slurm has none")
    with fault.plant(desk, slurm) as variables:
        told = told_until(desk, fault.lines, *fault.options, env=variables)
    assert {line: told[line] for line in fault.lines} == fault.lines


@pytest.mark.nightly
def test_missing_munge_on_a_node_is_found(desk: Desk, slurm: Cluster) -> None:
    """The node is out of service, or runs no step, or can't ask the controller."""
    with planted.munge_missing(desk, slurm):
        told = told_until(desk, {"Slurm on nodes": ""})
    lines = ("nodes in service", "srun steps", "Slurm on nodes")
    assert {told[line] for line in lines} & {"warning", "broken"}


@pytest.mark.nightly
def test_root_squash_is_found(desk: Desk, slurm: Cluster) -> None:
    """Root without its rights, as a file server leaves it, is told to be an ordinary user."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("no root_squash: it takes root, and setpriv")
    desk.store.path.parent.chmod(0o700)
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "detslurm", "selftest", "--json"],
        env=desk.user.environment({"HOME": "/root", "TMPDIR": "/tmp"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    [line] = [c for c in unwrap(done.stdout)["checks"] if c["name"] == "store"]
    assert line["verdict"] == "broken" and "root_squash" in line["remedy"]
