"""The public API is documented: every argument by name with its default, and every error."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

from detslurm import store
from detslurm.sdk import Checkpoint, Client, Experiment, Job, Model, ModelVersion, Trial
from detslurm.sdk.bundle.importing import Imported
from detslurm.sdk.bundle.writing import Bundled
from detslurm.sdk.experiments.comparison import Comparison, Difference
from detslurm.sdk.jobs.status import JobRef, JobStatus
from detslurm.sdk.submission.submit import Submission
from tests.beside import hugging_face, keras, lightning
from tests.docs.pages import REPOSITORY, blocks
from tests.docs.public import SECTIONS, Docstring, Documented, is_exception, public, spelled
from tests.sdk.scenes import Queue

__all__ = ["hugging_face", "keras", "lightning"]

MODULES = (
    "detslurm",
    "detslurm.core",
    "detslurm.errors",
    "detslurm.experimental.client",
    "detslurm.experimental.core_v2",
    "detslurm.launch",
    "detslurm.pytorch",
    "detslurm.pytorch.deepspeed",
    "detslurm.pytorch.experimental",
    "detslurm.pytorch.samplers",
    "detslurm.sdk",
    "detslurm.sdk.client",
    "detslurm.searcher",
)

# What is imported beside a framework, and where that is.
BESIDE = {
    "detslurm.keras": "keras",
    "detslurm.lightning": "lightning",
    "detslurm.transformers": "hugging_face",
}

# What people start with has an example.
STARTS = {
    "detslurm": ("import_from_path",),
    "detslurm.core": (
        "init",
        "CheckpointContext.store_path",
        "PreemptContext.should_preempt",
        "SearcherContext.operations",
    ),
    "detslurm.experimental.core_v2": ("init",),
    "detslurm.pytorch": ("Trainer.fit",),
    "detslurm.sdk": ("Client.experiment", "Client.submit", "Determined.create_experiment"),
    "detslurm.searcher": ("Search",),
}

# What the SDK returns.
RETURNED = (
    *(store.CheckpointView, store.Columns, store.ExperimentRow, store.ExperimentView),
    *(store.MetricRow, store.ProfileRow, store.RunView, store.TrialRow, store.TrialView),
    *(store.ValidationView, store.Job, JobRef, JobStatus, Submission, Comparison, Difference),
    *(Bundled, Imported),
)

# Users get these from functions and other objects, and never make one.
OURS = {
    "CheckpointContext",
    "Checkpoint",
    "ClusterInfo",
    "ConfigErrors",
    "Context",
    "DeepSpeedTrialContext",
    "Experiment",
    "Job",
    "Model",
    "ModelVersion",
    "NodeInfo",
    "PreemptContext",
    "ProfilerContext",
    "PyTorchExperimentalContext",
    "PyTorchTrialContext",
    "RendezvousInfo",
    "ResourcePool",
    "SearcherContext",
    "SearchTrial",
    "SearcherOperation",
    "NodeSlots",
    "SlurmError",
    "State",
    "TrainContext",
    "Trial",
    "TrialInfo",
}


def problems(one: Documented) -> Iterator[str]:
    """What its docstring lacks, or has too much."""
    doc = one.doc
    if not doc.text.strip():
        yield "has no docstring"
    if strange := set(doc.sections) - set(SECTIONS):
        yield f"has sections of no known kind: {sorted(strange)}"
    names = {spelled(parameter): parameter for parameter in one.parameters}
    if inspect.isclass(one.subject) and issubclass(one.subject, Enum):
        members = list(one.subject.__members__)
        if [name for name in members if name not in doc.named] != list(doc.entries("Attributes")):
            yield f"has the members {members} and documents {list(doc.entries('Attributes'))}"
    own = {
        **doc.entries("Args"),
        **(doc.entries("Attributes") if inspect.isclass(one.subject) else {}),
    }
    referenced = one.referenced
    in_text = {
        **dict.fromkeys(one.common.named, one.common.text),
        **dict.fromkeys(referenced.named, referenced.text),
        **referenced.entries("Args"),
    }
    described = {**in_text, **dict.fromkeys(doc.named, doc.text), **own}
    in_order = [name for name in names if name in own] == [name for name in own if name in names]
    if not in_order or set(names) - set(described) or set(doc.entries("Args")) - set(names):
        yield f"takes {list(names)} and documents {list(described)}"
    for name, parameter in names.items():
        optional = parameter.default is not parameter.empty
        if optional and "default" not in described.get(name, "default").lower():
            yield f"does not give the default of {name}"
    if one.returns and not (doc.sections.keys() & {"Returns", "Yields"} or doc.says_result):
        yield "does not say what it returns"
    raises = doc.entries("Raises")
    described_errors = doc.named | one.common.named | referenced.named
    known = described_errors.union(raises, referenced.entries("Raises"))
    if missing := one.raised() - known:
        yield f"raises {sorted(missing)} without a word"
    if unknown := [name for name in raises if not is_exception(name)]:
        yield f"documents exceptions that users can't import: {unknown}"


def test_results_name_every_field() -> None:
    """What the SDK returns is documented field by field; of a base class, with the base."""
    for subject in RETURNED:
        doc = Docstring.of(inspect.getdoc(subject) or "")
        assert list(doc.entries("Attributes")) == list(subject.__annotations__), subject


def documented(module: str) -> Iterator[Documented]:
    yield from public(module, lambda subject: subject.__name__ in OURS)


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_name_every_argument_and_error(module: str) -> None:
    """Signatures and docstrings agree, argument by argument."""
    found = found_in(module)
    assert not found, "\n".join(found)


def found_in(module: str) -> list[str]:
    """All problems of what a module exports."""
    return [f"{one.name} {problem}" for one in documented(module) for problem in problems(one)]


@pytest.mark.parametrize("module", BESIDE)
@pytest.mark.nightly
def test_docstrings_of_callbacks_name_every_argument_and_error(
    module: str, request: pytest.FixtureRequest
) -> None:
    """The same of what frameworks call, in a process that has the framework."""
    paths = f"{request.getfixturevalue(BESIDE[module])}:{REPOSITORY}"
    env = {**os.environ, "PYTHONPATH": paths, "KERAS_BACKEND": "torch"}
    show = f"from {__name__} import found_in; print(*found_in({module!r}), sep='\\n', end='')"
    argv = [sys.executable, "-W", "ignore", "-c", show]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, done.stdout


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, with a store and a queue of one's own."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("DETSLURM_SITE", "")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
        # Known to monkeypatch, what an example leaves is undone: later tests would be ranks.
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    queue = Queue("local")
    monkeypatch.setattr("detslurm.slurm.detect.detect_cluster", lambda *_, **__: queue)
    return tmp_path


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example works as it stands, by hand and in an empty directory."""
    examples = {one.name: code for one in documented(module) if (code := one.doc.example())}
    # Another test of this process may have imported its own.
    monkeypatch.delitem(sys.modules, "model_def", raising=False)
    once = {code: name for name, code in examples.items()}  # a subclass has them, too
    for number, (code, name) in enumerate(once.items()):
        folder = work / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        exec(compile(code, name, "exec"), {"__name__": "example"})
    assert {f"{module}.{name}" for name in STARTS.get(module, ())} <= set(examples)


@pytest.mark.parametrize(
    "subject", [Client, Experiment, Trial, Checkpoint, Model, ModelVersion, Job]
)
def test_the_page_about_the_client_names_what_its_objects_have(subject: type) -> None:
    """Everything that Tab shows after one."""
    page = (REPOSITORY / "docs" / "sdk.md").read_text()
    own = Docstring.of(inspect.getdoc(subject) or "").entries("Attributes")
    names = {*own, *(name for name in dir(subject) if not name.startswith("_"))}
    assert not {name for name in names if not re.search(rf"\b{name}\b", page)}


def test_the_page_about_the_client_runs(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks of Python, one after the other."""
    (work / "here").mkdir()
    monkeypatch.chdir(work / "here")
    names: dict[str, object] = {}
    for block in blocks(REPOSITORY / "docs" / "sdk.md"):
        exec(compile(block.text, "docs/sdk.md", "exec"), names)
    assert {"curve", "experiment"} <= names.keys()
