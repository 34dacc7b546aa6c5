"""The pure parts of the benchmark of searches' quality: problems, regrets, ranks, intervals."""

from __future__ import annotations

import pickle
import random
from itertools import islice
from pathlib import Path
from statistics import median

import pytest

from benchmarks.quality import contenders, virtual
from benchmarks.quality.comparison import Comparison, markdown
from benchmarks.quality.figures import bootstrap, mean_over_problems, ranked, ranks, tied_first
from benchmarks.quality.hartmann import HARTMANNS, MEDIANS, MINIMA, Hartmann, hartmann
from benchmarks.quality.networks import GRID, Networks
from benchmarks.quality.picture import drawn
from benchmarks.quality.problem import Report, regret, regrets
from benchmarks.quality.tables import Table
from benchmarks.quality.task import MOMENTS
from benchmarks.quality.virtual import Training

POINT = {f"x{number}": 0.5 for number in range(3)}
BEST = dict(zip(POINT, MINIMA[3][1], strict=True))


@pytest.mark.parametrize("variables", MINIMA)
def test_hartmanns_minimum_is_where_the_literature_has_it(variables: int) -> None:
    least, where = MINIMA[variables]
    assert hartmann(where) == pytest.approx(least, abs=1e-4)
    draws = random.Random(0)
    values = [hartmann([draws.random() for _ in where]) for _ in range(1000)]
    assert median(values) == pytest.approx(MEDIANS[variables], abs=0.05)


@pytest.mark.parametrize("name", HARTMANNS)
def test_a_full_training_has_no_noise_and_a_short_one_has(name: str) -> None:
    problem = Hartmann(name)
    point = dict.fromkeys(problem.names, 0.4)
    assert problem.loss(point, problem.units, seed=1) == problem.truth(point)
    assert problem.loss(point, 5, seed=1) == problem.loss(point, 5, seed=1)
    assert problem.loss(point, 5, seed=1) != problem.loss(point, 5, seed=2)


def test_every_network_of_the_grid_has_a_curve() -> None:
    problem = Networks()
    first = {"activation": "relu", **{name: 0 for name in GRID if name != "activation"}}
    last = {name: len(vals) - 1 for name, vals in GRID.items()} | {"activation": "tanh"}
    for point in (first, last):
        assert problem.loss(point, problem.units, 0) == problem.truth(point) >= problem.best
    assert problem.seconds(first, 2, 4) == pytest.approx(2 * problem.seconds(first, 0, 1))


def test_a_table_with_code_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hpolib").mkdir()
    (tmp_path / "hpolib" / "bad.pkl").write_bytes(pickle.dumps(Path))
    with pytest.raises(pickle.UnpicklingError, match="not only plain data"):
        Table(tmp_path, "hpolib", "bad")


def test_the_choice_is_the_best_reported_so_far_and_its_regret_that_of_a_full_training() -> None:
    problem = Hartmann("hartmann3")
    reports = [
        Report(1.0, POINT, 10, -2.0),
        Report(2.0, BEST, 100, -3.0),
        Report(3.0, POINT, 100, -2.5),
        Report(4.0, POINT, 10, -10.0),
    ]
    found = regrets(problem, reports, [0.5, 1.0, 3.5, 9.0])
    other = regret(problem, POINT)
    assert found == [1.0, other, pytest.approx(0.0, abs=1e-4), other]


class _InOrder:
    """A method that trains its points one after the other, and one of them in two parts."""

    def __init__(self) -> None:
        self.todo = [Training("a", POINT, 0, 100), Training("b", BEST, 0, 10)]

    def ask(self) -> Training | None:
        return self.todo.pop(0) if self.todo else None

    def tell(self, training: Training, loss: float) -> None:
        if training == Training("b", BEST, 0, 10):
            self.todo.append(training._replace(start=10, end=100))


def test_workers_of_a_peer_do_not_wait_for_each_other() -> None:
    problem = Hartmann("hartmann3")
    seen = list(virtual.reports(_InOrder(), problem, workers=2, seed=0))
    assert [(report.seconds, report.units) for report in seen] == [(10, 10), (100, 100), (100, 100)]


@pytest.mark.parametrize("method", contenders.METHODS)
def test_our_methods_report_in_order_and_by_seed(method: str) -> None:
    problem = Hartmann("hartmann3")
    first, again = (list(islice(contenders.reports(method, problem, 4, 7), 30)) for _ in "ab")
    assert first == again
    assert [report.seconds for report in first] == sorted(report.seconds for report in first)


def test_equal_regrets_share_their_rank() -> None:
    assert ranks({"a": 0.1, "b": 0.0, "c": 0.1}) == {"a": 2.5, "b": 1.0, "c": 2.5}


def test_a_difference_within_the_noise_is_a_tie() -> None:
    noise = [0.1, 0.3, 0.2, 0.4, 0.15, 0.35]
    table = {
        "good": [noise, noise],
        "as good": [[*reversed(noise)], [*reversed(noise)]],
        "bad": [[value + 1 for value in noise]] * 2,
    }
    assert tied_first(table) == {"good", "as good"}
    assert mean_over_problems(ranked(table)["bad"]) == 3.0


def test_an_interval_holds_the_mean_and_shrinks_with_more_seeds() -> None:
    few, many = bootstrap([[0.0, 1.0] * 5]), bootstrap([[0.0, 1.0] * 50])
    assert few.low < few.value == 0.5 < few.high
    assert many.high - many.low < few.high - few.low


def test_the_picture_has_a_line_and_a_name_for_each_method() -> None:
    lines = {"ours": [(0.01, 2.0), (1.0, 1.0)], "theirs": [(0.01, 1.0), (1.0, 2.0)]}
    text = "\n".join(drawn({"1 worker": lines, "8 workers": lines}, ours=["ours"]))
    assert text.count("<polyline") == 4
    assert text.count(">theirs</text>") == 1
    assert "prefers-color-scheme:dark" in text


def test_the_tables_name_each_method_and_mark_the_first() -> None:
    comparison = Comparison(("hartmann6", "hpolib-x"), ("Optuna tpe", "Syne Tune ASHA"), seeds=4)
    tasks = comparison.tasks([*contenders.METHODS, *comparison.peers])
    slow = {"random": 0.9, "Syne Tune ASHA": 0.5}
    results = {task: [slow.get(task.method, 0.1)] * len(MOMENTS) for task in tasks}
    curves, tables = "\n".join(markdown(comparison, results)).split("**Full trainings only, 1 ")
    assert "| Syne Tune ASHA | 5.0 (5.0-5.0) |" in curves
    assert "| Optuna tpe | **2.5 (2.5-2.5)** |" in curves
    assert "Syne Tune ASHA" not in tables  # stops trials, and has nothing to stop there
    assert "| random | 3.0 (3.0-3.0) |" in tables
