"""The pages for centres: the hour runs as it is printed, and the data sheet's numbers hold."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bench import Bench
from benchmarks.experiments import finished
from benchmarks.measure import peak_mb
from detslurm.store import Store
from tests.cluster import Cluster, User
from tests.cluster.waiting import wait_for
from tests.docs.pages import REPOSITORY, blocks, commands
from tests.docs.test_readme import HOUR, assert_prints, write
from tests.e2e.desk import Desk

CENTRES = REPOSITORY / "docs" / "centres.md"


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def data_sheet() -> Iterator[tuple[str, str, str]]:
    """Question, answer and evidence of each row."""
    table = CENTRES.read_text().partition("## Data sheet")[2].partition("\n\n**")[0]
    for row in re.findall(r"^\| (.+) \|$", table, re.MULTILINE)[1:]:
        question, answer, evidence = (cell.strip() for cell in f"{row} ".split("|")[:3])
        yield question, answer, evidence


def promised(question: str) -> int:
    """The first number of an answer."""
    [answer] = [answer for asked, answer, _ in data_sheet() if question in asked]
    number = re.search(r"\d+", answer)
    assert number, answer
    return int(number[0])


def test_each_number_is_measured() -> None:
    """A row with a number names its evidence, which has the same number."""
    rows = [row for row in data_sheet() if re.search(r"\d", row[1].replace("Apache 2.0", ""))]
    assert len(rows) > 10
    for question, answer, evidence in rows:
        assert evidence, question
        for file, name in re.findall(r"`([\w/.]+)::(\w+)`", evidence):
            body = (REPOSITORY / file).read_text().partition(f"def {name}(")[2]
            assert body, evidence
            if "test_centres" not in file and "watcher" not in file:  # the former read the sheet
                numbers = re.findall(r"\d+", answer)
                assert any(re.search(rf"\b{number}\b", body) for number in numbers), question


def test_memory_of_commands(tmp_path: Path) -> None:
    """Commands for a login node need little memory, whatever they show."""
    limit, first = promised("Memory of a command"), 120
    with Bench() as bench:
        environment = bench.environment(bench.folder())
        finished(Store.open(Path(environment["DETSLURM_ROOT"])), 20)
        config = tmp_path / "experiment.yaml"
        config.write_text("entrypoint: 'true'\nsearcher: {name: single, metric: x}\n")
        for words in (f"submit {config} --dry-run", "experiment list", "experiment describe 1"):
            command = ["detslurm", *words.split()]
            assert peak_mb(command, environment) < first, words  # it writes the cache of modules
            assert peak_mb(command, environment) < limit, words
        report = ["detslurm", "report", "1", "-o", str(tmp_path / "report.html")]
        assert peak_mb(report, environment) < first


@pytest.mark.nightly
def test_the_hour(site: Cluster, alice: User) -> None:
    """All commands of the page print what it shows; processes, ports, memory and files are as the
    data sheet promises, and nothing is left."""
    user = newcomer(alice)
    for block in blocks(REPOSITORY / "README.md"):
        if block.file is not None:
            write(user, block.file, block.text)
    for block in blocks(HOUR):
        if block.test is not None:
            continue
        for command in commands(block):
            if command.line.startswith("sbatch"):
                wait_for(lambda: trained(user, 1), what="checkpoints")
                assert_small(user)
            elif command.line.startswith("scancel"):
                wait_for(lambda: trained(user, 2), what="checkpoints")
            elif command.line.startswith("detslurm report"):
                follow = [sys.executable, "-c", PEAK, "detslurm", "submit", "experiment.yaml"]
                peak = float(user.run(*follow, "--follow").stdout.splitlines()[-1])
                assert peak < promised("`submit --follow`")
            elif command.line.startswith("rm "):
                assert_deleted(Path(user.env["DETSLURM_ROOT"]))
            assert_prints(user, command)
    assert not processes_of(user)
    assert [p for p in user.home.rglob("*") if p.is_file() and user.cwd not in p.parents] == []
    wait_for(site.all_idle, what="idle nodes")


def newcomer(alice: User) -> User:
    """The user with a home in which nothing is yet."""
    assert alice.cwd is not None
    home = alice.cwd / "home"
    (home / "work").mkdir(parents=True)
    alice.own(home)
    env = alice.env | {"DETSLURM_ROOT": str(home / "evaluate" / "store")}
    return replace(alice, home=home, cwd=home / "work", env=env)


def trained(user: User, number: int) -> bool:
    """Whether each trial of an experiment has a checkpoint."""
    return all(Desk(user).trial(number, index).latest_checkpoint for index in range(4))


def processes_of(user: User) -> list[Path]:
    """The processes that have this user's store in their environment."""
    root = f"DETSLURM_ROOT={user.env['DETSLURM_ROOT']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if root in (process / "environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def assert_small(user: User) -> None:
    """Four trials run: each has a runner and an agent, with little memory and no open port."""
    ours = []
    for process in processes_of(user):
        with suppress(OSError):
            line = (process / "cmdline").read_bytes()
            if b"detslurm.exec." in line and b"srun" not in line:
                ours.append(process)
    assert len(ours) == 2 * 4, ours
    listening = set()
    for table in ("tcp", "tcp6"):
        rows = (line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:])
        # An agent inherits a descriptor of slurmstepd, whose owner is root.
        own = (row[9] for row in rows if row[3] == "0A" and row[7] == str(user.uid))
        listening |= {f"socket:[{inode}]" for inode in own}
    for process in ours:
        peak = re.search(r"VmHWM:\s+(\d+)", (process / "status").read_text())
        assert peak and int(peak[1]) / 1024 < 30
        opened = {str(file.readlink()) for file in (process / "fd").iterdir()}
        assert len(opened & listening) == promised("Ports of a training")


def assert_deleted(root: Path) -> None:
    """Of a deleted experiment there are a few facts."""
    for number in ("1", "2"):
        files = [path for path in (root / "experiments" / number).rglob("*") if path.is_file()]
        assert {path.parent.name for path in files} == {"facts"}
        assert len(files) <= 20
