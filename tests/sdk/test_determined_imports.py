"""Imports of Determined's names are checked before an experiment is queued."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.sdk.submission import modules
from detslurm.sdk.submission.determined_imports import missing_imports
from detslurm.sdk.submission.entrypoint import check_entrypoint

CODE = """
import determined as det
import determined.estimator
from determined import core, pytorch, InvalidHP, ExperimentConfig
from determined.common.api import bindings
from determined.core import DistributedContext, PreemptMode
from determined.errors import CheckpointNotFound
from determined.experimental import client, Determined, ModelOrderBy
from determined.experimental.client import create_experiment, Checkpoint
from determined.keras import TFKerasTrial
from determined.pytorch import PyTorchTrial, DataLoader, deepspeed, PyTorchTrail, samplers
from determined.pytorch.deepspeed import DeepSpeedTrial, ModelParallelUnit
from determined.tensorboard.metric_writers.pytorch import TorchWriter
from determined.transformers import DetCallback
try:
    from determined.util import anything
except ImportError:
    pass

def later():
    from determined.exec import prep
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A script with imports of all kinds."""
    (tmp_path / "train.py").write_text(CODE)
    return tmp_path / "train.py"


def test_what_is_missing_and_what_takes_its_place(code: Path) -> None:
    """Imports whose failure is handled are left out; no import of these costs torch."""
    done = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}({str(code)!r})"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "determined.estimator: use determined.core True",
        "determined.ExperimentConfig: use determined.get_cluster_info().trial._config True",
        "determined.common.api: use determined.experimental.client True",
        "determined.keras.TFKerasTrial: use determined.keras.DeterminedCallback True",
        "determined.pytorch.PyTorchTrail: did you mean determined.pytorch.PyTorchTrial? True",
        "determined.exec: use determined.launch False",
        "[]",
    ]


PROGRAM = """
import sys
from pathlib import Path
from detslurm.sdk.submission.determined_imports import missing_imports

def show(file):
    for name, instead, certain in (one[1:] for one in missing_imports(Path(file))):
        print(f"{name}: {instead} {certain}")
    print([heavy for heavy in ("torch", "numpy") if heavy in sys.modules])
show"""


def test_submission_names_them(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails at the start is refused, what may fail later is a warning."""
    monkeypatch.setattr(modules, "has_determined", lambda: False)
    python = f"{sys.executable} train.py"
    found = check_entrypoint(python, {"train.py": code}, prepared=False)
    assert len(found.problems) + len(found.warnings) == len(missing_imports(code)) == 6
    assert any(
        "train.py, line 5: detslurm has no determined.common.api" in problem
        for problem in [*found.problems, *found.warnings]
    )
    monkeypatch.setattr(modules, "has_determined", lambda: True)
    found = check_entrypoint(python, {"train.py": code}, prepared=False)
    assert not found.problems and not found.warnings
