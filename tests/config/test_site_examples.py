"""The site profiles that come with the package are sound, and ask Slurm as their clusters want."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.config import SiteProfile, load_experiment, load_site
from detslurm.config.templates import packaged, purpose
from detslurm.slurm import plan_job
from detslurm.slurm.request import JobRequest

EXAMPLES = packaged("sites", ".yaml")

CONFIG: dict[str, Any] = {
    "name": "x",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss", "max_length": 10},
}


def site(name: str, folder: Path) -> SiteProfile:
    """An example as a user has it: in a file."""
    path = folder / "site.yaml"
    path.write_text(EXAMPLES[name])
    return load_site(path)


def request(name: str, folder: Path, slots: int = 8, pool: str | None = None) -> JobRequest:
    """The job of a trial on such a cluster."""
    profile = site(name, folder)
    resources = {"slots_per_trial": slots, **({"resource_pool": pool} if pool else {})}
    loaded = load_experiment({**CONFIG, "resources": resources}, site=profile, root=folder)
    return plan_job(loaded.config, profile, None, 1).template


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_valid_and_says_what_it_is_for(name: str, tmp_path: Path) -> None:
    """It is read without a problem, and experiments in each of its partitions can be planned."""
    profile = site(name, tmp_path)
    assert purpose(EXAMPLES[name]).endswith(".") and profile.root
    for pool in [None, *profile.partitions]:
        wanted = request(name, tmp_path, 8, pool)
        assert wanted.partition == (pool or profile.partition)


def test_gpus_are_asked_for_as_the_cluster_counts_them(tmp_path: Path) -> None:
    """--gres on each node, --gpus-per-task on whole nodes, by type, or not at all."""
    assert (made := request("gpu-gres", tmp_path)).gres == "gpu:4"
    assert (made.nodes, made.gpus_per_task) == (2, None)
    made = request("gpu-per-node", tmp_path, 16)
    assert (made.nodes, made.gpus_per_task) == (2, "8")
    assert request("gpu-types", tmp_path, 1).gpus == "a100:1"
    assert request("gpu-types", tmp_path, 1, "gpu-old").gpus == "v100:1"
    made = request("no-accounting", tmp_path, 2)
    assert (made.gres, made.gpus, made.nodes) == (None, None, 1)
    assert request("cpu-24h", tmp_path, 48).cpus_per_task == 48


def test_limits_and_preemption_follow_the_partition(tmp_path: Path) -> None:
    """24 hours with time to save; successors where preemption cancels; no sbatch from jobs."""
    made = request("cpu-24h", tmp_path)
    assert (made.time_minutes, made.signal_lead) == (24 * 60, 600)
    profile = site("preempt-cancel", tmp_path)
    for pool, expected in ({"scavenge": "successor", "normal": "auto"}).items():
        pooled = {**CONFIG, "resources": {"resource_pool": pool}}
        config = load_experiment(pooled, site=profile, root=tmp_path).config
        assert config.slurm.on_preempt == expected
    assert not site("no-submit-from-jobs", tmp_path).submit_from_jobs


@pytest.mark.parametrize(
    ("name", "runtime", "mounts"),
    [
        ("containers", "apptainer", ["/data"]),
        ("containers-pyxis", "pyxis", []),
        ("containers-podman-hpc", "podman-hpc", []),
    ],
)
def test_an_image_is_all_that_an_experiment_adds(
    name: str, runtime: str, mounts: list[str], tmp_path: Path
) -> None:
    """Of containers the profile has the rest."""
    plain = {**CONFIG, "environment": {"image": "torch:2"}}
    config = load_experiment(plain, site=site(name, tmp_path), root=tmp_path).config
    assert (config.slurm.container, config.environment.image.cuda) == (runtime, "torch:2")
    assert [mount.container_path for mount in config.bind_mounts] == mounts
