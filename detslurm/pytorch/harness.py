"""Train a Trial class that a configuration names: `python3 -m detslurm.pytorch.harness m:Class`.

The launchers start it for `--trial`, and for an `entrypoint` of that form. The configuration has
the arguments of `Trainer.fit()`: periods, policy, `scheduling_unit`, aggregation.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detslurm._base.info import get_cluster_info
from detslurm.pytorch._base_trial import BaseTrial
from detslurm.pytorch._plan import TrainingPlan, unit
from detslurm.pytorch._schedule import Schedule
from detslurm.pytorch._units import NEVER, Batch, Record, TrainUnit


def main(argv: Sequence[str]) -> int:
    """Train; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(name)s: %(message)s")
    if len(argv) != 1:
        print("usage: python3 -m detslurm.pytorch.harness MODULE:CLASS", file=sys.stderr)
        return 2
    info = get_cluster_info()
    if info is None:
        print(
            f"{argv[0]}: a Trial class by its name needs a job with a configuration; in a script of"
            " your own use detslurm.pytorch.init() and Trainer.fit()",
            file=sys.stderr,
        )
        return 1
    config = info.trial._config
    kind = _kept_class(argv[0])
    home = importlib.import_module(kind._home)
    with home.init(hparams=info.trial.hparams, **kind._of_init(config)) as context:
        trainer = home.Trainer(kind(context), context)
        sizes = context._batch_sizes
        whole = plan(config, sizes[0] if sizes else None)
        wanted = replace(whole, latest_checkpoint=info.latest_checkpoint)
        trainer._run(trainer._managed_plan(wanted))
    return 0


def _kept_class(spec: str) -> Any:
    """The Trial class, and all that it imports kept from later collections: each would look at all
    of torch."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, *usual[1:])  # not off: a user's module may compute
    found = trial_class(spec)
    gc.collect()  # frozen objects are never freed
    gc.freeze()
    gc.set_threshold(*usual)
    return found


def trial_class(spec: str) -> Any:
    """The class that `module:Class` names. Raises `ValueError` when it is no Trial class."""
    module, _, name = spec.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    there = vars(importlib.import_module(module))
    found = there.get(name)
    if not (isinstance(found, type) and issubclass(found, BaseTrial)):
        what = "it is no PyTorchTrial or DeepSpeedTrial"
        if found is None:
            what = "there is no such class in it"
        near = difflib.get_close_matches(name, there, 1) if found is None else None
        raise ValueError(f"{spec}: {what}" + (f"; did you mean {near[0]}?" if near else ""))
    return found


def plan(config: Mapping[str, Any], global_batch_size: int | None) -> TrainingPlan:
    """The plan that a configuration describes. Raises `ValueError`."""
    return TrainingPlan(
        schedule=Schedule(
            _period(config, "min_validation_period", global_batch_size),
            _period(config, "min_checkpoint_period", global_batch_size),
            Batch(config.get("scheduling_unit") or 100),
        ),
        policy=config.get("checkpoint_policy") or "best",
        step_zero_validation=bool(config.get("perform_initial_validation")),
        average_training_metrics=(config.get("optimizations") or {}).get(
            "average_training_metrics", True
        ),
        is_trainer=False,
    )


def _period(config: Mapping[str, Any], name: str, global_batch_size: int | None) -> TrainUnit:
    found = unit(config.get(name) or {})
    if found is None or found.value == 0:
        return NEVER
    if isinstance(found, Record):
        if global_batch_size is None:
            raise ValueError(f"{name} in records needs the hyperparameter global_batch_size")
        return found.batches(global_batch_size)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
