"""Hyperparameter importance by Optuna's PED-ANOVA, from a process of its own.

`python -m detslurm.sdk.searches.importance` reads `Results` as JSON from stdin and writes
`Importance` to stdout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from detslurm._base import pythonpath
from detslurm.config.points import varying
from detslurm.config.spaces import is_choice
from detslurm.searcher.optuna.space import distribution, position


class Results(msgspec.Struct, frozen=True):
    """Trials with their dotted hyperparameters and their best values of the metric."""

    space: dict[str, Any]
    smaller_is_better: bool
    trials: list[tuple[dict[str, Any], float]]


class Importance(msgspec.Struct, frozen=True):
    """The share of each hyperparameter, all together 1; or the problem that prevents it."""

    shares: dict[str, float] = {}
    problem: str | None = None


def ped_anova(results: Results) -> Importance:
    """The importance of hyperparameters; this process imports no Optuna."""
    argv = [sys.executable, "-P", "-m", "detslurm.sdk.searches.importance"]
    data, env = msgspec.json.encode(results), pythonpath.own_environment(os.environ)
    done = subprocess.run(argv, env=env, input=data, capture_output=True, check=False)
    try:
        return msgspec.json.decode(done.stdout, type=Importance)
    except msgspec.DecodeError:
        lines = done.stderr.decode(errors="replace").splitlines()
        return Importance(problem=lines[-1] if lines else f"exit status {done.returncode}")


def _measure(results: Results) -> Importance:
    try:
        import optuna
    except ImportError as error:
        problem = f"Optuna can't be imported ({error}): pip install 'detslurm[optuna]'"
        return Importance(problem=problem)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # What only some trials have can't be compared by it.
    drawn = {".".join(r): spec for r, spec in varying(results.space) if not is_choice(spec)}
    kinds = {name: distribution(spec) for name, spec in drawn.items()}
    study = optuna.create_study(direction="minimize" if results.smaller_is_better else "maximize")
    try:
        for hparams, value in results.trials:
            params = {name: _value(spec, hparams[name]) for name, spec in drawn.items()}
            trial = optuna.trial.create_trial(params=params, distributions=kinds, value=value)
            study.add_trial(trial)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except KeyError as error:
        return Importance(problem=f"some trials have no hyperparameter {error}")
    except (ValueError, TypeError) as error:
        return Importance(problem=str(error))
    if not shares:
        return Importance(problem="too few trials have a result")
    return Importance({name: float(share) for name, share in shares.items()})


def _value(spec: Mapping[str, Any], value: Any) -> Any:
    return position(spec["vals"], value) if spec["type"] == "categorical" else value


def main() -> int:
    """Measure the results on stdin."""
    pythonpath.append_what_is_aside()
    results = msgspec.json.decode(sys.stdin.buffer.read(), type=Results)
    sys.stdout.buffer.write(msgspec.json.encode(_measure(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
