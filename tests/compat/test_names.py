"""Public names of Determined's that other tests don't use, under its own name."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import detslurm as det
from detslurm import errors
from detslurm._base.process import Identity
from detslurm.store import Store, TrialDir, fold_experiment, fold_trial, trial_metrics
from tests.compat.test_import import said
from tests.store.listing import rows_of


def test_the_names_are_there(tmp_path: Path) -> None:
    """As code written for Determined imports them."""
    code = """
import determined as det
from determined.errors import (CheckpointNotFound, CheckpointStateException, EnterpriseOnlyError,
    InternalException, InvalidCheckpointException, InvalidConfigurationException,
    InvalidDataTypeException, InvalidExperimentException, InvalidModelException,
    MultipleDownloadsFailed, NoDirectStorageAccess, ProxiedDownloadFailed, SkipWorkloadException,
    StopLoadingImplementation, WorkerError, WorkerFinishedGracefully)
from determined.searcher import LocalSearchRunner, RemoteSearchRunner, SearchRunner
from determined.experimental import client, core_v2, Client
assert det.errors.InternalException is InternalException
assert issubclass(LocalSearchRunner, SearchRunner) and issubclass(RemoteSearchRunner, SearchRunner)
assert det.experimental.core_v2 is core_v2
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from determined.experimental import Experiment, ExperimentReference, Trial, TrialReference
assert ExperimentReference is Experiment and TrialReference is Trial
assert {w.category for w in told} == {FutureWarning} and "called Trial now" in str(told[-1].message)
import determined.experimental.core_v2
from determined import tensorboard
from determined.tensorboard.metric_writers.pytorch import TorchWriter
assert tensorboard.metric_writers.pytorch.TorchWriter is TorchWriter
import detslurm.sdk
assert client.Client is Client is detslurm.sdk.Client
info = det.TrialInfo(1, 2, 3, {"a": 1}, {"b": 2}, 4, 5, False, "eth0")
assert (info._config, info._steps_completed, info._trial_run_id) == ({"b": 2}, 4, 5)
assert det.TrialInfo(trial_id=1, experiment_id=2, trial_seed=3, hparams={}, config={},
    steps_completed=4, trial_run_id=5, debug=True, inter_node_network_interface=None)._debug
info = det.ClusterInfo("m", "c", "a", [0], "t", "r", "s", "TRIAL", None, None, "uuid", info,
    det.RendezvousInfo(["a"], 0, [1]), det.ResourcesInfo(["gpu"]))
assert (info.latest_checkpoint, info.user_data, info.container_rank) == ("uuid", {}, 0)
assert info.gpu_uuids == ["gpu"] and info.trial.trial_id == 1
with det.import_from_path("."):
    pass
"""
    said(code, tmp_path)
    assert issubclass(errors.InvalidModelException, errors.InvalidExperimentException)
    for error in (
        errors.InvalidConfigurationException({"a": 1}, "wrong"),
        errors.InvalidDataTypeException(int, "wrong"),
    ):
        assert str(error).startswith("wrong") and str(pickle.loads(pickle.dumps(error))) == str(
            error
        )


def test_the_package_is_the_command(tmp_path: Path) -> None:
    """`python -m detslurm` is `detslurm`."""
    done = subprocess.run(
        [sys.executable, "-m", "detslurm", "--version"], capture_output=True, text=True
    )
    assert det.__version__ in done.stdout


class TestImportFromPath:
    """Code of a checkpoint, beside a working directory with modules of the same names."""

    def test_what_is_found(self, tmp_path: Path) -> None:
        """The path's modules, packages too, not those of the working directory; no traces."""
        here, there = tmp_path / "here", tmp_path / "there"
        for place in (here, there):
            (place / "pack").mkdir(parents=True)
            (place / "pack" / "__init__.py").write_text("")
            (place / "pack" / "sub.py").write_text(f"where = {place.name!r}")
            (place / "plain").mkdir()
            (place / "plain" / "inner.py").write_text("")
            (place / "mod.py").write_text(
                f"import plain.inner\nfrom pack import sub\nwhere = {place.name!r}"
            )
        (here / "only_here.py").write_text("")
        (there / "xmlrpc").mkdir()  # of logs or data, say: it is no package
        code = f"""
import sys
import mod
import determined as det
path, known = list(sys.path), list(sys.meta_path)
with det.import_from_path({str(there)!r}):
    import mod as other
    assert (other.where, other.sub.where) == ("there", "there")
    import xmlrpc.client
    try:
        import only_here
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError
assert sys.modules["mod"] is mod and mod.where == mod.sub.where == "here"
assert (sys.path, sys.meta_path) == (path, known)
import pack.sub
assert pack.sub.where == "here"
"""
        said(code, here)
        assert not list(there.rglob("__pycache__"))

    def test_one_at_a_time(self, tmp_path: Path) -> None:
        """Neither nested nor in two threads; after an error it can be used again."""
        refused = []

        def enter() -> None:
            with pytest.raises(RuntimeError, match="two threads"), det.import_from_path(tmp_path):
                pass
            refused.append(True)

        with pytest.raises(KeyError), det.import_from_path(tmp_path):
            thread = threading.Thread(target=enter)
            thread.start()
            thread.join()
            enter()
            raise KeyError
        assert refused == [True, True]
        with det.import_from_path(tmp_path):
            pass


class TestCoreV2:
    """The Core API without a block, outside of jobs."""

    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
        return tmp_path / "store"

    def test_what_is_said_of_the_experiment(self, root: Path, tmp_path: Path) -> None:
        """Name, labels, hyperparameters and metric are recorded; what is not closed is closed."""
        code = """
from determined.experimental import core_v2
for lr in (0.1, 0.2):
    core_v2.init(config=core_v2.Config(
        name="mine", labels=["a"], hparams={"lr": lr}, data={"d": 1},
        workspace="vision", project="digits",
        searcher={"name": "single", "metric": "acc", "smaller_is_better": False}))
    assert core_v2.info.trial.hparams == {"lr": lr} and core_v2.info.user_data == {"d": 1}
    core_v2.train.report_validation_metrics(steps_completed=1, metrics={"acc": lr})
    assert not core_v2.preempt.should_preempt()
    print(core_v2.url_reverse_webui_exp_view())
"""
        shown = said(code, tmp_path, DETSLURM_ROOT=str(root))
        assert shown.split() == [f"file://{root}/experiments/{number}" for number in (1, 2)]
        for number, lr in ((1, 0.1), (2, 0.2)):
            view = fold_experiment(Store(root).experiment(number))
            assert (view.name, view.labels, view.state) == ("mine", ("a",), "COMPLETED")
            assert (view.workspace, view.project) == ("vision", "digits")
            assert (view.best_value, view.trials[0].hparams) == (lr, {"lr": lr})

    def test_names_of_the_users_own(self, root: Path) -> None:
        """A second script adds a trial, or goes on with the one it names, from its checkpoint."""
        from detslurm.experimental import core_v2

        def named(trial: str | None) -> core_v2.UnmanagedConfig:
            return core_v2.UnmanagedConfig(
                workspace="vision", project="digits",
                external_experiment_id="e", external_trial_id=trial,
            )  # fmt: skip

        with pytest.raises(KeyError), core_v2.init_context(unmanaged=named("t")) as context:
            context.train.report_training_metrics(1, {"loss": 0.5})
            with context.checkpoint.store_path({"steps_completed": 1}) as (_, uuid):
                pass
            raise KeyError
        with core_v2.init_context(unmanaged=named("u")):
            pass
        core_v2.init(unmanaged=named("t"))
        info = core_v2.info
        assert (info.latest_checkpoint, info.trial._trial_run_id) == (uuid, 2)
        core_v2.train.report_training_metrics(2, {"loss": 0.4})
        core_v2.close()
        with pytest.raises(RuntimeError, match="between"):
            _ = core_v2.train
        experiment = Store(root).experiment(1)
        view = fold_experiment(experiment)
        assert [trial.state for trial in view.trials] == ["COMPLETED", "COMPLETED"]
        assert (view.workspace, view.project) == ("vision", "digits")
        assert [row.steps for row in trial_metrics(experiment.trial(1))] == [1, 2]
        start = experiment.trial(1).start(2)
        assert start is not None
        assert Identity.parse(start.process) == Identity.own()
        experiment.append({"type": "intent", "intent": "kill"})
        for name in ("t", "a new one", None):
            core_v2.init(unmanaged=named(name))  # a warning says that nothing is recorded
            core_v2.close()
        assert fold_trial(experiment.trial(1)).run_count == 2
        assert len(fold_experiment(experiment).trials) == 2
        with pytest.raises(ValueError, match="external_experiment_id"):
            core_v2.init(config=core_v2.Config(external_trial_id="t"))
        with pytest.raises(ValueError, match="replaces"):
            core_v2.init(config=core_v2.Config(), defaults=core_v2.DefaultConfig(name="n"))


@pytest.mark.parametrize("step", ["_new_experiment", "_another_trial"])
def test_what_a_slower_script_made_in_vain_stays_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Several scripts begin at once with one name: no experiment, no trial waits for ever."""
    from detslurm.core import _unmanaged_trial
    from detslurm.core._unmanaged_info import UnmanagedInfo

    store = Store.open(tmp_path / "root")

    def place(trial: str) -> TrialDir:
        unmanaged_info = UnmanagedInfo(external_experiment_id="e", external_trial_id=trial)
        return _unmanaged_trial.unmanaged_trial(store, unmanaged_info, {"type": "shared_fs"})[0]

    real = getattr(_unmanaged_trial, step)
    ours: list[TrialDir] = []

    def slow(*args: object) -> object:
        monkeypatch.setattr(_unmanaged_trial, step, real)
        ours.append(place("b"))  # another script, from its beginning to its end
        return real(*args)

    if step == "_another_trial":
        ours.append(place("a"))
    monkeypatch.setattr(_unmanaged_trial, step, slow)
    assert place("b").id == ours[-1].id
    for trial in ours:
        trial.write_end(trial.open_run({}).run, {"outcome": "completed"})
    first = fold_experiment(store.experiment(1))
    assert first.state == "COMPLETED" or first.trial_states == {"COMPLETED": 2, "CANCELED": 1}
    assert [row.id for row in rows_of(store)] == [1]
