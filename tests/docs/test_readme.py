"""The commands of the README and of the guide for beginners run as they are printed."""

from __future__ import annotations

import doctest
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.terminal_recording import RECORDING, text_of
from tests.beside import hugging_face, hydra
from tests.cluster.spec import ClusterSpec, Layout
from tests.cluster.users import User, local_user
from tests.docs.pages import REPOSITORY, Command, blocks, commands, pages

__all__ = ["hugging_face", "hydra"]

RUN = [
    REPOSITORY / "README.md",
    *(REPOSITORY / "docs" / f"{name}.md" for name in ("getting-started", "pytorch", "coming-from")),
]
HASTE = re.compile(r"(seconds_per_step: 0\.|time\.sleep\(0\.)(?=1)")
"""Readers need the time to type a command, tests do not."""
RECIPES = REPOSITORY / "docs" / "recipes.md"
HOUR = REPOSITORY / "docs" / "evaluate.md"
"""`test_centres.py` runs it."""
MATCHES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def reader() -> Iterator[User]:
    """An ordinary user of a machine without Slurm, with a fresh home and an empty directory."""
    root = Path(tempfile.mkdtemp(prefix="detslurm-docs-"))
    root.chmod(0o755)
    layout = Layout(root)
    for folder in (layout.homes, layout.var):
        folder.mkdir()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    # On a busy machine torch's threads wait for one another more than they compute.
    env = {"PATH": path, "SLURM_CONF": "/nonexistent", "OMP_NUM_THREADS": "1"}
    user = local_user("alice", ClusterSpec(), layout, env)
    work = user.home / "work"
    work.mkdir()
    user.own(work)
    yield replace(user, cwd=work)
    end_local_cluster(user)
    shutil.rmtree(root)


def end_local_cluster(user: User) -> None:
    """The scheduler leaves by itself some seconds after the last job; here there is no waiting."""
    code = (
        "from tests.slurm.schedulers import end_scheduler\n"
        "from detslurm.slurm import LocalCluster\n"
        f"end_scheduler(LocalCluster({str(user.home / 'detslurm')!r}))\n"
    )
    user.run(sys.executable, "-c", code, env={"PYTHONPATH": str(REPOSITORY)})


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_every_command_runs_and_prints_what_the_page_shows(page: Path, reader: User) -> None:
    """Files of the page are written, its commands run in order, their output is as shown."""
    follow(page, reader)


@pytest.mark.nightly
@pytest.mark.slow
def test_recipes_work(reader: User, hydra: Path, hugging_face: Path) -> None:
    """As the other pages, with Hydra and Accelerate installed, and a program in place of mail."""
    mail = reader.home / "bin" / "mail"
    mail.parent.mkdir()
    mail.write_text('#!/bin/sh\n(echo "$@"; cat) >>"$HOME/mails"\n')
    mail.chmod(0o755)
    path, beside = f"{mail.parent}:{reader.env['PATH']}", f"{hydra}:{hugging_face}"
    reader.own(reader.home)
    follow(RECIPES, replace(reader, env={**reader.env, "PATH": path, "PYTHONPATH": beside}))
    mails = (reader.home / "mails").read_text()
    assert "-s search has ended ada@example.org" in mails and mails.count("COMPLETED") == 2


def follow(page: Path, reader: User) -> None:
    """Write the files of a page and run its commands, in order."""
    for block in blocks(page):
        if block.file is not None:
            write(reader, block.file, HASTE.sub(r"\g<1>0", block.text))
        elif block.test is None:
            for command in commands(block):
                assert_prints(reader, command)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_recorded_terminal_shows_what_the_commands_print_today(alice: User) -> None:
    """Numbers, curves and the order of trials aside, a new recording has the same words: the
    search was preempted, and went on."""
    assert alice.cwd is not None
    new = alice.cwd / "terminal.svg"
    command = (sys.executable, "-m", "scripts.terminal_recording", str(new))
    alice.run(*command, env={"PYTHONPATH": str(REPOSITORY)})
    assert words(new) == words(RECORDING)


def words(recording: Path) -> list[str]:
    """The lines of a recording, without numbers and times, and without those of the plot and of
    the table: its columns fit into a terminal, so they depend on the numbers."""
    all_lines = text_of(recording.read_text())
    lines = re.findall("^(?!Trial ID|.*lr=)[^│┤└─\n]*$", all_lines, re.MULTILINE)
    known = (re.sub(r"\ba second\b|\bseconds\b|\d\S*", "", line) for line in lines)
    return [" ".join(line.split()) for line in known if re.search("[a-z]", line)]


def test_readme_is_short_and_its_comparison_goes_on_elsewhere() -> None:
    """A reader sees all of it; five rows are there and five in the guide, and can be checked."""
    text = (REPOSITORY / "README.md").read_text()
    more = (REPOSITORY / "docs" / "coming-from.md").read_text()
    tables = [part_of(text, "How it compares"), part_of(more, "More rows of the comparison")]
    assert len(text.splitlines()) < 130 and "\nmake demo\nmake test\n```" in text
    assert [len(re.findall(r"^\| \S", table, re.MULTILINE)) for table in tables] == [1 + 5] * 2
    assert len(re.findall(r"\]\(|\]\[", "".join(tables))) >= 8


def part_of(page: str, title: str) -> str:
    return page.partition(f"## {title}\n")[2].partition("\n\n## ")[0]


def write(reader: User, name: str, text: str) -> None:
    assert reader.cwd is not None
    path = reader.cwd / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    reader.own(reader.cwd)


def assert_prints(reader: User, command: Command) -> None:
    """Run a command; it prints what the page shows."""
    done = reader.run("bash", "-c", f"{command.line} 2>&1")
    same = doctest.OutputChecker().check_output(command.output, done.stdout, MATCHES)
    assert same, f"$ {command.line}\n{done.stdout}\nbut the page shows:\n{command.output}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_does_not_run_here_is_covered_elsewhere(page: Path) -> None:
    """Each command of a page is run by this file, or its marker names a test that exists."""
    for block in blocks(page):
        if block.test is not None:
            file, _, name = block.test.partition("::")
            assert f"def {name}(" in (REPOSITORY / file).read_text()
        elif page not in (*RUN, RECIPES, HOUR):
            assert not list(commands(block)), f"nothing runs this:\n{block.text}"


def test_make_test_is_what_has_to_pass() -> None:
    """`make test` exists and is what CI calls, after `make lint`."""
    targets = re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "lint", "bench"} <= set(targets)
    assert (REPOSITORY / ".ci" / "run").read_text().endswith("\nmake lint\nexec make test\n")
