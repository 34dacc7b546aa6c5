"""DeepSpeed's configuration with values of the experiment's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detslurm.pytorch.deepspeed import overwrite_deepspeed_config

BASE = {"train_batch_size": 32, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, BASE),
        ({"train_batch_size": 8}, {**BASE, "train_batch_size": 8}),
        (
            {"optimizer": {"params": {"lr": 0.5}}},
            {**BASE, "optimizer": {"type": "Adam", "params": {"lr": 0.5}}},
        ),
        ({"zero_optimization": {"stage": 2}}, {**BASE, "zero_optimization": {"stage": 2}}),
        ({"optimizer": None}, {**BASE, "optimizer": None}),
        ({"train_batch_size": {"a": 1}}, {**BASE, "train_batch_size": {"a": 1}}),
    ],
)
def test_values_of_the_experiment_win(source: object, expected: object, tmp_path: Path) -> None:
    """Of a dictionary and of a file alike; neither argument changes."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(BASE))
    before = json.dumps([BASE, source])
    assert overwrite_deepspeed_config(BASE, source) == expected  # type: ignore[arg-type]
    assert overwrite_deepspeed_config(str(file), source) == expected  # type: ignore[arg-type]
    assert json.dumps([BASE, source]) == before


def test_what_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a path or a dictionary"):
        overwrite_deepspeed_config(3, {})  # type: ignore[arg-type]
    (tmp_path / "ds.json").write_text("{,}")
    with pytest.raises(ValueError, match=r"ds\.json is not a DeepSpeed configuration in JSON"):
        overwrite_deepspeed_config(str(tmp_path / "ds.json"), {})
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        overwrite_deepspeed_config("nothing.json", {})
