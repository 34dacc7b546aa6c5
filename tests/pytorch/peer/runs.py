"""Trains small trials in many ways: `python runs.py FILE` writes what happens in each as JSON.

It runs unchanged with Determined, and with detslurm by `python -m detslurm.compat runs.py FILE`.
determined-0.38.1.json is what it gave with Determined 0.38.1; `record.py` makes it again.
"""

import json
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import determined as det
import numpy as np
import torch
from determined import pytorch
from trials import (
    Bare,
    Clipped,
    Evaluated,
    NoBatchOfItsOwn,
    Numbers,
    OwnTime,
    Pair,
    Plain,
    Reduced,
    Scaled,
    Scheduled,
    Summed,
    Trial,
    Uneven,
    WholeDataset,
    evaluating,
    events,
    odd,
    raising,
    returning,
    say,
)

Batch, Epoch = pytorch.Batch, pytorch.Epoch

RUNS = {
    "nothing is due": {},
    "reports only": {"reporting_period": Batch(4)},
    "all periods": {
        "validation_period": Batch(3), "checkpoint_period": Batch(5), "reporting_period": Batch(4),
        "max_length": Batch(15),
    },
    "epochs": {
        "max_length": Epoch(3), "validation_period": Epoch(2), "checkpoint_period": Epoch(1),
        "reporting_period": Epoch(1),
    },
    "epochs within batches": {
        "max_length": Batch(16), "validation_period": Epoch(1), "reporting_period": Batch(5),
    },
    "containers": {
        "validation_period": Batch([2, 5]), "checkpoint_period": Epoch([1]),
        "reporting_period": Batch((3, 4, 100)), "max_length": Epoch(2),
    },
    "policy all": {"validation_period": Batch(4), "checkpoint_policy": "all"},
    "validation and checkpoint together": {
        "validation_period": Batch(3), "checkpoint_period": Batch(3), "checkpoint_policy": "all",
        "reporting_period": Batch(3),
    },
    "no report": {"reporting_period": None, "validation_period": Batch(4)},
    "a period of nothing": {"validation_period": Batch(0), "max_length": Batch(2)},
    "a negative period": {"checkpoint_period": Batch(-1), "max_length": Batch(2)},
    "step zero validation": {"step_zero_validation": True, "max_length": Batch(2)},
    "step zero and policy all": {
        "step_zero_validation": True, "max_length": Batch(2), "checkpoint_policy": "all",
    },
    "test mode": {"test_mode": True, "validation_period": Batch(2)},
    "aggregation": {"aggregation": 2, "reporting_period": Batch(3)},
    "aggregation, summed": {"kind": Summed, "aggregation": 3},
    "aggregation and epochs": {
        "aggregation": 2, "max_length": Epoch(2), "checkpoint_period": Epoch(1),
    },
    "schedulers": {"kind": Scheduled, "max_length": Epoch(3)},
    "schedulers, aggregation 2": {"kind": Scheduled, "aggregation": 2, "max_length": Epoch(3)},
    "schedulers, aggregation 3": {"kind": Scheduled, "aggregation": 3, "max_length": Epoch(3)},
    "clipped": {"kind": Clipped, "aggregation": 2},
    "reducers": {"kind": Reduced, "reporting_period": Batch(4), "validation_period": Batch(6)},
    "evaluation reducers": {"kind": Evaluated, "max_length": Batch(2)},
    "whole data set": {"kind": WholeDataset, "validation_period": Batch(5)},
    "a bare loss": {"kind": Bare, "max_length": Batch(2)},
    "numbers of all types": {"kind": Numbers, "reporting_period": Batch(5)},
    "text": {"kind": returning(x="abc"), "max_length": Batch(2)},
    "a list": {"kind": returning(x=[1, 2]), "max_length": Batch(2)},
    "an array": {"kind": returning(x=np.array([1.0, 2.0])), "max_length": Batch(2)},
    "a tensor of integers": {"kind": returning(x=torch.tensor([1, 2])), "max_length": Batch(2)},
    "a dict": {"kind": returning(x={"y": 1}), "max_length": Batch(2)},
    "arrays": {"kind": evaluating(*[np.ones(3)] * 3), "max_length": Batch(2)},
    "matrices": {
        "kind": evaluating(*torch.arange(12.0).reshape(3, 2, 2)), "max_length": Batch(2),
    },
    "numbers": {"kind": evaluating(1, 2.0, True), "max_length": Batch(2)},
    "lists": {"kind": evaluating([1, 2], [1, 2], [1, 2]), "max_length": Batch(2)},
    "own batches and epochs": {"kind": OwnTime, "max_length": Batch(2)},
    "a scaler": {"kind": Scaled, "max_length": Batch(3)},
    "two models": {"kind": Pair, "aggregation": 2},
    "an old hook": {"kind": NoBatchOfItsOwn},
    "torch's loader": {"kind": Plain, "max_length": Epoch(1), "validation_period": Epoch(1)},
    "uneven batches": {"kind": Uneven, "reporting_period": Epoch(1)},
    **{
        f"an error in {where}": {"kind": raising(where, OSError("broken")), "max_length": Batch(2)}
        for where in (
            "train_batch", "evaluate_batch", "build_training_data_loader", "build_callbacks",
            "on_trial_startup", "on_training_start", "on_training_workload_end",
            "on_validation_end", "on_checkpoint_save_start", "on_checkpoint_write_end",
            "on_checkpoint_upload_end", "on_trial_shutdown",
        )
    },
    **{
        f"InvalidHP in {where}": {
            "kind": raising(where, det.InvalidHP("no good")), "max_length": Batch(2),
        }
        for where in (
            "train_batch", "evaluate_batch", "build_training_data_loader", "on_training_start",
            "on_training_workload_end", "on_validation_end", "on_trial_shutdown",
        )
    },
}  # fmt: skip

NOBODY = "00000000-0000-0000-0000-000000000000"
MISTAKES = {
    "no length": {"max_length": None},
    "a bare length": {"max_length": 9},
    "a length of many": {"max_length": Batch([9])},
    "nothing to evaluate": {"kind": odd(evaluate_batch=pytorch.PyTorchTrial.evaluate_batch)},
    "two ways to evaluate": {"kind": odd(evaluate_full_dataset=lambda self, loader: {})},
    "other metrics in each batch": {
        "kind": odd(evaluate_batch=lambda self, batch, batch_idx: {str(batch_idx): 1.0}),
    },
    "reducers of others": {"kind": odd(evaluation_reducer=lambda s: {"x": pytorch.Reducer.AVG})},
    "evaluating to text": {"kind": evaluating("a", "b", "c")},
    "evaluating to None": {"kind": evaluating(None, None, None)},
    "evaluating to dicts": {"kind": evaluating({}, {}, {})},
    "no validation data": {
        "kind": odd(build_validation_data_loader=lambda self: pytorch.DataLoader([])),
    },
    "no loader": {"kind": odd(build_training_data_loader=lambda self: [1, 2])},
    "a checkpoint that is not there": {"latest_checkpoint": NOBODY},
    "auto_zero_grads, aggregation": {
        "kind": odd(stepping=lambda self: {"auto_zero_grads": False}), "aggregation": 2,
    },
    "no backward pass": {"kind": odd(wrapping=lambda self: {"backward_passes_per_step": 0})},
}  # fmt: skip
"""Here only the type of what is raised is noted."""


def train(kind=Trial, aggregation=1, **arguments):
    arguments = {"max_length": Batch(9), "checkpoint_policy": "none"} | arguments
    with pytorch.init(hparams={"a": 1}, aggregation_frequency=aggregation) as context:
        trial = kind(context)
        pytorch.Trainer(trial, context).fit(**arguments)
    say("weights", trial.model[0].weight)


def run(arguments):
    """Everything that happened."""
    events.clear()
    signal.alarm(300)  # Determined never ends where data runs out; the first run imports for long
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            train(**arguments)
        except BaseException as err:
            say("raised", type(err).__name__)
    signal.alarm(0)
    return list(events)


def late(*args):
    raise TimeoutError


def main(file):
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, late)
    os.chdir(tempfile.mkdtemp())
    found = {name: run(arguments) for name, arguments in RUNS.items()}
    found |= {name: run(arguments)[-1:] for name, arguments in MISTAKES.items()}
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=',:')}" for k, v in found.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
