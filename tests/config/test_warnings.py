"""What has no effect on Slurm is accepted and named once; so is what is deprecated."""

from __future__ import annotations

import textwrap
from pathlib import Path

from detslurm.config import load_experiment
from tests.config.full import FULL

GOOD = "entrypoint: a\nsearcher: {name: single, metric: m}\n"


def warnings_of(text: str, tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "e.yaml"
    path.write_text(text)
    return load_experiment(path).warnings


def test_all_ignored_keys_are_in_one_warning(tmp_path: Path) -> None:
    """One text names every key that does nothing here, with its line."""
    ignored, deprecated = warnings_of(FULL, tmp_path)
    for key in (
        "resources.shm_size",
        "resources.devices",
        "resources.native_parallel",
        "environment.image",
        "environment.registry_auth",
        "environment.pod_spec",
        "bind_mounts",
        "integrations",
        "security",
        "pbs",
        "tensorboard_storage",
        "data_layer",
        "retention_policy",
        "optimizations.mixed_precision",
        "records_per_epoch",
        "profiling.begin_on_batch",
        "profiling.end_after_batch",
    ):
        assert f"{key} (" in ignored
    assert "hush" not in ignored
    assert ignored.startswith(f"{tmp_path}/e.yaml: ")
    assert "resources.shm_size (line 41)" in ignored
    for key in ("min_validation_period", "scheduling_unit", "environment_variables.gpu"):
        assert key in deprecated


def test_what_is_not_set_or_set_to_its_default_is_not_named(tmp_path: Path) -> None:
    """A plain configuration gives no warnings, nor does one that repeats defaults."""
    text = "resources: {weight: 1}\nenvironment: {force_pull_image: false, image: null}\npbs: {}\n"
    assert warnings_of(GOOD + text, tmp_path) == ()


def test_deprecated_alone_is_one_warning(tmp_path: Path) -> None:
    """Deprecated fields come with what to use instead."""
    (warning,) = warnings_of(GOOD + "scheduling_unit: 5\n", tmp_path)
    assert "scheduling_unit" in warning
    assert "reporting_period" in warning


def test_a_trial_class_is_trained_by_the_configuration(tmp_path: Path) -> None:
    """Nothing else could tell it its periods: they are not deprecated there."""
    text = """\
        entrypoint: model_def:MyTrial
        searcher: {name: single, metric: m, max_length: {epochs: 5}}
        min_validation_period: {epochs: 1}
        scheduling_unit: 5
        """
    assert warnings_of(textwrap.dedent(text), tmp_path) == ()
