"""`--config a.b=value` and `--template NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.config import ConfigErrors, ExperimentConfig, SiteProfile, load_experiment

MINIMAL: dict[str, Any] = {"entrypoint": "a", "searcher": {"name": "single", "metric": "m"}}


def load(*overrides: str, **options: Any) -> ExperimentConfig:
    return load_experiment(MINIMAL, overrides=overrides, **options).config


def errors(*overrides: str, **options: Any) -> str:
    with pytest.raises(ConfigErrors) as caught:
        load(*overrides, **options)
    return str(caught.value)


def test_values_are_yaml() -> None:
    """Numbers, lists, mappings, text with = in it and null are taken as YAML has them."""
    config = load(
        "max_restarts=3",
        "labels=[a, b]",
        "hyperparameters.lr={type: log, base: 10, minval: -4, maxval: -1}",
        "hyperparameters.nested.x=1e-3",
        "environment.environment_variables=['A=b=c']",
        "name=null",
    )
    assert config.max_restarts == 3
    assert config.labels == ("a", "b")
    assert config.hyperparameters["lr"].base == 10
    assert config.hyperparameters["nested"]["x"].val == 0.001
    assert config.environment.environment_variables.of("cpu") == {"A": "b=c"}
    assert config.name.startswith("Experiment")


def test_later_ones_win_and_replace() -> None:
    """An override replaces what stands at its key, and is replaced by the next."""
    config = load("data.a={x: 1}", "data.a={y: 2}", "searcher.metric=loss", "searcher.metric=f1")
    assert config.data == {"a": {"y": 2}}
    assert config.searcher.metric == "f1"


@pytest.mark.parametrize("name", ["slots", "slots_per_trial"])
def test_slots_by_either_name(name: str) -> None:
    """It counts whatever the file calls them."""
    config = {**MINIMAL, "resources": {name: 4}}
    for override in ("resources.slots=2", "resources.slots_per_trial=2"):
        assert load_experiment(config, overrides=[override]).config.resources.slots_per_trial == 2


SEARCH: dict[str, Any] = {
    "entrypoint": "a",
    "searcher": {
        "name": "adaptive_asha",
        "metric": "m",
        "max_trials": 8,
        "max_length": {"batches": 64},
        "mode": "aggressive",
    },
    "checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "save_trial_best": 3},
}


def test_another_kind_drops_the_fields_of_the_old_one() -> None:
    """One run of a search's file needs no other file; what both kinds have stays."""
    loaded = load_experiment(
        SEARCH,
        overrides=[
            "searcher.name=single",
            "checkpoint_storage.type=directory",
            "checkpoint_storage.container_path=/b",
        ],
    )
    assert loaded.given["searcher"] == {
        "name": "single",
        "metric": "m",
        "max_length": {"batches": 64},
    }
    storage = {"type": "directory", "container_path": "/b", "save_trial_best": 3}
    assert loaded.given["checkpoint_storage"] == storage
    loaded = load_experiment(SEARCH, overrides=["searcher.name=random"])
    assert loaded.config.searcher.max_trials == 8  # type: ignore[union-attr]


@pytest.mark.parametrize("first", [True, False])
def test_an_override_for_another_kind_is_refused(first: bool) -> None:
    """What was asked for is not dropped, whatever the order."""
    overrides = ["searcher.name=single", "searcher.max_trials=4"][:: 1 if first else -1]
    with pytest.raises(ConfigErrors, match=r'--config searcher.max_trials.*no field "max_trials"'):
        load_experiment(SEARCH, overrides=overrides)


@pytest.mark.parametrize(
    "override, fragments",
    [
        ("max_restarts", ("--config max_restarts", "there is no =")),
        ("=3", ("not of the form a.b.c",)),
        ("a..b=3", ("not of the form a.b.c",)),
        ("max_restart=3", ("--config max_restart", 'did you mean "max_restarts"')),
        ("entrypoint.x=3", ("--config entrypoint.x: entrypoint: it is the text",)),
        (
            "entrypoint.a.b=3",
            ("write --config entrypoint=... or --config 'entrypoint={a: {b: ...}}'",),
        ),
        ("labels=[a", ("--config labels:", "YAML syntax")),
        ("searcher.name=[x]", ("--config searcher.name: searcher.name",)),
        ("max_restarts=-1", ("--config max_restarts: max_restarts", ">= 0", "found -1")),
    ],
)
def test_a_bent_override_is_named(override: str, fragments: tuple[str, ...]) -> None:
    """The error names the option as it was given."""
    text = errors(override)
    assert all(fragment in text for fragment in fragments), text


def test_templates_are_found_by_name_in_the_store(tmp_path: Path) -> None:
    """A name is looked up in the store's templates; an unknown one gets the nearest."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "big-gpu.yaml").write_text("resources: {slots_per_trial: 8}\n")
    site = SiteProfile(root=str(tmp_path))
    assert load(template="big-gpu", site=site).resources.slots_per_trial == 8
    assert 'did you mean "big-gpu"' in errors(template="big_gpu", site=site)
    assert "no template" in errors(template="nothing\0like", site=site)


def test_a_template_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """A path that can't be read is one problem among the others."""
    text = errors("max_restart=1", template=tmp_path / "none.yaml")
    assert "none.yaml" in text
    assert "max_restarts" in text


def test_a_length_takes_another_unit() -> None:
    """That of an experiment that is continued, too."""
    base = load("searcher.max_length={epochs: 3}").to_dict()
    config = load("searcher.max_length.batches=2000", base=base)
    assert config.to_dict()["searcher"]["max_length"] == {"batches": 2000}
