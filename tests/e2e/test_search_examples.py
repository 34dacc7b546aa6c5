"""The search examples, made short, on the real cluster: each method does what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.searcher import Search, State
from detslurm.store import EventLog
from tests.e2e.conftest import copy_example
from tests.e2e.desk import Desk

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PATIENCE = 400.0

SHORT = {
    "grid": ["hyperparameters.learning_rate.count=2", "hyperparameters.hidden=16"],
    "random": ["searcher.max_trials=2"],
    "adaptive_asha": ["searcher.max_trials=2"],
    "adaptive_asha_stopping": ["searcher.max_trials=2", "searcher.max_time=4"],
    "pbt": ["searcher.population_size=4", "searcher.num_rounds=2"],
    "optuna": ["searcher.max_trials=3", "searcher.max_concurrent_trials=2"],
}
EPOCHS = {
    "grid": "searcher.max_length.epochs=2",
    "random": "searcher.max_length.epochs=2",
    "adaptive_asha": "searcher.max_length.epochs=4",
    "adaptive_asha_stopping": "hyperparameters.max_epochs=4",
    "pbt": "searcher.length_per_round.epochs=1",
    "optuna": "searcher.max_length.epochs=3",
}
HALVING = ["searcher.divisor=2", "searcher.max_rungs=2", "searcher.mode=aggressive"]


def state_of(desk: Desk, number: int) -> State:
    experiment = desk.experiment(number)
    return EventLog(experiment.search, Search(experiment.config())).catch_up()


# Learns by a formula, as fast as it starts, and asks for its length as the example does.
FORMULA = """\
    import json
    import detslurm as det

    info = det.get_cluster_info()
    hparams, epoch = info.trial.hparams, 0
    with det.core.init() as core:
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                epoch = json.loads((path / "epoch").read_text())
        for op in core.searcher.operations():
            while epoch < op.length:
                epoch += 1
                with core.checkpoint.store_path({"steps_completed": epoch}) as (path, _):
                    (path / "epoch").write_text(str(epoch))
                accuracy = 1 - 1 / (1 + epoch * hparams["learning_rate"] * hparams["hidden"])
                core.train.report_validation_metrics(epoch, {"accuracy": accuracy})
                if core.preempt.should_preempt():
                    raise SystemExit
            op.report_completed(accuracy)
"""
WITH_TORCH = ("adaptive_asha", "adaptive_asha_stopping")
"""Between them they take every way through the example's script."""


@pytest.mark.nightly
@pytest.mark.slow
def test_every_method_on_digits(desk: Desk) -> None:
    """All six side by side: each completes, with the trials and lengths of its method."""
    folder = copy_example(desk, "search")
    numbers = {}
    for name in sorted(SHORT, key=lambda name: name not in WITH_TORCH):
        if name not in WITH_TORCH:
            desk.write("search/train.py", FORMULA)
        more = HALVING if name.startswith("adaptive") else []
        args = [*SHORT[name], EPOCHS[name], *more, "reproducibility.experiment_seed=3"]
        numbers[name] = desk.submit(folder / f"{name}.yaml", *args)
    for command in ("preview-search", "simulate"):
        said = desk.run(command, str(folder / "pbt.yaml")).stdout
        assert "train for 15 epochs" in said
    for number in numbers.values():
        desk.wait_for_state(number, "COMPLETED", timeout=PATIENCE)

    for name, trials in (("grid", 2), ("random", 2)):
        view = desk.view(numbers[name])
        assert [trial.state for trial in view.trials] == ["COMPLETED"] * trials
        assert len(desk.metrics(numbers[name], "validation")) == 2

    promoted = state_of(desk, numbers["adaptive_asha"])
    (bracket,) = promoted.brackets
    assert [rung.units for rung in bracket.rungs] == [2, 4]
    assert [len(rung.results) for rung in bracket.rungs] == [2, 1]

    stopped = state_of(desk, numbers["adaptive_asha_stopping"])
    assert len(stopped.trials) == 2
    assert {trial.outcome for trial in stopped.trials} <= {"completed", "stopped"}
    assert any(trial.rung == 1 for trial in stopped.trials)

    population = state_of(desk, numbers["pbt"])
    copies = [trial for trial in population.trials if trial.source is not None]
    assert len(population.trials) == 5 and len(copies) == 1
    assert max(trial.reached for trial in population.trials) == 2

    suggested = state_of(desk, numbers["optuna"])
    assert suggested.history is not None
    assert sorted(suggested.history.trials) == [0, 1, 2]
    assert {known.state for known in suggested.history.trials.values()} <= {"complete", "pruned"}
    rates = {known.hparams["learning_rate"] for known in suggested.history.trials.values()}
    assert len(rates) == 3


@pytest.mark.slow
def test_a_method_of_ones_own(desk: Desk) -> None:
    """The climber trains its rounds one after the other and names the best sample."""
    folder: Path = copy_example(desk, "search")
    desk.write("search/train.py", FORMULA)
    done = desk.user.run("python3", "custom_search.py", "2", "2", "2", cwd=folder)
    assert "round 2 of 2" in done.stdout and "the best: {'accuracy': 0." in done.stdout
    assert "rounds" in desk.user.run("python3", "custom_search.py", "--help", cwd=folder).stdout
    number = int(done.stdout.rsplit("experiment ", 1)[1])
    desk.wait_for_state(number, "COMPLETED")
    trials = desk.view(number).trials
    assert [trial.state for trial in trials] == ["COMPLETED"] * 4
