"""Look before queueing: what would fail hours later in the queue is said now."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def sampler_problems(config: Mapping[str, Any]) -> list[str]:
    """Why Optuna, as this Python has it, can't draw the samples that a configuration asks for."""
    if config["searcher"]["name"] != "optuna":
        return []
    question = {
        "searcher": config["searcher"],
        "space": config["hyperparameters"],
        "seed": config["reproducibility"]["experiment_seed"],
        "history": {},
        "wanted": [0],
    }
    # What a job does for its first trial; in a process of its own, for Optuna is heavy.
    argv = [sys.executable, "-P", "-m", "detslurm.exec.sampling"]
    done = subprocess.run(
        argv, input=json.dumps(question), capture_output=True, text=True, check=False
    )
    try:
        problem = json.loads(done.stdout).get("error")
    except ValueError:
        problem = done.stderr.strip() or f"the sampler ended with status {done.returncode}"
    return [] if problem is None else [str(problem)]
