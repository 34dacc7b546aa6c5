"""A staged environment: what importing torch asks of the shared file system, and its time."""

from __future__ import annotations

import os
import re
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from time import perf_counter, sleep
from unittest import mock

import msgspec

from benchmarks.bench import Bench
from benchmarks.calls import trace
from benchmarks.measure import run
from benchmarks.report import Row, Skip
from detslurm.exec.staging import stage
from detslurm.sdk.submission.environment import find_environment, keep
from detslurm.store import Store

ROOT = "torch"
SECONDS_A_CALL = 0.001

# Delays each call with a path below SHARED that Python's imports make; the loader of compiled
# libraries is not delayed.
DELAYED = f"""\
import _io, posix, sys, time
shared = sys.argv[1]
def delayed(call):
    def late(path=".", *args, **kwargs):
        if str(path).startswith(shared):
            time.sleep({SECONDS_A_CALL})
        return call(path, *args, **kwargs)
    return late
for name in ("listdir", "lstat", "open", "readlink", "scandir", "stat"):
    setattr(posix, name, delayed(getattr(posix, name)))
_io.open_code = delayed(_io.open_code)
import site
site.main()
import {ROOT}
"""


def measure(bench: Bench) -> Iterator[Row]:
    """One rank imports torch from the shared file system, and from the copy on its node's disk."""
    shared, disk = bench.folder(), bench.folder()
    prefix = _environment(shared / "venv")
    found = find_environment(str(prefix))
    assert found is not None
    began = perf_counter()
    archive = keep(found, Store.open(shared / "store"), lambda done, whole: None)
    packing = perf_counter() - began
    began = perf_counter()
    with mock.patch.dict(os.environ, SLURM_TMPDIR=str(disk)):
        staged = stage(msgspec.to_builtins(archive), wait=sleep, stopped=bool)
    unpacking = perf_counter() - began
    places = (prefix, Path(staged.path))
    here, there = (_calls(place, shared) for place in places)
    yield Row(
        what=f"shared path calls of `import {ROOT}`, staged", ours=there + 1, unit="path calls",
        anchor=here, peer="not staged", most_ratio=0.02,
    )  # fmt: skip
    slow, fast = (_seconds(place, shared) for place in places)
    what = f"`import {ROOT}` at 1 ms a shared call, staged"
    yield Row(what=what, ours=fast, unit="s", anchor=slow, peer="not staged", most_ratio=0.5)
    yield Row(what=f"{what}, and unpacked before", ours=fast + unpacking, unit="s", anchor=slow,
              peer="not staged", most_ratio=1.5)  # fmt: skip
    mb = archive.size / 1e6
    yield Row(what=f"packing {mb:,.0f} MB, once", ours=packing, unit="s")
    again = find_environment(str(prefix))
    assert again is not None
    began = perf_counter()
    find_environment(str(prefix))
    yield Row(what="looking whether it has changed", ours=perf_counter() - began, unit="s",
              anchor=packing, peer="packing", most_ratio=0.25)  # fmt: skip
    os.close(staged.lock)


def _environment(prefix: Path) -> Path:
    """A virtual environment with torch and all that it requires, as links to what is here."""
    venv.create(prefix, symlinks=True)
    (target,) = prefix.glob("lib/python3*/site-packages")
    for name in sorted(_required(ROOT, set())):
        for file in metadata.distribution(name).files or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or not source.is_file():
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target / file)
            except OSError:
                raise Skip(f"{source} can't be linked to {prefix}") from None
    run([f"{prefix}/bin/python3", "-c", f"import {ROOT}"])  # compiles what was not
    return prefix


def _required(name: str, known: set[str]) -> set[str]:
    try:
        wanted = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        if name == ROOT:
            raise Skip(f"{ROOT} is not installed") from None
        return known
    known.add(name)
    for one in wanted:
        match = re.match(r"[\w.-]+", one)
        if match and "extra ==" not in one and match[0].lower() not in known:
            _required(match[0].lower(), known)
    return known


def _calls(prefix: Path, shared: Path) -> int:
    traced = trace([f"{prefix}/bin/python3", "-c", f"import {ROOT}"], dict(os.environ))
    return len(traced.under(shared))


def _seconds(prefix: Path, shared: Path) -> float:
    """How long Python takes to start and import."""
    began = perf_counter()
    run([f"{prefix}/bin/python3", "-S", "-c", DELAYED, str(shared)])
    return perf_counter() - began
