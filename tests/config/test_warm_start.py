"""`slurm.warm_start` takes an entrypoint that is one Python command, and nothing that hooks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from detslurm.config import ConfigErrors, load_experiment
from detslurm.config.entrypoints import python_command

BASE = {"searcher": {"name": "single", "metric": "m"}, "slurm": {"warm_start": True}}


@pytest.mark.parametrize(
    ("entrypoint", "words"),
    [
        ("python3 train.py --lr=0.1", ["python3", "train.py", "--lr=0.1", "<>"]),
        (" python -u t.py ", ["python", "t.py", "<>"]),
        ('/opt/env/bin/python3.12 -m pkg.t "$@" x', ["/opt/env/bin/python3.12", "-m", "pkg.t"]),
        (["python3", "a b.py", "$HOME"], ["python3", "a b.py", "$HOME", "<>"]),
    ],
)
def test_one_command(entrypoint: str | Sequence[str], words: list[str]) -> None:
    """With the arguments in their place, behind all others where they have none."""
    if "$@" in entrypoint:
        words = [*words, "<>", "x"]
    assert python_command(entrypoint, ["<>"]) == words


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 train.py && echo done",
        "python3 train.py --out $HOME",
        "A=1 python3 train.py",
        "bash train.sh",
        "python3 -c pass",
        "python3 -m",
        "python3",
        "torchrun train.py",
        "python3 -m torch.distributed.run train.py",
        "python3 -m detslurm.launch.torch_distributed train.py",
        "model_def:Trial",
        [],
    ],
)
def test_refused(entrypoint: Any) -> None:
    """What a shell reads, and launchers, need processes of their own."""
    assert python_command(entrypoint) is None
    if entrypoint:
        with pytest.raises(ConfigErrors, match="one Python command"):
            load_experiment(BASE | {"entrypoint": entrypoint, "max_restarts": 0})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"record": {"from": ["wandb"]}}, "record needs a hook"),
        ({"preempt_signal": "SIGUSR1"}, "preempt_signal needs a hook"),
        ({"slurm": {"warm_start": True, "container_prefix": ["x"]}}, "a container of its own"),
    ],
)
def test_combinations(more: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigErrors, match=expected):
        load_experiment({**BASE, "entrypoint": "python3 t.py", **more})
