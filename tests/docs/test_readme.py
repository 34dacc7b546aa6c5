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

from tests.cluster.spec import ClusterSpec, Layout
from tests.cluster.users import User, local_user
from tests.docs.pages import REPOSITORY, Block, blocks, commands, pages

RUN = [
    REPOSITORY / "README.md",
    *(REPOSITORY / "docs" / f"{name}.md" for name in ("getting-started", "pytorch", "coming-from")),
]
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
    for block in blocks(page):
        if block.file is not None:
            write(reader, block.file, block.text)
        elif block.test is None:
            run(reader, block)


@pytest.mark.slow
def test_the_first_script_can_be_tested(reader: User) -> None:
    """With one batch, as with any length that is no multiple of its reports."""
    for block in blocks(REPOSITORY / "README.md"):
        if block.file is not None:
            write(reader, block.file, block.text)
    done = reader.run("detslurm", "submit", "experiment.yaml", "--test-mode", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def write(reader: User, name: str, text: str) -> None:
    assert reader.cwd is not None
    path = reader.cwd / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    reader.own(reader.cwd)


def run(reader: User, block: Block) -> None:
    for command in commands(block):
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
        elif page not in RUN:
            assert not list(commands(block)), f"nothing runs this:\n{block.text}"


def test_make_test_is_what_has_to_pass() -> None:
    """`make test` exists and is what CI calls, after `make lint`."""
    targets = re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "lint", "bench"} <= set(targets)
    assert (REPOSITORY / ".ci" / "run").read_text().endswith("\nmake lint\nexec make test\n")
