"""Trials that do nothing, one after another in one job: with and without `slurm.warm_start`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.bench import Bench
from benchmarks.report import Row
from detslurm.store import Store, fold_experiment
from tests.cluster import wait_for

TRIALS = 16
PATIENCE = 600.0
CONFIG = """\
    entrypoint: python3 train.py
    hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
    searcher: {{name: random, metric: loss, max_trials: {trials}}}
    slurm: {{slot_type: cpu, trials_per_job: {trials}, warm_start: {warm}}}
    """


def measure(bench: Bench) -> Iterator[Row]:
    """From one trial's start to the next one's, beside the same with new processes."""
    budgets = {"no-op": ("", 25, None), "import torch": ("import torch\n", None, 0.15)}
    for what, (script, most, most_ratio) in budgets.items():
        warm, cold = (_milliseconds(bench, script, warm) for warm in (True, False))
        yield Row(
            what=f"{what} trial after the first, warm_start", ours=warm, unit="ms",
            anchor=cold, peer="a new process each", most=most, most_ratio=most_ratio,
        )  # fmt: skip


def _milliseconds(bench: Bench, script: str, warm: bool) -> float:
    user = bench.user
    folder = bench.folder()
    (folder / "train.py").write_text(script)
    config = folder / "experiment.yaml"
    config.write_text(textwrap.dedent(CONFIG).format(trials=TRIALS, warm=str(warm).lower()))
    user.own(folder)
    said = user.run("detslurm", "submit", str(config), str(folder), "--json").stdout
    wait_for(lambda: not bench.cluster.queued(user.name), PATIENCE, "all trials to end")
    store = Store(Path(user.env["DETSLURM_ROOT"]))
    experiment = store.experiment(json.loads(said)["data"]["experiment_id"])
    states = fold_experiment(experiment).trial_states
    if states != {"COMPLETED": TRIALS}:
        raise RuntimeError(f"the trials did not end well: {states}")
    first = experiment.created().first_trial
    trials = [experiment.trial(first + n) for n in range(TRIALS)]
    starts = [trial.runs()[0].start.time or 0.0 for trial in trials]
    # The second waits for the imports.
    return 1e3 * median(later - earlier for earlier, later in pairwise(starts[2:]))
