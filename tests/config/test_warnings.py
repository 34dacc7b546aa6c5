"""What has no effect on Slurm is accepted and named once; so is what is deprecated."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from detslurm.config import load_experiment
from detslurm.config.writing import as_yaml
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
        "environment.registry_auth",
        "environment.pod_spec",
        "security",
        "pbs",
        "tensorboard_storage",
        "data_layer",
        "retention_policy",
        "optimizations.mixed_precision",
        "records_per_epoch",
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


@pytest.mark.parametrize("trial", ["--trial=3", "--trial 3", "--trials a:b"])
def test_an_option_of_the_code_names_no_trial_class(tmp_path: Path, trial: str) -> None:
    """Only a launcher's --trial with a class does: others have a fit() of their own."""
    text = f"entrypoint: python3 train.py {trial}\nsearcher: {{name: single, metric: m}}\n"
    assert warnings_of(text, tmp_path) == ()


def test_words_that_older_yaml_takes_for_booleans(tmp_path: Path) -> None:
    """In sections of the user's own keys they are text: each key is named once with its line."""
    text = """\
hyperparameters:
  augment: yes
  flip: {type: categorical, vals: [On, off, auto]}
  quoted: "no"
  nested: {const: {type: const, val: NO}}
  true_one: true
data: {x: {shuffle: off, on: [1]}}
description: yes
"""
    (warning,) = warnings_of(GOOD + text, tmp_path)
    assert warning == (
        f"{tmp_path}/e.yaml: text, not a boolean (write true or false, or quotes):"
        " hyperparameters.augment (line 4), hyperparameters.flip.vals (line 5),"
        " hyperparameters.nested.const.val (line 7), data.x.shuffle (line 9)"
    )
    path = tmp_path / "e.yaml"
    (warning,) = load_experiment(path, overrides=["hyperparameters.augment=true"]).warnings
    assert "augment" not in warning
    path.write_text(GOOD)
    (warning,) = load_experiment(path, overrides=["data.x=no"]).warnings
    assert "data.x" in warning


def test_variables_whose_values_no_shell_expands(tmp_path: Path) -> None:
    """Each is named once with its line, without its value, and with what to do."""
    text = """\
environment:
  environment_variables:
    - PATH=/opt/x/bin:$PATH
    - OUT=${HOME}/out
    - PRICE=5$ or $5
"""
    (warning,) = warnings_of(GOOD + text, tmp_path)
    assert "export them in startup-hook.sh" in warning
    assert warning.endswith(
        ": environment.environment_variables.PATH (line 5),"
        " environment.environment_variables.OUT (line 6)"
    )


def test_values_where_exponents_are_expected(tmp_path: Path) -> None:
    """A whole search would have learning rates above 1; other ranges of type log are silent."""
    text = """\
hyperparameters:
  lr: {type: log, base: 10, minval: 0.0001, maxval: 0.1}
  nested: {decay: {type: log, base: 10.0, minval: -5, maxval: 0}}
  size: {type: log, base: 2, minval: 0, maxval: 1}
  data: {type: categorical, vals: [{type: log}, {type: log, base: e, minval: 0.01, maxval: 1}]}
"""
    (warning,) = warnings_of(GOOD + text, tmp_path)
    assert warning.endswith(
        ": hyperparameters.lr (line 4): values from 1 to 1.259; for 0.0001 to 0.1 write -4 and -1"
    )


def test_a_length_of_an_older_generation_beside_a_newer_one(tmp_path: Path) -> None:
    """What becomes of the search is said once, but not of a print-out, which stays what it was."""
    text = """\
entrypoint: a
searcher:
  {name: adaptive_asha, metric: m, max_trials: 2, max_length: {batches: 8},
   time_metric: batches, max_time: 8}
hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}
"""
    (warning,) = warnings_of(text, tmp_path)
    assert warning == (
        f"{tmp_path}/e.yaml: max_time with this counts, not the deprecated max_length:"
        " searcher.time_metric (line 4): trials are stopped, as in Determined 0.38; without"
        " time_metric and max_time they pause, and the best are promoted"
    )
    for left_out in (", max_length: {batches: 8}", ",\n   time_metric: batches, max_time: 8"):
        (tmp_path / "e.yaml").write_text(text.replace(left_out, ""))
        alone = load_experiment(tmp_path / "e.yaml")
        assert alone.warnings == ()
        (tmp_path / "e.yaml").write_text(as_yaml(alone.config.to_dict()))
        assert load_experiment(tmp_path / "e.yaml").warnings == ()


def test_changes_of_another_experiment_are_warned_of(tmp_path: Path) -> None:
    """As those of a submission; what was said at the first one is not said again."""
    old = GOOD + "environment: {environment_variables: ['OLD=$HOME/x']}\n"
    path = tmp_path / "e.yaml"
    path.write_text(old + "hyperparameters: {amsgrad: no}\nrecords_per_epoch: 5\n")
    base = load_experiment(path).config.to_dict()
    assert load_experiment({}, base=base).warnings == ()
    path.write_text(
        "hyperparameters: {nesterov: yes}\nenvironment: {environment_variables: ['NEW=$HOME/y']}\n"
    )
    words, variables = load_experiment(path, base=base).warnings
    assert "hyperparameters.nesterov (line 1)" in words and "amsgrad" not in words
    assert ".NEW (line 2)" in variables and "OLD" not in variables
    (ignored,) = load_experiment({}, overrides=["records_per_epoch=7"], base=base).warnings
    assert "without effect" in ignored and ignored.endswith(
        "records_per_epoch (--config records_per_epoch)"
    )
