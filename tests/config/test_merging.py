"""Each documented rule of merging, and the order of the layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.config import ConfigErrors, ExperimentConfig, load_experiment, load_site
from detslurm.config.errors import Position
from detslurm.config.merging import merge
from detslurm.config.normalize import normalize
from detslurm.config.yaml_node import locate

MINIMAL = {"entrypoint": "a", "searcher": {"name": "single", "metric": "m"}}


def merged(high: Any, low: Any) -> Any:
    at = Position("x")
    return merge(normalize(locate(high, at)), normalize(locate(low, at))).plain()


RULES = [
    ("scalar", {"max_restarts": 1}, {"max_restarts": 2}, {"max_restarts": 1}),
    ("null is absent", {"max_restarts": None}, {"max_restarts": 2}, {"max_restarts": 2}),
    (
        "maps",
        {"data": {"a": {"b": 1}}},
        {"data": {"a": {"c": 2}}},
        {"data": {"a": {"b": 1, "c": 2}}},
    ),
    (
        "a key of data that is called as one of ours",
        {"data": {"labels": ["a"]}},
        {"data": {"labels": ["b"]}},
        {"data": {"labels": ["a"]}},
    ),
    (
        "lists are replaced",
        {"slurm": {"sbatch_args": ["--mem=1"]}},
        {"slurm": {"sbatch_args": ["--mem=2", "--exclusive"]}},
        {"slurm": {"sbatch_args": ["--mem=1"]}},
    ),
    (
        "a length has one unit",
        {"searcher": {"max_length": {"batches": 100}}, "min_validation_period": {"epochs": 1}},
        {"searcher": {"max_length": {"epochs": 3}}, "min_validation_period": {"batches": 9}},
        {"searcher": {"max_length": {"batches": 100}}, "min_validation_period": {"epochs": 1}},
    ),
    ("labels", {"labels": ["a", "b"]}, {"labels": ["b", "c"]}, {"labels": ["a", "b", "c"]}),
    (
        "bind mounts",
        {"bind_mounts": [{"host_path": "/a", "container_path": "x"}]},
        {
            "bind_mounts": [
                {"host_path": "/b", "container_path": "x"},
                {"host_path": "/c", "container_path": "y"},
            ]
        },
        {
            "bind_mounts": [
                {"host_path": "/a", "container_path": "x"},
                {"host_path": "/c", "container_path": "y"},
            ]
        },
    ),
    (
        "log policies by name, nameless ones by content",
        {
            "log_policies": [
                {"name": "a", "pattern": "x"},
                {"pattern": "p", "action": "exclude_node"},
            ]
        },
        {
            "log_policies": [
                {"name": "a", "pattern": "y"},
                {"pattern": "p", "action": {"type": "exclude_node"}},
                {"name": "b"},
            ]
        },
        {
            "log_policies": [
                {"name": "a", "pattern": "x"},
                {"pattern": "p", "action": "exclude_node"},
                {"name": "b"},
            ]
        },
    ),
    (
        "variables: the lower first, a list means every device",
        {"environment": {"environment_variables": ["A=high"]}},
        {"environment": {"environment_variables": {"gpu": ["A=low"], "cpu": ["B=1"]}}},
        {
            "environment": {
                "environment_variables": {
                    "cpu": ["B=1", "A=high"],
                    "cuda": ["A=low", "A=high"],
                    "rocm": ["A=high"],
                }
            }
        },
    ),
    (
        "an image for one device over a common one",
        {"environment": {"image": {"gpu": "g"}}},
        {"environment": {"image": "all"}},
        {"environment": {"image": {"cuda": "g", "cpu": "all", "rocm": "all"}}},
    ),
    (
        "same searcher",
        {"searcher": {"name": "random", "metric": "m"}},
        {"searcher": {"name": "random", "max_trials": 3, "metric": "n"}},
        {"searcher": {"name": "random", "metric": "m", "max_trials": 3}},
    ),
    (
        "another searcher: common fields only",
        {"searcher": {"name": "single"}},
        {"searcher": {"name": "random", "max_trials": 3, "metric": "n"}},
        {"searcher": {"name": "single", "metric": "n"}},
    ),
    (
        "another storage: common fields only",
        {"checkpoint_storage": {"type": "s3", "bucket": "b"}},
        {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "save_trial_best": 4}},
        {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 4}},
    ),
    (
        "hyperparameters are atomic",
        {"hyperparameters": {"x": {"type": "int", "minval": 1, "maxval": 2}}},
        {"hyperparameters": {"x": {"type": "int", "minval": 0, "maxval": 9, "count": 3}, "y": 1}},
        {"hyperparameters": {"x": {"type": "int", "minval": 1, "maxval": 2}, "y": 1}},
    ),
    (
        "nested hyperparameters merge",
        {"hyperparameters": {"a": {"x": 1, "y": [1]}, "b": 1, "c": {"z": 1}}},
        {
            "hyperparameters": {
                "a": {"y": [2], "z": 3},
                "b": {"n": 2},
                "c": {"type": "const", "val": 1},
            }
        },
        {"hyperparameters": {"a": {"x": 1, "y": [1], "z": 3}, "b": 1, "c": {"z": 1}}},
    ),
    (
        "the site's setup comes first",
        {"slurm": {"setup": ["user"], "modules": ["gcc", "mine"]}},
        {"slurm": {"setup": ["site"], "modules": ["gcc"]}},
        {"slurm": {"setup": ["site", "user"], "modules": ["gcc", "mine"]}},
    ),
]


@pytest.mark.parametrize("high, low, result", [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_rule(high: Any, low: Any, result: Any) -> None:
    """The higher layer over the lower one gives what the rule says."""
    assert merged(high, low) == result


def load(tmp_path: Path, user: str, **files: str) -> ExperimentConfig:
    paths = {}
    for name, text in {"user": user, **files}.items():
        paths[name] = tmp_path / f"{name}.yaml"
        paths[name].write_text(text)
    site = load_site(paths["site"]) if "site" in paths else None
    template = paths.get("template")
    return load_experiment(paths["user"], template=template, site=site).config


SITE = """
partition: main
account: site
time: 60
setup: [site]
defaults: {max_restarts: 1, slurm: {qos: defaults}}
partitions:
  fast: {time: 5, defaults: {max_restarts: 2, slurm: {qos: fast}}}
"""


def test_layers_are_user_template_partition_site_defaults(tmp_path: Path) -> None:
    """A value is taken from the highest layer that has it."""
    user = "entrypoint: a\nsearcher: {name: single, metric: m}\nslurm: {setup: [user]}\n"
    template = "resources: {resource_pool: fast}\nmax_restarts: 3\nslurm: {setup: [template]}\n"
    plain = load(tmp_path, user, site=SITE)
    assert (plain.resources.resource_pool, plain.slurm.time) == ("main", "0-01:00:00")
    assert (plain.max_restarts, plain.slurm.qos, plain.slurm.account) == (1, "defaults", "site")
    templated = load(tmp_path, user, site=SITE, template=template)
    assert (templated.resources.resource_pool, templated.slurm.time) == ("fast", "0-00:05:00")
    assert (templated.max_restarts, templated.slurm.qos) == (3, "fast")
    assert templated.slurm.setup == ("site", "template", "user")


def test_problems_of_all_sources_come_together(tmp_path: Path) -> None:
    """User, template and overrides are all checked, each named with its place."""
    (tmp_path / "u.yaml").write_text("entrypoint: a\nmax_restarts: x\n")
    (tmp_path / "t.yaml").write_text("scheduling_unit: 0\n")
    with pytest.raises(ConfigErrors) as caught:
        load_experiment(
            tmp_path / "u.yaml", template=tmp_path / "t.yaml", overrides=["resources.priority=0"]
        )
    text = str(caught.value)
    assert "u.yaml:2:15: max_restarts" in text
    assert "t.yaml:1:18: scheduling_unit" in text
    assert "--config resources.priority: resources.priority" in text
    assert "searcher is required" in text


def test_changes_of_another_experiment_may_have_any_form() -> None:
    """They are merged like with like, and null takes away."""
    first = {**MINIMAL, "description": "d", "environment": {"environment_variables": ["B=2"]}}
    base = load_experiment(first).config.to_dict()
    changes = {"description": None, "environment": {"environment_variables": ["A=1"]}}
    config = load_experiment(changes, base=base).config
    assert config.environment.environment_variables.cpu == ("B=2", "A=1")
    assert config.description is None
