"""The examples' configurations and pages."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from detslurm import pytorch
from detslurm.config import load_experiment
from detslurm.config.schema.site import SiteProfile

EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = {"const.yaml": "single", "distributed.yaml": "single", "adaptive.yaml": "adaptive_asha"}
NAMES = sorted(path.name for path in EXAMPLES.glob("pytorch_*"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_configurations_are_valid(name: str, kind: str) -> None:
    """Each example runs in one process, in several, and as a search; the hyperparameters that
    its configurations set are the same ones."""
    configs = {
        other: load_experiment(EXAMPLES / name / other, site=SiteProfile(root="/nowhere")).config
        for other in KINDS
    }
    config = configs[kind]
    assert config.to_dict()["searcher"]["name"] == KINDS[kind]
    assert set(config.hyperparameters) == set(configs["const.yaml"].hyperparameters)
    assert (config.resources.slots_per_trial > 1) == (kind == "distributed.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_pages_tell_of_all_files(name: str) -> None:
    """Every file of an example is told of in its README."""
    page = EXAMPLES / name / "README.md"
    files = {path.name for path in page.parent.iterdir() if path.is_file()} - {page.name}
    assert {file for file in files if f"({file})" not in page.read_text()} == set()


def test_the_guide_names_everything() -> None:
    """Every class, method and argument of the package has its place in PyTorch's two pages."""
    kinds = (
        pytorch.PyTorchTrial, pytorch.PyTorchTrialContext, pytorch.PyTorchExperimentalContext,
        pytorch.PyTorchCallback, pytorch.MetricReducer,
    )  # fmt: skip
    names = {name for kind in kinds for name in vars(kind) if not name.startswith("_")}
    names |= {*pytorch.__all__, *inspect.signature(pytorch.Trainer.fit).parameters}
    # Only for annotations.
    names -= {"self", "trial_context_class", "TorchData", "TrainUnit", "CheckpointLoadContext"}
    names -= {"PyTorchTrialContext", "PyTorchExperimentalContext"}
    pages = (EXAMPLES.parent / "docs" / name for name in ("pytorch.md", "pytorch-reference.md"))
    text = "".join(page.read_text() for page in pages)
    assert {name for name in names if name not in text} == set()
