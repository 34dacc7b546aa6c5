"""Checkpoints that Determined itself has written; peer/checkpoints/make.py makes them again."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detslurm import pytorch
from tests.pytorch.managed import Managed

MADE = Path(__file__).with_name("peer") / "checkpoints"
VERSIONS = sorted(path.name for path in MADE.iterdir() if (path / "state_dict.pth").exists())
UUID = "11111111-2222-4333-8444-555555555555"


def checkpoint(version: str, storage: Path) -> tuple[Path, dict[str, Any]]:
    """A checkpoint in a storage, and what was in the trial when Determined wrote it."""
    folder = storage / UUID
    shutil.copytree(MADE / version, folder)
    shutil.copytree(MADE / "code", folder / "code")
    return folder, json.loads((MADE / f"{version}.json").read_text())


def numbers(tensors: Any) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_trial_starts_from_it(version: str, managed: Managed, root: Path) -> None:
    """Another trial's: weights, optimizer, scheduler, callbacks, random numbers; counts from 0."""
    folder, expected = checkpoint(version, root / "checkpoints")
    trained: Any = pytorch.load_trial_from_checkpoint_path(str(folder))
    assert trained.model.linear.weight.tolist() == expected["weight"]
    managed.config["searcher"] = {
        "name": "single", "metric": "validation_loss", "max_length": {"batches": 2},
    }  # fmt: skip
    seen: dict[str, Any] = {}

    class Trial(type(trained)):  # type: ignore[misc]
        def build_callbacks(self) -> dict[str, Any]:
            return {**super().build_callbacks(), "look": Look(self)}

    class Look(pytorch.PyTorchCallback):
        def __init__(self, trial: Any) -> None:
            self.trial = trial

        def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
            seen["first"], seen["uuid"] = first_batch_idx, checkpoint_uuid

        def on_training_start(self) -> None:
            trial = self.trial
            state = trial.optimizer.state.values()
            seen["weight"] = trial.model.linear.weight.tolist()
            seen["momentum"] = numbers(buffers["momentum_buffer"] for buffers in state)
            seen["lr"] = trial.optimizer.param_groups[0]["lr"]
            seen["scheduler"] = trial.scheduler.get_last_lr()[0]
            seen["validations"] = trial.counter.validations
            seen["random"] = [random.random(), np.random.rand(), torch.rand(1).item()]

    with managed.run(), pytorch.init() as context:
        pytorch.Trainer(Trial(context), context).fit(latest_checkpoint=UUID)
    assert (seen.pop("first"), seen.pop("uuid")) == (0, UUID)
    assert seen.pop("scheduler") == expected["lr"]
    assert seen == {name: expected[name] for name in seen}
    assert managed.checkpoints() == [2]


def test_counters_are_read(root: Path) -> None:
    """By hand, where all trials have the number 0 as with Determined, training goes on."""
    storage = root / "checkpoints"
    folder, _ = checkpoint("0.21.2", storage)
    kind = type(pytorch.load_trial_from_checkpoint_path(str(folder)))
    seen: list[int] = []

    class Trial(kind):  # type: ignore[misc,valid-type]
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            seen.append(batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytorch.init() as context:
        pytorch.Trainer(Trial(context), context).fit(
            max_length=pytorch.Batch(5), latest_checkpoint=str(folder)
        )
    assert seen == [3, 4]


LOAD = """
import sys
sys.path[:0] = {path!r}
from detslurm import pytorch
{before}
trial = pytorch.load_trial_from_checkpoint_path({folder!r})
assert isinstance(trial, pytorch.PyTorchTrial)
from determined import who
print(trial.model.linear.weight.tolist(), who)
"""


def test_a_real_determined_is_no_hindrance(tmp_path: Path) -> None:
    """The checkpoint's `import determined` gives detslurm, which loads it; others get theirs."""
    folder, expected = checkpoint("0.38.1", tmp_path)
    package = tmp_path / "site" / "determined"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("who = 'the real one'")
    (package / "pytorch.py").write_text("class PyTorchTrial: pass")
    for before in ("", "from determined import pytorch as theirs"):
        script = LOAD.format(path=[str(tmp_path / "site")], before=before, folder=str(folder))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stdout == f"{expected['weight']} the real one\n", done.stderr


def test_what_can_not_be_loaded(tmp_path: Path) -> None:
    """Each refusal says what to do."""
    load: Any = pytorch.load_trial_from_checkpoint_path
    folder, _ = checkpoint("0.38.1", tmp_path)
    (folder / "code" / "model_def.py").write_text("import no_such_library")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load(str(folder))
    (folder / "code" / "model_def.py").write_text("")
    with pytest.raises(ValueError, match=r"model_def:Small is not in .*code: pass trial_class="):
        load(str(folder))
    shutil.rmtree(folder / "code")
    with pytest.raises(ValueError, match=r"model_def:Small is not in .*code: pass trial_class="):
        load(str(folder))
    with pytest.raises(ValueError, match=r"Theirs is not a detslurm.pytorch.PyTorchTrial"):
        load(str(folder), trial_class=type("Theirs", (), {}))
