"""The configurations and pages of DeepSpeed's examples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from detslurm.config import load_experiment
from detslurm.config.schema.site import SiteProfile
from detslurm.pytorch.deepspeed import overwrite_deepspeed_config
from detslurm.slurm.plan import plan_job
from tests.docs.pages import blocks

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


TRAINS = """
import json, logging, sys
from model_def import Digits
from detslurm import pytorch
from detslurm.pytorch import deepspeed

logging.basicConfig(level=logging.INFO)
hparams = {"overwrite_deepspeed_args": json.loads(sys.argv[1])}
with deepspeed.init(hparams=hparams) as context:
    deepspeed.Trainer(Digits(context), context).fit(max_length=pytorch.Epoch(1))
"""


def test_the_tutorial_shows_all_its_files(tmp_path: Path) -> None:
    """Copied as they are printed: its trial trains an epoch, and nothing is compiled."""
    for block in blocks(EXAMPLES.parent / "docs" / "deepspeed.md"):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    loaded = load_experiment(tmp_path / "experiment.yaml", site=SiteProfile(root="/nowhere"))
    replaced = loaded.given["hyperparameters"]["overwrite_deepspeed_args"]
    base = overwrite_deepspeed_config(str(tmp_path / "ds_config.json"), replaced)
    assert base["optimizer"]["params"] == {"lr": 0.005, "torch_adam": True}
    assert base["train_batch_size"] % loaded.config.resources.slots_per_trial == 0
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "DETSLURM_ROOT": str(tmp_path / "store")}
    argv = [sys.executable, "-W", "ignore", "-c", TRAINS, json.dumps(replaced)]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "validation after batch 25" in done.stderr, done.stderr
    assert "compiles" not in done.stderr
