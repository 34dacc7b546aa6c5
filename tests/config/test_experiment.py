"""The resolved configuration: what is read, what is filled in, what can't be changed."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detslurm.config import ConfigErrors, ExperimentConfig, SiteProfile, load_experiment
from detslurm.config.schema.hyperparameters import Const, Double, Hyperparameters, Int, Log
from detslurm.config.schema.searcher import AdaptiveASHA, Single
from detslurm.config.schema.storage import SharedFS
from tests.config.full import FULL

MINIMAL = {"entrypoint": "python3 t.py", "searcher": {"name": "single", "metric": "m"}}


def load(source: Any = None, **options: Any) -> ExperimentConfig:
    site = options.pop("site", SiteProfile(root="/store"))
    return load_experiment(MINIMAL | (source or {}), site=site, **options).config


@pytest.fixture
def full(tmp_path: Path) -> ExperimentConfig:
    path = tmp_path / "experiment.yaml"
    path.write_text(FULL)
    return load_experiment(path).config


def test_everything_is_read(full: ExperimentConfig) -> None:
    """Each section of a full configuration has its type and its values."""
    assert full.entrypoint == ("python3", "train.py", "--flag")
    assert isinstance(full.searcher, AdaptiveASHA)
    assert (full.searcher.time_metric, full.searcher.max_time) == ("epochs", 9)
    assert full.searcher.bracket_rungs == (2, 3)
    assert full.hyperparameters["lr"] == Log(minval=-5, maxval=-1.5, base=10, count=3)
    assert full.hyperparameters["layers"] == Const(val=(1, 2, {"a": "b"}))
    assert full.hyperparameters["empty"] == Hyperparameters()
    assert full.hyperparameters["optimizer"]["beta"] == Double(minval=0.8, maxval=0.99)
    assert full.environment.environment_variables.of("cuda") == {
        "G": "1",
        "API_KEY": "a=b\nc",
        "B": "'x'",
    }
    assert full.environment.image.cuda == "b"
    assert full.slurm.time == "0-04:00:00"
    assert full.slurm.time_seconds == 4 * 3600
    assert full.min_validation_period.epochs == 1


def test_policies_merge_with_the_defaults_and_can_be_disabled(full: ExperimentConfig) -> None:
    """A policy without pattern removes the default of that name; old actions are read."""
    assert [(p.name, p.action) for p in full.log_policies] == [
        ("oom", "cancel_retries"),
        ("node", "exclude_node"),
        ("ECC Error", None),
    ]
    assert [policy.name for policy in load().log_policies] == ["CUDA OOM", "ECC Error"]


def test_every_default_is_as_documented() -> None:
    """What the user leaves out has the documented value."""
    config = load({"name": "n", "reproducibility": {"experiment_seed": 1}}).to_dict()
    expected = {
        "max_restarts": 5,
        "checkpoint_policy": "best",
        "min_validation_period": {"batches": 0},
        "min_checkpoint_period": {"batches": 0},
        "perform_initial_validation": False,
        "records_per_epoch": 0,
        "scheduling_unit": 100,
        "preemption_timeout": None,
        "labels": [],
        "data": {},
        "hyperparameters": {},
        "workspace": "",
        "project": "",
        "description": None,
        "debug": False,
    }
    assert {key: config[key] for key in expected} == expected
    assert config["resources"]["slots_per_trial"] == 1
    assert config["resources"]["weight"] == 1
    assert config["optimizations"]["tensor_fusion_threshold"] == 64
    assert config["profiling"]["sync_timings"] is True
    assert config["checkpoint_storage"]["save_trial_latest"] == 1
    assert config["slurm"]["signal_lead"] == 120
    assert config["slurm"]["on_preempt"] == "auto"


def test_the_default_lead_fits_any_time_limit() -> None:
    """A resolved configuration names it, and is loaded again by what goes on from it."""
    first = load({"slurm": {"time": 2}})
    assert load(first.to_dict()).slurm.signal_lead == 120


def test_storage_defaults_to_the_store() -> None:
    """Without checkpoint_storage checkpoints go below the store's root."""
    storage = load().checkpoint_storage
    assert isinstance(storage, SharedFS)
    assert storage.path == "/store/checkpoints"
    kept = load({"checkpoint_storage": {"save_trial_best": 3}}).checkpoint_storage
    assert isinstance(kept, SharedFS)
    assert (kept.path, kept.save_trial_best) == ("/store/checkpoints", 3)


def test_variables_in_the_path_of_checkpoints_are_those_of_the_submission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others who look at the experiment have other ones; a node's own are left for it."""
    monkeypatch.setenv("USER", "alice")
    monkeypatch.delenv("OF_A_NODE", raising=False)
    path = "/scratch/$USER/${OF_A_NODE}/x"
    below = {"storage_path": "/scratch/$USER/${OF_A_NODE}/x/y"}
    config = load({"checkpoint_storage": {"type": "shared_fs", "host_path": path, **below}})
    storage = config.to_dict()["checkpoint_storage"]
    assert storage["host_path"] == "/scratch/alice/${OF_A_NODE}/x"
    assert storage["storage_path"] == "/scratch/alice/${OF_A_NODE}/x/y"
    assert load(config.to_dict()) == config
    monkeypatch.setenv("SCRATCH", "/scratch/alice")
    for place in ("y", "/scratch/alice/x/y", "$SCRATCH/x/y"):
        given = {"type": "shared_fs", "host_path": "$SCRATCH/x", "storage_path": place}
        kept = load({"checkpoint_storage": given}).checkpoint_storage
        assert isinstance(kept, SharedFS) and kept.path == "/scratch/alice/x/y"


def test_name_and_seed_are_filled_in() -> None:
    """A nameless experiment is called after an animal, and its seed is the time."""
    config = load()
    assert re.fullmatch(r"Experiment \([a-z]+-[a-z]+\)", config.name)
    assert config.reproducibility.experiment_seed > 1_700_000_000


def test_null_is_the_same_as_absent() -> None:
    """Null takes the default, but stays a value among the user's own keys."""
    config = load(
        {
            "max_restarts": None,
            "resources": {"slots_per_trial": None},
            "slurm": None,
            "data": {"x": None},
            "hyperparameters": {
                "momentum": None,
                "i": {"type": "int", "minval": 1, "maxval": 2, "count": None},
            },
        }
    )
    assert (config.max_restarts, config.resources.slots_per_trial) == (5, 1)
    assert config.data == {"x": None}
    assert config.hyperparameters["momentum"] == Const(val=None)
    assert config.hyperparameters["i"] == Int(minval=1, maxval=2)


def test_searchers_of_both_generations_are_accepted() -> None:
    """ASHA takes max_length, or max_time with time_metric; single takes a bare number."""
    asha = {"name": "async_halving", "metric": "m", "max_trials": 2, "num_rungs": 2}
    old = load({"searcher": asha | {"max_length": {"batches": 8}}}).searcher
    new = load({"searcher": asha | {"time_metric": "batches", "max_time": 8}}).searcher
    assert (old.time_metric, old.max_time) == (new.time_metric, new.max_time) == ("batches", 8)  # type: ignore[union-attr]
    assert new.max_length is None  # type: ignore[union-attr]
    assert (old.stop_once, new.stop_once) == (None, None)  # type: ignore[union-attr]
    single = load({"searcher": {"name": "single", "metric": "m", "max_length": 5}}).searcher
    assert isinstance(single, Single)
    assert single.max_length == 5
    custom = {"name": "custom", "metric": "m", "unit": "epochs", "max_trials": 3}
    assert load({"searcher": custom}).searcher.unit == "epochs"  # type: ignore[union-attr]


def test_of_both_generations_the_newer_counts() -> None:
    """Determined 0.38 alone takes both, and stops trials. What the store has is not read anew, nor
    what was printed of it, but who forks it may change it."""
    asha = {"name": "async_halving", "metric": "m", "max_trials": 2, "num_rungs": 2}
    old = asha | {"max_length": {"batches": 8}}
    pair = {"time_metric": "batches", "max_time": 8}
    both = load({"searcher": old | pair})
    assert both.searcher == load({"searcher": old | {"stop_once": True}}).searcher
    assert both.searcher == load({"searcher": old | pair | {"stop_once": False}}).searcher
    overrides = ["searcher.time_metric=batches", "searcher.max_time=8"]
    promoting = load({"searcher": old}).to_dict()
    assert load({"searcher": old}, overrides=overrides).searcher == both.searcher
    fork = load_experiment({}, overrides=overrides, base=promoting).config
    assert fork.searcher == both.searcher
    for plain in (
        promoting,
        both.to_dict(),
        load({"searcher": old | {"stop_once": False}}).to_dict(),
    ):
        assert load(plain).to_dict() == load_experiment({}, base=plain).config.to_dict() == plain
    recorded = promoting | {"searcher": promoting["searcher"] | {"stop_once": False}}
    assert load_experiment({}, base=recorded).config.to_dict() == promoting


def test_one_node_is_asked_for_in_slurm_terms() -> None:
    """is_single_node puts all slots on one node where slots_per_node doesn't say more."""
    config = load({"resources": {"slots_per_trial": 4, "is_single_node": True}})
    assert config.slurm.slots_per_node == 4


def test_slots_of_commands_are_slots_of_trials() -> None:
    """A template for both has `slots`; what says slots_per_trial wins."""
    assert load({"resources": {"slots": 2}}).resources.slots_per_trial == 2
    both = load({"resources": {"slots": 2, "slots_per_trial": 3}}).resources
    assert (both.slots_per_trial, both.slots) == (3, None)


def test_nothing_can_be_changed(full: ExperimentConfig) -> None:
    """Attributes, mappings and lists refuse changes; copies of mappings don't."""
    with pytest.raises(AttributeError):
        full.name = "x"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        full.resources.slots_per_trial = 2  # type: ignore[misc]
    changes: tuple[Callable[[], object], ...] = (
        lambda: full.data.__setitem__("a", 1),
        lambda: full.data.update(a=1),
        lambda: full.data["secrets"].pop("token"),
        lambda: full.hyperparameters.clear(),
        lambda: full.hyperparameters.setdefault("a", 1),
        lambda: full.data.__ior__({}),
    )
    for change in changes:
        with pytest.raises(TypeError, match="immutable"):
            change()
    assert isinstance(full.data["secrets"]["nested"], tuple)
    mine = dict(full.data)
    mine["a"] = 1


def test_copies_and_pickles_are_equal(full: ExperimentConfig) -> None:
    """A configuration survives copy, pickle and JSON."""
    assert copy.deepcopy(full) == full
    assert pickle.loads(pickle.dumps(full)) == full
    assert ExperimentConfig.from_dict(json.loads(json.dumps(full.to_dict()))) == full


def test_plain_data_of_a_newer_version_is_read() -> None:
    """Unknown keys in a stored configuration are skipped."""
    plain = load().to_dict()
    plain["later"] = 1
    plain["slurm"]["later"] = 2
    assert ExperimentConfig.from_dict(plain).slurm.on_preempt == "auto"


def test_errors_of_a_mapping_have_no_line() -> None:
    """A configuration given as a mapping is checked in the same way."""
    with pytest.raises(ConfigErrors) as caught:
        load({"max_restart": 1, "data": {"x": object()}})
    assert "can't be configured" in str(caught.value)


def test_a_node_imports_little() -> None:
    """from_dict needs neither YAML nor the checker, nor anything big."""
    code = f"""if True:
        import sys, detslurm.config
        detslurm.config.ExperimentConfig.from_dict({load().to_dict()!r})
        print(*sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"yaml", "rich", "click", "numpy", "torch", "submitit", "dataclasses", "difflib"}
    ours = {"detslurm.config.loading", "detslurm.config.checking", "detslurm.config.site"}
    assert not (heavy | ours) & set(done.stdout.split())
