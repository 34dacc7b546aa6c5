"""A search while somebody preempts, requeues, kills, and takes power and store away."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from detslurm.searcher import Search
from tests.cluster import Cluster, nodes
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.hostile import Hostile
from tests.e2e.overlap import no_overlap
from tests.e2e.test_search import assert_sound, project, state_of
from tests.searcher import drive

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1500)]

TRIALS = 24
"""`--chaos N` runs N trials instead, with outages that last longer than time limits."""

# A network with one hidden layer on scikit-learn's digits, in numpy alone: it starts fast.
DIGITS = """\
    import importlib.util
    import os
    import pathlib
    import sys
    import time

    import numpy as np

    PACKAGE = pathlib.Path(importlib.util.find_spec("sklearn").origin).parent
    DATA = PACKAGE / "datasets" / "data" / "digits.csv.gz"


    def load():
        table = np.loadtxt(DATA, delimiter=",", dtype=np.float32)
        order = np.random.RandomState(0).permutation(len(table))
        images, labels = table[order, :-1] / 16.0, table[order, -1].astype(int)
        return (images[300:], labels[300:]), (images[:300], labels[:300])


    def output(model, images):
        return np.maximum(images @ model["a"], 0) @ model["b"]


    def evaluate(model, images, labels):
        scores = output(model, images)
        scores = scores - scores.max(1, keepdims=True)
        chances = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        return float(-chances[np.arange(len(labels)), labels].mean())


    def train_epoch(model, images, labels, rate, order):
        for part in np.array_split(order, 30):
            x, hidden = images[part], np.maximum(images[part] @ model["a"], 0)
            scores = hidden @ model["b"]
            chances = np.exp(scores - scores.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
            chances[np.arange(len(part)), labels[part]] -= 1
            back = (chances @ model["b"].T) * (hidden > 0)
            model["b"] -= rate * hidden.T @ chances / len(part)
            model["a"] -= rate * x.T @ back / len(part)


    def main():
        import detslurm as det

        if os.environ["SLURMD_NODENAME"] == os.environ.get("CHAOS_BAD_NODE"):
            sys.exit("the device does not answer")
        info = det.get_cluster_info()
        hparams, seed = info.trial.hparams, info.trial.trial_seed
        train, test = load()
        start = np.random.RandomState(seed)
        model = {
            "a": start.normal(0, 0.1, (64, hparams["width"])),
            "b": start.normal(0, 0.1, (hparams["width"], 10)),
        }
        with det.core.init() as core:
            epoch = 0

            def save():
                with core.checkpoint.store_path({"steps_completed": epoch}) as (path, _):
                    np.savez(path / "model.npz", epoch=epoch, **model)

            if info.latest_checkpoint:
                with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                    with np.load(path / "model.npz") as saved:
                        epoch = int(saved["epoch"])
                        model = {"a": saved["a"], "b": saved["b"]}
            for op in core.searcher.operations():
                while epoch < op.length:
                    order = np.random.RandomState(seed % 1000 + epoch).permutation(len(train[0]))
                    train_epoch(model, *train, hparams["rate"], order)
                    epoch += 1
                    time.sleep(0.2)
                    if epoch < op.length and core.preempt.should_preempt():
                        save()
                        return
                loss = evaluate(model, *test)
                core.train.report_validation_metrics(epoch, {"loss": loss})
                save()
                op.report_completed(loss)


    if __name__ == "__main__":
        main()
"""

SEARCH = """\
    searcher:
      name: adaptive_asha
      metric: loss
      max_length: {epochs: 9}
      divisor: 3
      max_rungs: 3
      max_concurrent_trials: 8
    hyperparameters:
      rate: {type: log, base: 10, minval: -3, maxval: 0}
      width: {type: int, minval: 4, maxval: 32}
    reproducibility: {experiment_seed: 11}
    resources: {resource_pool: low}
    max_restarts: 20
    """

# The clocks of two nodes are off by two hours. Slurm's daemons know the time: munge insists on it.
SETUP = """\
export LD_PRELOAD={faults} CHAOS_FULL={full} CHAOS_BAD_NODE={bad}
case "$SLURMD_NODENAME" in n2) export CHAOS_CLOCK=7200;; n3) export CHAOS_CLOCK=-7200;; esac
"""


def chaotic(desk: Desk, folder: Path, *, bad: str) -> list[str]:
    """The setup of jobs whose nodes have wrong clocks and full quotas, and one of which fails."""
    if shutil.which("cc") is None:
        pytest.skip("no chaos: there is no C compiler")
    source = Path(__file__).with_name("faults.c")
    faults = desk.user.own(folder) / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", faults, source, "-ldl"], check=True)
    faults.chmod(0o755)
    return SETUP.format(faults=faults, full=folder / "full", bad=bad).splitlines()


def undisturbed_samples(desk: Desk, number: int, trials: int) -> list[Any]:
    """The hyperparameters of all trials where nothing comes between."""
    search = Search(desk.experiment(number).config())
    state = drive.run(search, lambda index, _: index / trials, workers=8)
    return [search.plan(state, index).hparams for index in range(state.created)]


def test_a_search_survives_everything(
    desk: Desk, site: Cluster, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """All trials end COMPLETED, each accounted for; the best one's checkpoint keeps its word;
    the samples are those of the same search with nothing between."""
    longer = pytestconfig.getoption("--chaos")
    trials = longer or TRIALS
    folder = desk.user.folder_in(site.layout.shared, "faults")
    options = [f"searcher.max_trials={trials}"]
    setup = json.dumps(chaotic(desk, folder, bad="n4" if longer else ""))
    options.append(f"slurm.setup={setup}")
    if longer:
        options += ["slurm.time=00:03:00", "slurm.signal_lead=30"]
    number = desk.submit(project(desk, DIGITS, SEARCH, name="hostile"), *options)
    away = 150.0 if longer else 20.0
    hostile = Hostile(
        site, desk.user, desk.store.path, seed=7, most=trials, full=folder / "full", away=away
    )
    with no_overlap(site), hostile:
        desk.wait_for_state(number, "COMPLETED", "ERROR", timeout=1200)
    state = assert_sound(desk, number)
    assert state.created == trials
    unfinished = [i for i, t in enumerate(state.trials) if t.outcome != "completed"]
    assert not unfinished, "\n\n".join(history(desk, number, index) for index in unfinished)
    reached = Counter(trial.reached for trial in state.trials)
    assert set(reached) == {1, 3, 9}
    for index, trial in enumerate(state.trials):
        assert desk.trial(number, index).steps == trial.reached, history(desk, number, index)
    assert_the_best_keeps_its_word(desk, number, tmp_path)
    _wait_for_the_last(site, number)
    wait_for(lambda: not nodes.job_processes(site.layout), PATIENCE, "the end of all processes")
    kinds = ["preempt", "requeue", "kill", "kill_agent", "cut_power"]
    kinds += ["hide_store", "fill_quota", "lose_record", *(["lose_event"] if longer else [])]
    assert min(hostile.done[kind] for kind in kinds) > 0
    samples = [trial.hparams for trial in desk.view(number).trials]
    assert samples == undisturbed_samples(desk, number, trials)


def history(desk: Desk, number: int, index: int) -> str:
    """All that its search recorded of a trial, and its own files: starts, ends and logs of runs."""
    folder = desk.experiment(number).search
    facts = [path.read_text()[9:] for path in sorted(folder.glob("*.json"))]
    lines = [fact for fact in facts if f'"trial":{index},' in fact or f'"trial":{index}}}' in fact]
    for path in sorted(desk.trial_dir(number, index).path.iterdir()):
        lines += [path.name, path.read_text(errors="replace")]
    return "\n".join([f"trial {index}:", *lines])


def _left(cluster: Cluster, number: int) -> str:
    return cluster.command("squeue", "-hr", "-n", f"det-{number}", "-o", "%i %T %r %N")


def _wait_for_the_last(cluster: Cluster, number: int) -> None:
    """All workers leave the queue by themselves."""
    try:
        wait_for(lambda: not _left(cluster, number), PATIENCE, "an empty queue")
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{_left(cluster, number)}") from None


def assert_the_best_keeps_its_word(desk: Desk, number: int, folder: Path) -> None:
    """The checkpoint of the best trial evaluates to the metric that the search was told."""
    import numpy as np

    view = desk.view(number)
    assert view.best_trial is not None
    trial = desk.trial_by_id(number, view.best_trial)
    best = trial.best_validation
    assert best is not None and best.value is not None
    saved = [c for c in trial.checkpoints if c.steps == best.steps]
    path = desk.store.path / "checkpoints" / saved[-1].uuid / "model.npz"
    (folder / "train.py").write_text("\n".join(line[4:] for line in DIGITS.splitlines()))
    code = runpy.run_path(str(folder / "train.py"), run_name="train")
    with np.load(path) as model:
        loss = code["evaluate"](dict(model), *code["load"]()[1])
    assert loss == pytest.approx(best.value, rel=1e-9)
    assert min(t.metric or 9 for t in state_of(desk, number).trials) == pytest.approx(best.value)
