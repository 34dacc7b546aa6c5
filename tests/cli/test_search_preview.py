"""preview-search and simulate: what a search will do, before anything is queued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detslurm.cli.output.printing import human_time
from detslurm.config import load_experiment
from detslurm.sdk.submission.planning import trials_and_jobs
from detslurm.slurm.plan import plan_job
from detslurm.store import RunLog
from tests.cli.conftest import CommandResult, Detslurm
from tests.sdk.scenes import Scene

SPACE = "{x: {type: double, minval: 0, maxval: 1}}"


@pytest.fixture
def ask(tmp_path: Path, scene: Scene, detslurm: Detslurm) -> Any:
    """`detslurm COMMAND experiment.yaml ARGS` for a searcher."""

    def run(command: str, searcher: str, *args: object, more: str = "") -> CommandResult:
        path = tmp_path / "experiment.yaml"
        path.write_text(
            f"entrypoint: python3 train.py\nsearcher: {{metric: loss, {searcher}}}\n"
            f"hyperparameters: {SPACE}\nreproducibility: {{experiment_seed: 1}}\n{more}"
        )
        return detslurm(command, path, *args)

    return run


def rows(result: CommandResult) -> list[tuple[int, int | None]]:
    return [(row["trials"], row["units"]) for row in result.data["rows"]]


HALVING = "divisor: 3, time_metric: batches, max_time: 900"


@pytest.mark.parametrize(
    ("searcher", "expected"),
    [
        (f"name: adaptive_asha, max_trials: 10, {HALVING}", [(5, 100), (3, 300), (2, 900)]),
        (
            "name: adaptive_asha, max_trials: 10, divisor: 3, max_length: {batches: 900}",
            [(5, 100), (4, 300), (1, 900)],
        ),
        (
            f"name: async_halving, num_rungs: 3, max_trials: 12, {HALVING}",
            [(8, 100), (3, 300), (1, 900)],
        ),
        ("name: random, max_trials: 7", [(7, None)]),
        ("name: random, max_trials: 7, max_length: {epochs: 3}", [(7, 3)]),
        ("name: single, max_length: 40", [(1, 40)]),
        ("name: optuna, max_trials: 9, max_length: {batches: 5}", [(9, 5)]),
        (
            "name: pbt, population_size: 10, num_rounds: 3, length_per_round: {batches: 100}",
            [(2, 100), (2, 200), (10, 300)],
        ),
    ],
)
def test_a_preview_counts_trials_by_length(
    ask: Any, searcher: str, expected: list[tuple[int, int | None]]
) -> None:
    """Worked values for each searcher; promotion lets nobody go on from a rung of two."""
    assert rows(ask("preview-search", searcher, "--json")) == expected


def test_a_preview_is_a_table(ask: Any) -> None:
    """The configuration, what trials train, the brackets with their rungs, and the sum."""
    result = ask("preview-search", f"name: adaptive_asha, max_trials: 10, {HALVING}")
    assert result.status == 0
    lines = result.out.splitlines()
    assert "Using search configuration:" in lines
    assert "      5 | train for 100 batches" in lines
    assert "       0 |      7 |       7 | 100, 300, 900" in lines
    assert "10 trials, 3,200 batches; 10 at once" in lines


def test_a_preview_shows_what_was_written(ask: Any) -> None:
    """The user's own keys in their order, and none that they stand for."""
    searcher = "name: adaptive_asha, max_trials: 10, divisor: 3, max_length: {batches: 900}"
    result = ask("preview-search", searcher, "--config", "searcher.mode=aggressive").out
    lines = result.splitlines()
    first = lines.index("Using search configuration:") + 1
    keys = [line.split(":")[0].strip() for line in lines[first : lines.index("")]]
    assert keys == ["metric", "name", "max_trials", "divisor", "max_length", "batches", "mode"]


def test_a_preview_without_lengths(ask: Any) -> None:
    """Trials train to completion, however long that is; a simulation says what it takes for it."""
    result = ask("simulate", "name: random, max_trials: 3", "--units", 30).out
    assert "sets no length: each trial was assumed to train for 30 units (--units)" in result
    assert "no length" not in ask("simulate", "name: random, max_trials: 3, max_length: 5").out
    result = ask("preview-search", "name: random, max_trials: 3")
    assert "      3 | train to completion" in result.out.splitlines()
    assert "3 trials; 3 at once" in result.out.splitlines()


def test_a_rule_may_end_the_search(ask: Any) -> None:
    """A preview counts all trials, and says that they are the most; a simulation ends by it."""
    searcher = "name: random, max_trials: 200, max_length: 9, stop: {target: 0.4}"
    assert "at most 200 trials, 1,800 units; 16 at once" in ask("preview-search", searcher).out
    assert "ended by: searcher.stop.target: trial " in ask("simulate", searcher).out


def test_a_custom_search_has_no_preview(ask: Any) -> None:
    """The preview says why; a simulation is refused."""
    assert "decides while it runs" in ask("preview-search", "name: custom").out
    result = ask("simulate", "name: custom")
    assert result.status == 2
    assert "custom search has no preview" in result.err


ASHA = f"name: async_halving, num_rungs: 3, max_trials: 27, max_concurrent_trials: 8, {HALVING}"


def test_fewer_slots_take_longer(ask: Any) -> None:
    """The same search on 2 slots and on 8: no less work, all trials, a longer makespan."""
    wide, narrow = (ask("simulate", ASHA, "--slots", n, "--json").data for n in (8, 2))
    assert wide["workers"] == 8 and narrow["workers"] == 2
    assert wide["trials"] == narrow["trials"] == 27
    assert narrow["seconds"] > 2 * wide["seconds"]
    assert sum(row["trials"] for row in wide["rows"]) == 27
    assert {row["units"] for row in wide["rows"]} == {100, 300, 900}
    assert 0.5 < narrow["busy"] <= 1


def test_a_simulation_repeats_itself(ask: Any) -> None:
    """The seed decides all; another one gives another search."""
    once, again = (ask("simulate", ASHA, "--json").data for _ in range(2))
    assert once == again
    seed = ("--config", "reproducibility.experiment_seed=2")
    assert ask("simulate", ASHA, *seed, "--json").data != once


def test_slots_are_shared_out_by_trials(ask: Any) -> None:
    """Trials of several slots, and the experiment's own limit, bound how many run at once."""
    more = "resources: {slots_per_trial: 2, max_slots: 12}\n"
    assert ask("simulate", ASHA, "--json", more=more).data["workers"] == 6
    assert ask("simulate", ASHA, "--slots", 5, "--json", more=more).data["workers"] == 2
    result = ask("simulate", ASHA, "--slots", 1, more=more)
    assert result.status == 2
    assert "less than one trial needs (2)" in result.err


@pytest.mark.parametrize(
    ("searcher", "more", "expected"),
    [
        (f"name: adaptive_asha, max_trials: 10, max_concurrent_trials: 1, {HALVING}", "", 1),
        (f"name: adaptive_asha, max_trials: 10, {HALVING}", "slurm: {trials_per_job: 4}\n", 3),
        ("name: random, max_trials: 10, max_length: 4", "slurm: {trials_per_job: 4}\n", 3),
        (
            "name: random, max_trials: 10, max_length: 4",
            "resources: {slots_per_trial: 2, max_slots: 6}\n",
            3,
        ),
    ],
)
def test_no_more_at_once_than_runs(
    ask: Any, tmp_path: Path, searcher: str, more: str, expected: int
) -> None:
    """A preview and a simulation promise what the arrays let run."""
    said = ask("preview-search", searcher, more=more).out
    assert f"; {expected} at once" in said
    assert ask("preview-search", searcher, "--json", more=more).data["concurrency"] == expected
    assert ask("simulate", searcher, "--json", more=more).data["workers"] == expected
    config = load_experiment(tmp_path / "experiment.yaml").config
    _, elements = trials_and_jobs(config.to_dict(), submit_from_jobs=True)
    arrays = plan_job(config, None, None, elements).arrays
    assert sum(min(array.throttle or array.count, array.count) for array in arrays) == expected


def test_time_is_counted_in_units_and_starts(ask: Any) -> None:
    """Each of two trials costs one start more, and three times the time is three times as long."""
    searcher = "name: random, max_trials: 2, max_length: {batches: 60}"
    base = ask("simulate", searcher, "--slots", 1, "--json").data["seconds"]
    late = ask("simulate", searcher, "--slots", 1, "--start-seconds", 7, "--json").data["seconds"]
    slow = ask("simulate", searcher, "--slots", 1, "--unit-seconds", 3, "--json").data["seconds"]
    assert late == pytest.approx(base + 14)
    assert slow == pytest.approx(3 * base)


def recorded(path: Path) -> Path:
    """Three curves of which the last is the best."""
    curves = [[[1, level], [3, level / 2], [9, level / 4]] for level in (0.9, 0.8, 0.1)]
    if path.suffix == ".json":
        path.write_text(json.dumps({f"t{n}": curve for n, curve in enumerate(curves)}))
    else:
        lines = [f"{n},{at},{m}" for n, curve in enumerate(curves) for at, m in curve]
        path.write_text("\n".join(["trial,units,metric", *lines]) + "\n")
    return path


@pytest.mark.parametrize("name", ["curves.csv", "curves.json"])
def test_recorded_curves_decide(ask: Any, tmp_path: Path, name: str) -> None:
    """The trial with the best curve is promoted, the others end at the first rung."""
    searcher = (
        "name: async_halving, num_rungs: 3, max_trials: 3, divisor: 3, max_length: {batches: 9}"
    )
    path = recorded(tmp_path / name)
    data = ask("simulate", searcher, "--curves", path, "--slots", 1, "--json").data
    assert [trial["units"] for trial in data["each"]] == [1, 1, 3]
    assert data["best"]["trial"] == 3
    assert data["seconds"] == data["total_units"] == 5


def test_the_curves_of_an_experiment_decide(ask: Any, scene: Scene) -> None:
    """What its trials validated at each step is what the simulated ones report."""
    experiment = scene.experiment(2)
    scene.run(experiment, 0, losses=[0.9, 0.8, 0.7], end="completed")
    scene.run(experiment, 1, losses=[0.6, 0.5, 0.4], end="completed")
    searcher = "name: random, max_trials: 2, max_length: {batches: 3}"
    data = ask("simulate", searcher, "--experiment", 1, "--json").data
    assert [trial["metric"] for trial in data["each"]] == [0.7, 0.4]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", "trial,units\n1,2\n", "no column metric"),
        ("c.csv", "trial,units,metric\n", "no curve in it"),
        ("c.csv", "trial,units,metric\n1,x,2\n", "could not convert"),
        ("c.csv", "trial,units,metric\n1,-1,2\n", "a number from 0"),
        ("c.csv", "trial,units,metric\n1,2," + "9" * 200_000, "field larger than"),
        ("c.json", f"[[[1, {'9' * 400}]]]", "too large"),
        ("c.json", "{", "Expecting"),
        ("c.json", "[1]", "a list of curves"),
        ("c.json", "[[[1]]]", "argument"),
    ],
)
def test_curves_that_are_none(
    ask: Any, tmp_path: Path, name: str, content: str, message: str
) -> None:
    """The file and what is wrong with it, status 2, no traceback."""
    path = tmp_path / name
    path.write_text(content)
    result = ask("simulate", "name: random, max_trials: 2", "--curves", path)
    assert result.status == 2
    assert message in result.err and name in result.err
    assert "Traceback" not in result.err


RUNGS = "name: async_halving, num_rungs: 3, max_trials: 3, divisor: 3"


def validated(scene: Scene, index: int, metrics: list[dict[str, float]]) -> None:
    """A run of a trial that reported these after 100, 200, ... batches."""
    experiment = scene.store.experiment(1)
    trial = experiment.trial(experiment.created().first_trial + index)
    number = trial.open_run({"hparams": {}, "time": 1.0}).run
    with RunLog.open(trial.records_path(number)) as log:
        for at, values in enumerate(metrics, 1):
            log.append({"t": "metrics", "group": "validation", "steps": 100 * at,
                        "metrics": values})  # fmt: skip
    trial.write_end(number, {"outcome": "completed", "time": 2.0})


def test_a_simulation_counts_in_its_own_units_by_its_own_metric(ask: Any, scene: Scene) -> None:
    """Whatever the recorded experiment went by: here it was random search by the loss."""
    scene.experiment(3)
    for index, (loss, accuracy) in enumerate([(0.1, 0.2), (0.5, 0.9), (0.3, 0.5)]):
        validated(scene, index, [
            {"epochs": n, "loss": loss / n, "accuracy": accuracy * n / 9} for n in range(1, 10)
        ])  # fmt: skip
    words = ("searcher.metric=accuracy", "searcher.smaller_is_better=false")
    by_accuracy = [part for word in words for part in ("--config", word)]
    for unit, whole in (("epochs", 9), ("batches", 900)):
        more = f"{RUNGS}, max_length: {{{unit}: {whole}}}"
        args = ("--experiment", 1, *by_accuracy, "--slots", 1, "--json")
        best = ask("simulate", more, *args).data["best"]
        assert best["trial"] == 2, unit
        assert best["metric"] == pytest.approx(0.9 * best["units"] / whole)
    for length, unit in (("max_length: {records: 9}", "records"),
                         ("time_metric: tokens, max_time: 9", "tokens")):  # fmt: skip
        lacking = ask("simulate", f"{RUNGS}, {length}", "--experiment", 1)
        assert lacking.status == 2, lacking.out
        assert f"the validations of experiment 1 don't report {unit!r}" in lacking.err
        assert "batches" in lacking.err and "--curves" in lacking.err


def test_of_several_validations_in_an_epoch_the_first_counts(ask: Any, scene: Scene) -> None:
    """A search hears of it when the trial arrives there."""
    scene.experiment()
    validated(scene, 0, [{"epochs": 9, "loss": loss} for loss in (0.3, 0.2, 0.4)])
    searcher = "name: random, max_trials: 1, max_length: {epochs: 9}"
    assert ask("simulate", searcher, "--experiment", 1, "--json").data["best"]["metric"] == 0.3


def test_an_experiment_without_validations_has_no_curves(ask: Any, scene: Scene) -> None:
    """It says so; and only one source of curves can be given."""
    scene.experiment()
    searcher = "name: random, max_trials: 2"
    result = ask("simulate", searcher, "--experiment", 1)
    assert result.status == 2 and "no validations with 'loss'" in result.err
    both = ask("simulate", searcher, "--experiment", 1, "--curves", __file__)
    assert both.status == 2 and "can't be combined" in both.err


def test_a_simulation_tells_the_brackets_apart(ask: Any) -> None:
    """Trials are counted rung by rung in each bracket, as the preview's brackets have them."""
    result = ask("simulate", f"name: adaptive_asha, max_trials: 10, {HALVING}")
    lines = [line.split("|") for line in result.out.splitlines() if "train for" in line]
    by_bracket: dict[int, int] = {}
    for trials, _, bracket in lines:
        by_bracket[int(bracket)] = by_bracket.get(int(bracket), 0) + int(trials)
    assert by_bracket == {0: 7, 1: 3}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (0.25, "0.25 seconds"),
        (61, "1 minute and 1 second"),
        (3600, "1 hour"),
        (90061, "1 day and 1 hour"),
    ],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    """The two largest units."""
    assert human_time(seconds) == text


def test_the_cost_comes_from_earlier_runs(ask: Any, scene: Scene) -> None:
    """The step time of completed trials of the same name and project; else the bound alone."""
    experiment = scene.experiment(2, about={"slots": 2})
    for index in range(2):
        scene.run(experiment, index, losses=[0.9, 0.5], end="completed")
    [took] = {
        t.ended - t.started for t in scene.client.stored(1).trial_rows if t.ended and t.started
    }
    more = "name: {}\nslurm: {{time: 30}}\nresources: {{slots_per_trial: 2}}\n"
    searcher = "name: random, max_trials: 6, max_length: {batches: 100}"
    cost = ask("preview-search", searcher, "--json", more=more.format("test")).data["cost"]
    assert cost["most_slot_hours"]["value"] == 6 * 2 * 0.5
    assert cost["expected_slot_hours"]["value"] == pytest.approx(600 * took / 2 * 2 / 3600)
    assert "the median of 2 trials of experiment 1" in cost["expected_slot_hours"]["source"]
    simulated = ask("simulate", searcher, "--slots", 2, "--json", more=more.format("test")).data
    given = ask("simulate", searcher, "--slots", 2, "--unit-seconds", took / 2, "--json",
                more=more.format("test"))  # fmt: skip
    assert simulated["seconds"] == given.data["seconds"]
    other = ask("preview-search", searcher, more=more.format("other")).out
    assert "slot-hours: at most 6: 6 jobs x 2 slots x 0:30:00 (slurm.time)" in other
    assert "expected: unknown: no earlier trial of the same name, project and slots" in other
    other = ask("preview-search", "name: random, max_trials: 6, max_length: 7", more="name: test\n")
    assert "no earlier trial of the same name, project, slots and length" in other.out


def test_a_continuation_shows_no_cost(ask: Any, scene: Scene) -> None:
    """Its trials count the batches of those that they continue, in whose time it has no part."""
    first = scene.experiment(about={"slots": 1})
    scene.run(first, losses=[0.9, 0.5], end="completed")
    go_on = {"slots": 1, "parent": 1, "origin": "continue"}
    resume = {"uuid": "c", "steps": 1000}
    scene.run(scene.experiment(about=go_on), losses=[0.4], resume=resume, end="completed")
    searcher = "name: random, max_trials: 6, max_length: {batches: 100}"
    cost = ask("preview-search", searcher, "--json", more="name: test\n").data["cost"]
    expected = cost["expected_slot_hours"]
    assert "the median of 1 trial of experiment 1" in expected["source"]
    assert expected["value"] == pytest.approx(600 * 500 / 3600)  # 1000 seconds for two batches


def test_a_searcher_of_the_site(
    tmp_path: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file itself has none: what is shown is the site's, complete."""
    profile, path = tmp_path / "site.yaml", tmp_path / "experiment.yaml"
    profile.write_text("defaults: {searcher: {name: random, metric: loss, max_trials: 3}}\n")
    monkeypatch.setenv("DETSLURM_SITE", str(profile))
    path.write_text(f"entrypoint: python3 train.py\nhyperparameters: {SPACE}\n")
    shown = detslurm("preview-search", path)
    assert shown.status == 0 and "  max_trials: 3" in shown.out
