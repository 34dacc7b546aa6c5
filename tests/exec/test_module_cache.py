"""Runners and agents start from one file of code, and without it as any module does."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.experiments import submitted
from detslurm._base import cached_modules, startup
from detslurm._base.module_cache import is_editable

TALKS = (
    "def main(words):\n    print({said!r}, *words)\nif __name__ == '__main__':\n    main({words})\n"
)


TRUE = "['true']"
FINDER = marshal.dumps(compile(Path(cached_modules.__file__).read_text(), "finder", "exec"))


class Site:
    """A store with a module cache, beside an installed module of the same name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.installed = root / "installed"
        self.installed.mkdir()
        self.source = self.installed / "hello.py"
        self.source.write_text(TALKS.format(said="installed", words="__import__('sys').argv[1:]"))
        self.cache = Path(startup.cache_path(str(root)))
        self.write(sys.version)

    def write(self, version: str, *sources: str, at_start: bool = True) -> None:
        texts = {self.source: TALKS.format(said="cached", words=[])}
        for name in sources:
            path = self.installed / f"{name}.py"
            texts[path] = path.read_text()
        modules: dict[str, cached_modules.Entry] = {}
        code = b""
        for path, text in texts.items():
            own = marshal.dumps(compile(text, str(path), "exec"))
            modules[path.stem] = (str(path), None, (len(code), len(own)))
            code += own
        stamps = [cached_modules.stamp(origin) for origin, _, _ in modules.values()]
        starts = {"hello": len(code)} if at_start else {}
        index = stamps[:1], stamps, modules, starts
        self.cache.write_bytes(startup.written(version, FINDER, index, code))
        self.cache.chmod(0o600)

    def start(self) -> str:
        experiment = str(self.root / "experiments" / "7")
        argv = [sys.executable, "-PS", startup.__file__, "hello", experiment, "5"]
        environment = os.environ | {"PYTHONPATH": str(self.installed)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.endswith(f" {experiment} 5\n")
        return done.stdout.split()[0]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_module_comes_from_the_cache(site: Site) -> None:
    """With the words behind its name; also if it is none of those that every start needs."""
    assert site.start() == "cached"
    site.write(sys.version, at_start=False)
    assert site.start() == "cached"


def test_a_source_that_was_changed_is_not_taken_from_the_cache(site: Site) -> None:
    """In an editable installation any file may change alone, and others come from the cache."""
    site.source.write_text("import other\nmain = lambda words: print(other.SAID, *words)\n")
    other = site.installed / "other.py"
    other.write_text("SAID = 'cached'\n")
    site.write(sys.version, "hello", "other")
    other.write_text("SAID = 'changed'\n")
    os.utime(other, ns=(1, 1))
    assert site.start() == "changed"


LAZY = """
import sys, time
def dedent(text):
    return result + text
sys.runs += 1
sys.begun.set()
assert sys.asked.wait(100)
time.sleep(0.1)
result = "dedented "
"""
ASKS = """
import sys, textwrap, threading
sys.runs, sys.begun, sys.asked = 0, threading.Event(), threading.Event()
def main(words):
    assert sys.runs == 0
    found = []
    first = threading.Thread(target=lambda: found.append(textwrap.dedent("text")))
    first.start()
    assert sys.begun.wait(100)
    sys.asked.set()
    found.append(textwrap.dedent("text"))
    first.join()
    assert sys.runs == 1 and found == 2 * ["dedented text"], (sys.runs, found)
    assert type(textwrap) is type(sys), type(textwrap)
    print("asked", *words)
"""


def test_what_is_hardly_ever_used_runs_when_it_is_asked_for(site: Site) -> None:
    """By one thread; another that asks meanwhile waits, and does not find half a module: not what
    is there by then, either, which may need the rest."""
    site.source.write_text(ASKS)
    (site.installed / "textwrap.py").write_text(LAZY)
    site.write(sys.version, "hello", "textwrap")
    assert site.start() == "asked"


BROKEN_OFF = """
import sys
sys.runs += 1
if sys.runs == 1:
    raise KeyboardInterrupt
def dedent(text):
    return text
"""
ASKS_AGAIN = """
import sys, textwrap
sys.runs = 0
def main(words):
    try:
        textwrap.dedent
    except KeyboardInterrupt:
        print(textwrap.dedent("again"), *words)
"""


def test_a_module_that_was_broken_off_runs_again(site: Site) -> None:
    """As it would be imported again."""
    site.source.write_text(ASKS_AGAIN)
    (site.installed / "textwrap.py").write_text(BROKEN_OFF)
    site.write(sys.version, "hello", "textwrap")
    assert site.start() == "again"


def test_what_a_module_has_is_listed_before_it_has_run(site: Site) -> None:
    site.source.write_text(
        "import textwrap\ndef main(words):\n    print('dedent' in dir(textwrap), *words)\n"
    )
    (site.installed / "textwrap.py").write_text("def dedent(text):\n    return text\n")
    site.write(sys.version, "hello", "textwrap")
    assert site.start() == "True"


def test_installed_files_are_not_looked_at_one_by_one() -> None:
    """An upgrade replaces all of a distribution, and the first of them tells."""
    assert not is_editable("/env/lib/python3.11/site-packages/msgspec/__init__.py")
    assert not is_editable(os.__file__)
    assert is_editable("/home/alice/detslurm/detslurm/__init__.py")


UNFIT: dict[str, Callable[[Site], object]] = {
    "missing": lambda site: site.cache.rename(site.root / "elsewhere"),
    "torn": lambda site: site.cache.write_bytes(site.cache.read_bytes()[:-9]),
    "empty": lambda site: site.cache.write_bytes(b""),
    "a head of no length": lambda site: site.cache.write_bytes(b"9" * 16),
    "another Python": lambda site: site.write("3.11.0 (another one)"),
    "an upgrade": lambda site: os.utime(site.source, ns=(1, 1)),
    "the group may write": lambda site: site.cache.chmod(0o660),
}


@pytest.mark.parametrize("change", UNFIT.values(), ids=list(UNFIT))
def test_what_does_not_fit_is_not_used(site: Site, change: Callable[[Site], object]) -> None:
    """The module runs as it is installed: a job never fails for its cache."""
    change(site)
    assert site.start() == "installed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_code_of_another_user_is_not_run(site: Site) -> None:
    """In a shared store anybody may have written it."""
    os.chown(site.cache, 65534, -1)
    assert site.start() == "installed"


def write_older(path: Path, cache: cached_modules.Cache) -> None:
    """As it would be of the version before."""
    older = [(cache.distributions[0][0], 1, 1), *cache.distributions[1:]]
    index = older, cache.editable, cache.modules, dict[str, int]()
    path.write_bytes(startup.written(sys.version, FINDER, index, b""))


def test_a_submission_writes_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again when what it was made of has changed."""
    root = tmp_path / "store"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    submitted(tmp_path / "first", root, TRUE)
    cache = Path(startup.cache_path(str(root)))
    before = cache.stat()
    assert before.st_mode & 0o777 == 0o600
    submitted(tmp_path / "second", root, TRUE)
    assert cache.stat().st_ino == before.st_ino
    found = cached_modules.open_cache(str(cache))
    assert found is not None
    write_older(cache, found)
    (tmp_path / "third").mkdir()
    submitted(tmp_path / "third", root, TRUE)
    again = cached_modules.open_cache(str(cache))
    assert again is not None and again.distributions == found.distributions
    found.close()
    again.close()


IMPORTS = """
import sys, runpy
sys.argv = ["startup.py", "detslurm.exec.runner", sys.argv[1], "0"]
try:
    runpy.run_path({start!r}, run_name="__main__")
except SystemExit:
    from detslurm._base import startup
    import json, optuna, detslurm.exec.runner as runner, detslurm.exec.sampling, msgspec._core
    import submitit.slurm.slurm
    assert runner.__spec__.loader.__class__.__name__ == "_CachedLoader", runner.__spec__
    assert runner.__file__.endswith("detslurm/exec/runner.py")
    assert "StoreError" in runner.__loader__.get_source(runner.__name__)
    print("all found")
"""


def test_what_it_lacks_is_found_in_site_packages(tmp_path: Path) -> None:
    """Which -S has left out; modules know their files, as others do."""
    root = tmp_path / "store"
    experiment = submitted(tmp_path, root, TRUE)
    code = IMPORTS.format(start=startup.__file__)
    argv = [sys.executable, "-PSc", code, str(experiment.path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout == "all found\n", done.stderr


PROGRAM = """
import os, sys
files = set(os.listdir("/proc/self/fd"))
import detslurm.core, queue
assert set(os.listdir("/proc/self/fd")) == files
assert queue.__file__ == os.path.join(sys.path[0], "queue.py"), queue.__file__

def loaders(names):
    found = [type(sys.modules[name].__spec__.loader).__name__ for name in names]
    found = ["_CachedLoader" if name == "_LazyLoader" else name for name in found]
    assert len(set(found)) == 1, list(zip(names, found))
    return found[0]

def child(names):
    import detslurm.core
    print("child", loaders(names))

if __name__ == "__main__":
    import detslurm.launch, detslurm.pytorch.samplers, multiprocessing
    names = [name for name in sys.modules if name.startswith("detslurm.")]
    ground = ("_base", "_base.cached_modules", "_base.contract", "_base.startup")
    before = [f"detslurm.{name}" for name in ground]
    names = [name for name in names if name not in before]
    print("parent", loaders(names))
    names = ["detslurm.core"]
    multiprocessing.get_context("spawn").Process(target=child, args=(names,)).start()
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return submitted(tmp_path_factory.mktemp("program"), _root(tmp_path_factory), TRUE).path


def _root(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("store") / "store"


def _loaders(experiment: Path, tmp_path: Path) -> dict[str, str]:
    """By which classes a user's program and its spawned child import this package."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "queue.py").write_text("from _queue import Empty, SimpleQueue\nclass Queue: ...\n")
    environment = os.environ | {"DETSLURM_EXPERIMENT_DIR": str(experiment)}
    argv = [sys.executable, "train.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


def test_a_users_program_imports_this_package_from_the_cache(
    experiment: Path, tmp_path: Path
) -> None:
    """Itself and what it spawns; its own modules stay its own, and no file is left open."""
    cached = "_CachedLoader"
    assert _loaders(experiment, tmp_path) == {"parent": cached, "child": cached}


@pytest.mark.parametrize("change", ["missing", "torn", "an upgrade"])
def test_a_users_program_runs_without_a_cache_that_fits(
    change: str, experiment: Path, tmp_path: Path
) -> None:
    cache = Path(startup.cache_path(str(experiment.parent.parent)))
    whole = cache.read_bytes()
    if change == "missing":
        cache.rename(cache.with_name("elsewhere"))
    elif change == "torn":
        cache.write_bytes(whole[: len(whole) // 100])
    else:
        found = cached_modules.open_cache(str(cache))
        assert found is not None
        write_older(cache, found)
        found.close()
    try:
        plain = "SourceFileLoader"
        assert _loaders(experiment, tmp_path) == {"parent": plain, "child": plain}
    finally:
        cache.write_bytes(whole)
        cache.chmod(0o600)
