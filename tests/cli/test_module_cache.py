"""Commands import from one file in their user's cache directory, and as ever where there is none.

Against a copy of the package, whose files a test may change, as in an editable installation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from detslurm._base import cached_modules
from tests.docs.pages import REPOSITORY

START = "import sys; from detslurm_command import main; sys.exit(main())"


class Site:
    """An installation and a user's home."""

    def __init__(self, root: Path) -> None:
        self.package = root / "installed" / "detslurm"
        self.home = root / "home"
        self.home.mkdir()
        ignored = shutil.ignore_patterns("*.pyc")
        shutil.copytree(REPOSITORY / "detslurm", self.package, ignore=ignored)
        shutil.copy(REPOSITORY / "detslurm_command.py", self.package.parent)
        self.environment = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.package.parent),
        }

    def run(self, *words: str, prefix: tuple[str, ...] = (), **environment: str) -> str:
        argv = [*prefix, sys.executable, "-c", START, *words]
        env = self.environment | environment
        done = subprocess.run(argv, env=env, cwd=self.home, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    @property
    def cache(self) -> Path:
        (found,) = (self.home / ".cache" / "detslurm").iterdir()
        return found

    def path_calls(self, *words: str, **environment: str) -> int:
        trace = self.home / "trace"
        prefix = ("strace", "-f", "-qq", "-e", "trace=%file", "-o", str(trace))
        self.run(*words, prefix=prefix, **environment)
        return len(trace.read_text().splitlines())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


HELP = ("experiment", "list", "--help")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_command_looks_up_few_names(site: Site) -> None:
    """Less than two thirds of what it does without a cache, for the start of Python is the same."""
    site.run(*HELP)
    plain = site.path_calls(*HELP, XDG_CACHE_HOME="/proc/none")
    assert site.path_calls(*HELP) < plain * 2 / 3


def test_it_is_written_where_something_is_lacking(site: Site) -> None:
    """What a command has cached, the others keep. Modules that no cache can have, such as those in
    an archive, are not missed by each command anew."""
    archive = site.home / "click.zip"
    (folder,) = click.__path__
    with zipfile.ZipFile(archive, "w") as file:
        for path in Path(folder).glob("*.py"):
            file.write(path, f"click/{path.name}")
    site.environment["PYTHONPATH"] = f"{archive}:{site.environment['PYTHONPATH']}"
    kinds = (HELP, ("compare", "--help"), ("--version",))
    for words in kinds:
        site.run(*words)
    assert site.cache.stat().st_mode & 0o777 == 0o600
    whole = site.cache.stat().st_ino
    for words in kinds:
        site.run(*words)
    assert site.cache.stat().st_ino == whole


def test_a_module_that_was_changed_counts(site: Site) -> None:
    """Also one that the next command would have from the cache; and it is cached again."""
    before = site.run("--help")
    app = site.package / "cli" / "app.py"
    text = app.read_text()
    app.write_text(text.replace("xperiment", "XPERIMENTAL thing"))
    after = site.run("--help")
    assert after != before and "XPERIMENT" in after
    whole = site.cache.stat().st_ino
    assert site.run("--help") == after
    assert site.cache.stat().st_ino == whole
    app.write_text(text)
    assert site.run("--help") == before


def test_an_upgrade_replaces_it(site: Site) -> None:
    site.run("--version")
    before = site.cache.stat().st_ino
    init = site.package / "__init__.py"
    text = init.read_text()
    (line,) = (each for each in text.splitlines() if each.startswith("__version__"))
    init.write_text(text.replace(line, '__version__ = "99.1.2"'))
    assert "99.1.2" in site.run("--version")
    assert site.cache.stat().st_ino != before


UNFIT: dict[str, Callable[[Path], object]] = {
    "torn": lambda cache: cache.write_bytes(cache.read_bytes()[: cache.stat().st_size // 3]),
    "empty": lambda cache: cache.write_bytes(b""),
    "of another kind": lambda cache: cache.write_bytes(b"PK" + cache.read_bytes()),
    "the group may write": lambda cache: cache.chmod(0o660),
}


@pytest.mark.parametrize("change", UNFIT.values(), ids=list(UNFIT))
def test_a_cache_that_is_broken_is_written_again(
    site: Site, change: Callable[[Path], object]
) -> None:
    before = site.run(*HELP)
    size = site.cache.stat().st_size
    change(site.cache)
    assert site.run(*HELP) == before
    assert site.cache.stat().st_size == size
    found = cached_modules.open_cache(str(site.cache))
    assert found is not None
    found.close()


def test_nothing_is_kept_where_python_keeps_no_code(site: Site) -> None:
    site.run("--version", PYTHONDONTWRITEBYTECODE="1")
    assert not (site.home / ".cache").exists()


def test_a_module_that_is_being_written_is_left_alone(site: Site) -> None:
    before = site.run("--version")
    (site.package / "cli" / "compare.py").write_text("def half(")
    (site.package / "cli" / "app.py").touch()
    assert site.run("--version") == before


def test_where_nothing_can_be_kept_commands_run_as_ever(site: Site) -> None:
    """A file where the directory should be: also root can't write there."""
    (site.home / ".cache").write_text("")
    assert site.run("--version") == site.run("--version")


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_left_alone(site: Site, variable: str, tmp_path: Path) -> None:
    """As after `sudo`, which keeps variables at some sites."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, -1)
    site.environment[variable] = str(theirs)
    site.run("--version")
    assert not list(theirs.iterdir())
