"""The examples' configurations and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.config import load_experiment
from detslurm.config.site import SiteProfile
from tests.docs.test_pages import test_links_lead_somewhere as assert_links_lead_somewhere

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
def test_pages_point_at_what_exists(name: str) -> None:
    """The links of every example's README lead to a file, and all its files are told of."""
    page = EXAMPLES / name / "README.md"
    assert_links_lead_somewhere(page)
    files = {path.name for path in page.parent.iterdir() if path.is_file()} - {page.name}
    assert {file for file in files if f"({file})" not in page.read_text()} == set()
