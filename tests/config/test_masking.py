"""No secret is shown: not in the masked configuration, not in an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detslurm.config import ConfigErrors, load_experiment
from tests.config.full import FULL


def test_no_secret_is_left(tmp_path: Path) -> None:
    """Keys, passwords, data.secrets, secret-looking variables and URLs are masked."""
    path = tmp_path / "e.yaml"
    path.write_text(FULL.replace("API_KEY=a=b\\nc", "API_KEY=hush=hush\\nhush"))
    config = load_experiment(path).config
    shown = config.masked()
    assert "hush" in json.dumps(config.to_dict())
    assert "hush" not in json.dumps(shown)
    assert shown["data"]["secrets"] == {"token": "********", "nested": "********"}
    assert shown["data"]["path"] == "/data"
    assert shown["checkpoint_storage"]["secret_key"] == "********"
    assert shown["checkpoint_storage"]["bucket"] == "b"
    assert "API_KEY=********" in shown["environment"]["environment_variables"]["cuda"]
    assert "B=********" in shown["environment"]["environment_variables"]["cuda"]
    assert shown["slurm"]["setup"] == ["source /etc/profile", "export WANDB_API_KEY=********"]


@pytest.mark.parametrize(
    ("entrypoint", "shown"),
    [
        ("python train.py --api-key=hush --lr=0.1", "python train.py --api-key=******** --lr=0.1"),
        (["sh", "-c", "HF_TOKEN=hush x"], ["sh", "-c", "HF_TOKEN=******** x"]),
        (
            "x --authorization=hush API_TOKENS=hush",
            "x --authorization=******** API_TOKENS=********",
        ),
        *[
            (f"python train.py --{what}", f"python train.py --{what}")
            for what in ("tokenizer=gpt2-large", "max_tokens=100000", "author=me")
        ],
    ],
)
def test_the_entrypoint(entrypoint: str | list[str], shown: str | list[str]) -> None:
    """Assignments that look like a secret are masked; what language models are about is none."""
    source = {"entrypoint": entrypoint, "searcher": {"name": "single", "metric": "m"}}
    assert load_experiment(source).config.masked()["entrypoint"] == shown


def test_unset_secrets_stay_unset(tmp_path: Path) -> None:
    """Masking doesn't invent secrets where none are."""
    source = {
        "entrypoint": "a",
        "searcher": {"name": "single", "metric": "m"},
        "checkpoint_storage": {"type": "s3", "bucket": "b"},
    }
    assert load_experiment(source).config.masked()["checkpoint_storage"]["secret_key"] is None


def test_an_error_shows_no_secret(tmp_path: Path) -> None:
    """A secret of the wrong kind is named, not shown."""
    path = tmp_path / "e.yaml"
    path.write_text("checkpoint_storage: {type: s3, bucket: b, secret_key: 123456}\n")
    with pytest.raises(ConfigErrors) as caught:
        load_experiment(path)
    assert "checkpoint_storage.secret_key" in str(caught.value)
    assert "123456" not in str(caught.value)
