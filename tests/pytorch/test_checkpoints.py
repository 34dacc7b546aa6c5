"""Checkpoint directories: their files, other trials' and older ones, what is refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from detslurm import errors, pytorch
from detslurm.pytorch import Batch
from detslurm.pytorch._rng import rng_state
from detslurm.pytorch.checkpointing._code import _modules_below
from detslurm.pytorch.checkpointing._load import _importing
from detslurm.sdk import Client
from detslurm.store import Store, fold_trial
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, same, weights

Load = pytorch.load_trial_from_checkpoint_path

OLD_DEF = """
import torch
from determined.pytorch import DataLoader, PyTorchTrial

class Old(PyTorchTrial):
    def __init__(self, context):
        self.context = context
    def build_training_data_loader(self):
        return DataLoader([1], 1)
    def build_validation_data_loader(self):
        return DataLoader([1], 1)
    def build_model(self):
        return torch.nn.Linear(self.context.get_hparam("width"), 2)
    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)
    def train_batch(self, batch, model, epoch_idx, batch_idx):
        return {"loss": model(batch).sum()}
    def evaluate_batch(self, batch, model):
        return {"loss": 0.0}
"""


def saved(root: Path, kind: type[Regression] = Regression, number: int = 1) -> tuple[Any, Path]:
    """A trial that was trained by hand, and the directory of its checkpoint."""
    trial = fit(kind, max_length=Batch(5))
    (checkpoint,) = fold_trial(Store(root).experiment(number).trial(number)).checkpoints
    return trial, root / "checkpoints" / checkpoint.uuid


def test_the_files_are_those_of_determined(root: Path) -> None:
    """By name and content; all of them load without running code."""
    _, folder = saved(root)
    assert {p.name for p in folder.iterdir()} == {
        "code", "detslurm.json", "load_data.json", "metadata.json", "state_dict.pth",
        "trial_state.pkl",
    }  # fmt: skip
    state = torch.load(folder / "state_dict.pth", weights_only=True)
    assert state.keys() == {
        "models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict", "callbacks",
        "rng_state",
    }  # fmt: skip
    assert {"cpu_rng_state", "np_rng_state", "random_rng_state"} <= state["rng_state"].keys()
    counters = pickle.loads((folder / "trial_state.pkl").read_bytes())
    assert counters == {  # Determined refuses others
        "trial_id": 0, "last_ckpt": 5, "step_id": 0, "last_val": 5, "batches_trained": 5,
        "epochs_trained": 0,
    }  # fmt: skip
    load_data = json.loads((folder / "load_data.json").read_text())
    assert load_data["trial_type"] == "PyTorchTrial"
    assert load_data["trial_cls_spec"] == "tests.pytorch.trials:Regression"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (metadata["steps_completed"], metadata["format"]) == (5, "pickle")
    assert metadata["framework"] == f"torch-{torch.__version__}"
    assert (folder / "code" / "tests" / "pytorch" / "trials.py").exists()


def test_modules_in_use_are_found_however_their_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCRATCH ends in a slash, say; those of an environment below the code are not meant."""
    monkeypatch.chdir(tmp_path)
    names = ["a.py", ".//b.py", f"{tmp_path}//c.py", f"{tmp_path}/./d.py", f"{tmp_path}/e.py"]
    apart = [f"{tmp_path}/.venv/lib/site-packages/f.py", f"{tmp_path}-other/g.py"]
    for number, name in enumerate([*names, *apart]):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
        module = ModuleType(f"in_use_{number}")
        module.__file__ = name
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert sorted(path.name for path in _modules_below(tmp_path)) == [
        "a.py", "b.py", "c.py", "d.py", "e.py",
    ]  # fmt: skip


def test_the_order_of_data_goes_on_whatever_was_seeded(root: Path) -> None:
    """By hand every start may seed otherwise: the checkpoint has the seed of the order."""

    class Reseeded(Regression):
        def build_training_data_loader(self) -> pytorch.DataLoader:
            torch.manual_seed(99)
            return super().build_training_data_loader()

    first, folder = saved(root)
    second = fit(Reseeded, max_length=Batch(14), latest_checkpoint=str(folder))
    assert first.seen + second.seen == fit(max_length=Batch(14)).seen
    assert first.seen != fit(Reseeded, max_length=Batch(5)).seen


class TestLoading:
    """load_trial_from_checkpoint_path."""

    def test_a_class_that_is_given(self, root: Path) -> None:
        """The trial has the weights, and what it asks of its context does no harm without a job."""

        class Asking(Regression):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                torch.manual_seed(context.get_trial_seed())
                context.set_profiler()
                self.writer = context.get_tensorboard_writer()

        trial, folder = saved(root)
        loaded: Any = Load(str(folder), trial_class=Asking)
        assert same(weights(loaded), weights(trial))
        assert Path(loaded.writer.log_dir) == loaded.context.get_tensorboard_path()

    def test_the_class_comes_with_the_checkpoint(self, tmp_path: Path) -> None:
        """In another process, far from the code; keyword arguments reach the constructor."""
        project = tmp_path / "project"
        project.mkdir()
        (project / "layers.py").write_text(
            "import torch, installed\ndef net(): return torch.nn.Linear(2, 1)"
        )
        environment = project / ".local" / "site-packages"
        environment.mkdir(parents=True)
        (environment / "installed.py").touch()
        (project / "unused.bin").write_text("large")
        (project / "dangling").symlink_to("nowhere")
        (project / "model_def.py").write_text(MODEL_DEF)
        (project / "train.py").write_text(TRAIN)
        places = {"DETSLURM_ROOT": str(tmp_path / "store"), "PYTHONPATH": str(environment)}
        env = os.environ | places
        python(project, env, "train.py")
        (folder,) = (tmp_path / "store" / "checkpoints").iterdir()
        code = {p.name for p in (folder / "code").iterdir()}
        assert code == {"layers.py", "model_def.py", "train.py"}
        assert not list((tmp_path / "store").rglob("unused.bin"))
        (one,) = Client(tmp_path / "store").experiment(1).checkpoints()
        assert one.verify() is None
        for path in (folder, folder.relative_to(tmp_path)):
            script = (
                "import sys\nfrom detslurm import pytorch\n"
                f"t = pytorch.load_trial_from_checkpoint_path({str(path)!r}, "
                "trial_kwargs={'a': 5})"
                "\nassert 'layers' not in sys.modules\nprint(t.a, t.width, t.net.weight.tolist())"
            )
            assert python(tmp_path, env, "-c", script) == "5 3 [[0.5, 0.5]]\n"
        assert one.verify() is None  # no bytecode is left in it

    def test_what_python_has_in_itself_goes_before_its_code(self, tmp_path: Path) -> None:
        """As it did in the training."""
        (tmp_path / "stat.py").write_text("raise ImportError")
        with _importing(tmp_path):
            import stat
        assert stat.S_IFREG

    def test_a_trial_with_build_model(self, tmp_path: Path) -> None:
        """Determined 0.13 made model and optimizer by methods, and had one of each; of such a
        checkpoint it gives the model."""
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "old_def.py").write_text(OLD_DEF)
        weights = nn.Linear(3, 2).state_dict()
        torch.save(
            {"model_state_dict": weights, "optimizer_state_dict": {}}, tmp_path / "checkpoint.pt"
        )
        config = {"entrypoint": "old_def:Old", "hyperparameters": {"width": 3}}
        metadata = {"experiment_config": config, "hparams": {"width": 3}}
        (tmp_path / "metadata.json").write_text(json.dumps(metadata))
        model: Any = Load(str(tmp_path))
        assert isinstance(model, nn.Linear) and torch.equal(model.weight, weights["weight"])

    def test_refusals(self, root: Path) -> None:
        """Each says what to do."""
        _, folder = saved(root)
        with pytest.raises(FileNotFoundError, match="STORE/checkpoints/UUID"):
            Load(str(folder / "nowhere"))
        with pytest.raises(ValueError, match="not both"):
            Load(str(folder), torch_load_kwargs={"a": 1}, map_location="cpu")
        load_data = folder / "load_data.json"
        for change, said in (
            ({"trial_cls_spec": "__main__:T"}, "can't be imported: pass trial_class="),
            ({"trial_cls_spec": None}, "does not name its trial's class"),
            ({"trial_cls_spec": "json:JSONDecoder"}, "is not a detslurm.pytorch.PyTorchTrial"),
            ({"trial_type": "KerasTrial"}, "is a checkpoint of a KerasTrial"),
        ):
            old = load_data.read_text()
            load_data.write_text(json.dumps(json.loads(old) | change))
            with pytest.raises(ValueError, match=said):
                Load(str(folder))
            load_data.write_text(old)
        with pytest.raises(FileNotFoundError, match=r"no state_dict\.pth"):
            Load(str(root), trial_class=Regression)

    def test_arguments_for_torch(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        """They reach torch.load; the old way to give them works with a warning."""
        _, folder = saved(root)
        Load(str(folder), Regression, torch_load_kwargs={"weights_only": True, "mmap": True})
        Load(str(folder), Regression, map_location="cpu")
        assert "deprecated" in caplog.text


def python(folder: Path, env: dict[str, str], *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, *argv], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MODEL_DEF = """
import torch
from detslurm import pytorch
import layers

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context, a=0):
        self.a, self.width = a, context.get_hparam("width")
        self.net = context.wrap_model(layers.net())
        torch.nn.init.constant_(self.net.weight, 0.5)
        context.wrap_optimizer(torch.optim.SGD(self.net.parameters(), 0.0))
    def train_batch(self, batch, epoch_idx, batch_idx):
        return {}
    def evaluate_batch(self, batch):
        return {"x": 1}
    def build_training_data_loader(self):
        return pytorch.DataLoader(list(range(4)))
    build_validation_data_loader = build_training_data_loader
"""

TRAIN = """
from detslurm import pytorch
from model_def import Trial
with pytorch.init(hparams={"width": 3}) as context:
    pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Batch(2))
"""


class TestOthers:
    """Checkpoints that this trial did not write."""

    def test_another_trial_starts_warm(self, managed: Managed, root: Path) -> None:
        """Weights, optimizer and random numbers are taken over, counters begin at 0."""
        managed.config["searcher"]["max_length"] = {"batches": 4}
        old = in_job(managed)
        latest = managed.view().latest_checkpoint
        assert latest is not None
        other = Managed(root, managed._patch, managed.config)
        seen = []

        class Curious(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                seen.append((batch_idx, weights(self)))
                return super().train_batch(batch, epoch_idx, batch_idx)

        trial = in_job(other, Curious, latest_checkpoint=latest.uuid)
        assert [batch_idx for batch_idx, _ in seen] == [0, 1, 2, 3]
        assert same(seen[0][1], weights(old))
        assert next(iter(trial.optimizer.state.values()))["step"] == 8

    @pytest.mark.parametrize("layout", ["", "determined", "pedl"])
    def test_checkpoints_of_determined(self, root: Path, layout: str) -> None:
        """Numpy's random state as an array, DDP's prefixes, older folders and counters."""
        trial, folder = saved(root)
        state = torch.load(folder / "state_dict.pth", weights_only=True)
        name, keys, *rest = state["rng_state"]["np_rng_state"]
        array = np.asarray(keys).astype(np.uint32)
        state["rng_state"]["np_rng_state"] = (name, array, *rest)
        state["models_state_dict"] = [
            {f"module.{name}": value for name, value in state["models_state_dict"][0].items()}
        ]
        old = root / "old" / layout
        old.mkdir(parents=True)
        torch.save(state, old / "state_dict.pth")
        counters = {"trial_id": 9, "last_ckpt": 5, "step_id": 1, "last_val": 5}
        counters |= {"latest_batch": 5} if layout else {"batches_trained": 5, "epochs_trained": 0}
        file = "workload_sequencer.pkl" if layout else "trial_state.pkl"
        (old / file).write_bytes(pickle.dumps(counters))
        going_on = fit(max_length=Batch(7), latest_checkpoint=str(root / "old"))
        assert len(going_on.losses) == 2
        expected = fit(max_length=Batch(7), latest_checkpoint=str(folder))
        assert same(weights(going_on), weights(expected))
        loaded: Any = Load(str(root / "old"), trial_class=Regression)
        assert same(weights(loaded), weights(trial))

    def test_the_first_checkpoints_of_determined(
        self, root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One model and one optimizer by other names, no random numbers, no counters."""
        _, folder = saved(root)
        state = torch.load(folder / "state_dict.pth", weights_only=True)
        old = root / "old"
        old.mkdir()
        first = {
            "model_state_dict": state["models_state_dict"][0],
            "optimizer_state_dict": state["optimizers_state_dict"][0],
            "lr_scheduler": state["lr_schedulers_state_dict"][0],
        }
        torch.save(first, old / "checkpoint.pt")
        (old / "metadata.json").write_text(json.dumps({"steps_completed": 5}))
        assert len(fit(max_length=Batch(7), latest_checkpoint=str(old)).losses) == 2
        assert "no state of random numbers" in caplog.text

    def test_what_does_not_fit(self, root: Path) -> None:
        """Other numbers of models, or other layers; a directory that is not there."""
        _, folder = saved(root)

        class Two(Regression):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                context.wrap_model(nn.Linear(1, 1))

        class Other(Regression):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                context.models[0] = nn.Linear(8, 1)

        with pytest.raises(errors.InvalidExperimentException, match="1 models, this trial wraps 2"):
            fit(Two, max_length=Batch(6), latest_checkpoint=str(folder))
        with pytest.raises(RuntimeError, match="Missing key"):
            fit(Other, max_length=Batch(6), latest_checkpoint=str(folder))
        gone = str(folder / "gone")
        with pytest.raises(errors.CheckpointNotFound, match=f"there is no directory {gone}"):
            fit(max_length=Batch(6), latest_checkpoint=gone)


class Thing:
    """An object of the user's own."""


def test_objects_are_unpickled_with_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback may keep what it likes; reading that runs code, and the log says so. What others
    can write is not read so unless asked for."""

    class Keeper(pytorch.PyTorchCallback):
        loaded: Any = None

        def state_dict(self) -> dict[str, Any]:
            return {"thing": Thing()}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            Keeper.loaded = state_dict["thing"]

    class Trial(Regression):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"keeper": Keeper()}

    _, folder = saved(root, Trial)
    fit(Trial, max_length=Batch(6), latest_checkpoint=str(folder))
    assert isinstance(Keeper.loaded, Thing)
    assert "read by pickle, which runs code" in caplog.text

    Keeper.loaded = None
    monkeypatch.setattr(
        "detslurm.pytorch.checkpointing._checkpoint_dir.others_can_change", lambda _: True
    )
    with pytest.raises(pickle.UnpicklingError, match="others can write it: pickle would run code"):
        fit(Trial, max_length=Batch(6), latest_checkpoint=str(folder))
    assert Keeper.loaded is None
    Load(str(folder), Trial, torch_load_kwargs={"weights_only": False})


def test_counters_are_never_unpickled_unsafely(root: Path) -> None:
    """A trial_state.pkl that would run something is refused."""
    _, folder = saved(root)

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("touch evil",)

    (folder / "trial_state.pkl").write_bytes(pickle.dumps({"a": Evil()}))
    with pytest.raises(pickle.UnpicklingError, match="plain data"):
        fit(max_length=Batch(6), latest_checkpoint=str(folder))
    assert not Path("evil").exists()


def test_random_states_survive(root: Path) -> None:
    """Of Python, numpy and torch, normal deviates in waiting included."""
    import random

    from detslurm.pytorch._rng import set_rng_state

    np.random.randn()  # leaves a second deviate for the next call
    random.gauss(0, 1)
    state = rng_state()

    def draw() -> list[float]:
        return [random.gauss(0, 1), float(np.random.randn()), torch.rand(1).item()]

    first = draw()
    set_rng_state(state)
    assert draw() == first
