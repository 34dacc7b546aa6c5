"""The configurations and pages of DeepSpeed's examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from detslurm.config import load_experiment
from detslurm.config.schema.site import SiteProfile
from detslurm.pytorch.deepspeed import overwrite_deepspeed_config
from detslurm.slurm.plan import plan_job

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = ("deepspeed_gan", "deepspeed_gpt", "deepspeed_pipeline")
RANGE = {"vals", "minval"}
CONFIGS = [path for name in NAMES for path in sorted((EXAMPLES / name).glob("*.yaml"))]


def names_of(values: Mapping[str, Any], above: str = "") -> set[str]:
    """The dotted names of all values; a range of values is one."""
    names = set()
    for name, value in values.items():
        nested = isinstance(value, Mapping) and not RANGE & value.keys()
        names |= names_of(value, f"{above}{name}.") if nested else {above + name}
    return names


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_configurations_are_valid(path: Path) -> None:
    """Each loads, has a place on a cluster and the hyperparameters of const.yaml; what they replace
    in DeepSpeed's configuration is in it."""
    loaded, const = (
        load_experiment(each, site=SiteProfile(root="/nowhere"))
        for each in (path, path.with_name("const.yaml"))
    )
    config, hparams = loaded.config, loaded.given["hyperparameters"]
    assert not loaded.warnings
    assert names_of(hparams) == names_of(const.given["hyperparameters"])
    wanted = plan_job(config, None, None, trials=1).template
    assert wanted.nodes == (2 if config.slurm.slots_per_node else wanted.nodes)
    assert (config.to_dict()["searcher"]["name"] != "single") == (path.name == "search.yaml")

    base = overwrite_deepspeed_config(str(path.with_name("ds_config.json")), {})
    replaced = hparams["overwrite_deepspeed_args"]
    assert names_of(replaced) <= names_of(base)
    assert base["optimizer"]["params"]["torch_adam"] is True  # else a job compiles


@pytest.mark.parametrize("name", NAMES)
def test_each_has_what_the_others_have(name: str) -> None:
    """One process, several, a search; every file is told of in the README."""
    folder = EXAMPLES / name
    files = {path.name for path in folder.iterdir() if path.is_file()} - {"README.md"}
    assert files > {"const.yaml", "distributed.yaml", "search.yaml", "ds_config.json"}
    page = (folder / "README.md").read_text()
    assert {file for file in files if f"({file})" not in page} == set()
