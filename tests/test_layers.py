"""The house stands as DESIGN.md says: imports run downward only, and light things stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from scripts import architecture

REPOSITORY = Path(__file__).resolve().parents[1]

BELOW: dict[str, set[str]] = {
    "_base": set(),  # the ground, which all may import
    "config": {"templates"},  # pure data, read by name
    "storage": set(),
    "searcher": {"config"},
    "store": {"config", "searcher"},  # which compares results by several objectives
    "slurm": {"config"},
    "compat": set(),  # imports whatever its user names
    # Exec to join a job on request, lazily.
    "core": {"store", "storage", "searcher", "slurm", "config", "exec"},
    "record": {"core", "config", "store"},
    "jobs": {"store", "slurm", "searcher", "config"},
    "notices": {"store", "config"},
    "exec": {"jobs", "notices", "store", "storage", "slurm", "searcher", "config", "compat"},
    # A checkpoint's code may import determined.
    "pytorch": {"core", "compat", "config", "frameworks", "storage", "store"},
    "frameworks": {"core", "config", "searcher"},
    "transformers": {"core", "frameworks"},
    "lightning": {"core", "frameworks"},
    "keras": {"core", "frameworks"},
    # In a user's own batch script a launcher is its node's agent.
    "launch": {"core", "exec", "slurm", "store", "config"},
    # Submitting samples the trials, and checks what code imports of determined.
    "sdk": {"jobs", "notices", "store", "storage", "slurm", "searcher", "config", "compat"},
    "look": {"sdk", "slurm", "store", "config"},
    "cli": {"sdk", "look"},
    "experimental": {"core", "sdk", "store"},  # Determined's name for parts of both
    "templates": set(),
}
"""Package -> the packages that its files may import."""

GROUND_MAY_IMPORT = {
    "info": {"store"},  # reads a configuration that is too long for a variable
    # The modules of a process of its own; and it writes a file as the store does.
    "module_cache": {"exec", "store"},
}
"""The modules of the ground import none of the packages above them, but for these."""

MUTUAL = {
    # The one runs the other's code, which needs a type alone.
    ("detslurm._base.cached_modules", "detslurm._base.startup"),
    ("detslurm.store.experiment", "detslurm.store.store"),  # which touches its ledger
    # Users go from each to the other.
    ("detslurm.sdk.trials.trial", "detslurm.sdk.experiments.experiment"),
    # Names of experiments stand for ids in each method of the client.
    ("detslurm.sdk.experiments.finding", "detslurm.sdk.client"),
    # Models change the registry that made them.
    ("detslurm.sdk.models.version", "detslurm.sdk.models.registry"),
    # They do the methods of the other.
    ("detslurm.sdk.checkpoints.changes", "detslurm.sdk.checkpoints.checkpoint"),
    ("detslurm.sdk.checkpoints.verification", "detslurm.sdk.checkpoints.checkpoint"),
    # Their methods wait through it.
    ("detslurm.sdk.experiments.polling", "detslurm.sdk.experiments.experiment"),
    ("detslurm.sdk.experiments.polling", "detslurm.sdk.trials.trial"),
    ("detslurm.sdk.trials.logs", "detslurm.sdk.trials.trial"),  # which shows its log through it
    ("detslurm.sdk.support", "detslurm.sdk.trials.trial"),  # which is put into one file by it
    ("detslurm.slurm.local.verbs", "detslurm.slurm.local.scheduler"),  # whose state they change
}
"""Modules that know the module which makes them."""

FACES = {
    "store": {
        "artifacts",
        "checkpoint_facts",
        "checkpoint_index",
        "errors",
        "frame",
        "fs",
        "gc",
        "gc_policy",
        "metric_rank",
        "models",
        "overviews",
        "provenance",
        "reading",
        "rebuilding",
        "records",
        "retry",
        "root_access",
        "run_records",
        "run_usage",
        "saved_views",
        "search_records",
        "thinning",
        "trial_fold",
        "unmanaged",
    },
    "slurm": {
        "allocated",
        "command",
        "hostlist",
        "pending_details",
        "priority",
        "reasons",
        "selftest_queries",
        "user_script",
    },
}
"""Package with a face -> the modules that others may name; all else they take from the face."""

HEAVY = {"torch", "numpy", "mpi4py", "h5py", "optuna"}


def below(package: str) -> set[str]:
    """All packages below `package`, the ground, and itself."""
    return {"_base", package}.union(*map(below, BELOW[package]))


def sources(package: str) -> list[Path]:
    """The Python files of one of our packages."""
    return sorted((REPOSITORY / "detslurm" / package).rglob("*.py"))


def imported_packages(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every package of ours that the file imports, lazily or not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "detslurm" and len(parts) > 1 and parts[1] in BELOW:
                yield node.lineno, parts[1]


@pytest.mark.parametrize("package", sorted(BELOW.keys() - {"_base"}))
def test_imports_run_downward(package: str) -> None:
    """No package imports a package that the table does not give it."""
    TopologicalSorter(BELOW).prepare()  # raises where the table has a circle
    allowed = {"_base", package} | BELOW[package]
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}: {package} imports {name}"
        for path in sources(package)
        for line, name in imported_packages(path)
        if name not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", sorted(FACES))
def test_the_inner_modules_of_a_face_are_its_own(package: str) -> None:
    """Others can rely on few modules, so that the package can change the rest alone."""
    inner = {path.stem for path in sources(package)} - FACES[package] - {"__init__"}
    wrong = [
        f"{path.relative_to(REPOSITORY)} imports {name}"
        for other in BELOW.keys() - {package, "_base"}
        for path in sources(other)
        for name in imported_names(path)
        if name.startswith(f"detslurm.{package}.") and name.split(".")[2] in inner
    ]
    assert not wrong, "\n".join(wrong)


def module_of(path: Path) -> str:
    """The name by which a source file is imported."""
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)


def imported_names(path: Path) -> Iterator[str]:
    """What may be a module of all that the file imports, also lazily or for its types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Each can be read and changed after what it imports, but for the pairs named above."""
    files = [path for package in BELOW for path in sources(package) if path.stem != "__init__"]
    modules = {module_of(path): path for path in files}
    graph = {
        module: {
            name
            for name in imported_names(path)
            if name in modules and name != module and (module, name) not in MUTUAL
        }
        for module, path in modules.items()
    }
    TopologicalSorter(graph).prepare()  # raises with the circle
    assert all(name in imported_names(modules[module]) for module, name in MUTUAL)


def test_no_circle_through_the_package_s_own_name() -> None:
    """`detslurm` loads `core` on first use: what that stands on must not import it in turn."""
    whole = re.compile(r"^\s*import detslurm$|import_module\(.detslurm.\)", re.MULTILINE)
    paths = [path for package in sorted(below("core")) for path in sources(package)]
    assert [str(path) for path in paths if whole.search(path.read_text())] == []


@pytest.mark.parametrize("path", sources("_base"), ids=lambda p: p.stem)
def test_the_ground_imports_no_package(path: Path) -> None:
    """Not even where it is used: each package stands on these modules."""
    found = {name for _, name in imported_packages(path)} - {"_base"}
    assert found <= GROUND_MAY_IMPORT.get(path.stem, set())


VARIABLE = re.compile(r"(DET|DETSLURM)_[A-Z_]+")


def test_each_variable_is_named_once() -> None:
    """Code takes the names of the environment contract from `detslurm/_base/contract.py`."""
    exempt = {
        "detslurm/_base/contract.py",
        "detslurm/compat/onpath/determined/__init__.py",
        "detslurm/exec/start_hooks/_detslurm_launcher.py",
        "detslurm/exec/start_hooks/_detslurm_record.py",
        "detslurm/exec/start_hooks/_detslurm_sigterm.py",
        "detslurm/exec/start_hooks/sitecustomize.py",
    }
    files = [p for package in BELOW for p in sources(package)]
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.value}"
        for path in [*files, *REPOSITORY.glob("detslurm/*.py")]
        if str(path.relative_to(REPOSITORY)) not in exempt
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and VARIABLE.fullmatch(node.value)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_its_place() -> None:
    """A new package must be entered in the table above."""
    folders = {p.name for p in (REPOSITORY / "detslurm").iterdir() if (p / "__init__.py").exists()}
    assert folders <= set(BELOW)


def test_every_package_is_installed() -> None:
    """A checkout imports folders that setup.cfg has forgotten; what pip installs has them not."""
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    folders = {path.parent for package in BELOW for path in sources(package)}
    names = {".".join(folder.relative_to(REPOSITORY).parts) for folder in folders}
    assert names | {"detslurm"} == set(setup["options"]["packages"].split())


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("detslurm", HEAVY),
        ("detslurm.cli", HEAVY),
        ("detslurm.exec.runner", HEAVY | {"json"}),
        ("detslurm.exec.agent", HEAVY | {"json"}),
        ("detslurm.exec.sampling", HEAVY | {"ctypes"}),
    ],
)
def test_light_things_stay_light(module: str, heavy: set[str]) -> None:
    """A login node and a thousand nodes never pay for importing the heavy libraries, nor for a
    second one that does the same."""
    show = f"import sys, {module}; print(*sys.modules)"
    argv = [sys.executable, "-I", "-c", show]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


def test_the_picture_of_the_packages_is_true() -> None:
    """docs/architecture.md shows the imports as they are; `scripts/architecture.py` draws them."""
    assert architecture.main(["--check"]) == 0
