"""A search over two optimizers, each with an option of its own, through the command line."""

from __future__ import annotations

import csv

import pytest

from tests.e2e.conftest import copy_example
from tests.e2e.desk import Desk
from tests.e2e.test_pytorch_examples import submit

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SMALL = [
    *("searcher.max_trials=4", "searcher.max_length.epochs=2", "searcher.max_rungs=2"),
    *("searcher.divisor=2", "searcher.mode=aggressive", "searcher.max_concurrent_trials=2"),
    *("hyperparameters.channels=4", "reproducibility.experiment_seed=4"),
]
SHOWS = """

build = optimizer_of


def optimizer_of(model, hparams):
    made = build(model, hparams)
    print("took", type(made).__name__, hparams["optimizer"], flush=True)
    return made
"""


@pytest.mark.nightly
def test_a_conditional_search_of_a_trial_class(desk: Desk) -> None:
    """Each trial has the options of its optimizer alone; tables have empty cells for the others."""
    folder = copy_example(desk, "pytorch_digits")
    model = folder / "model_def.py"
    head, cls, rest = model.read_text().partition("\n\nclass DigitsTrial")
    model.write_text(head + SHOWS + cls + rest)
    for command in ("preview-search", "simulate"):
        words = [word for one in SMALL for word in ("--config", one)]
        assert "2 epochs" in desk.run(command, str(folder / "conditions.yaml"), *words).stdout
    number = submit(desk, "pytorch_digits", "conditions.yaml", *SMALL)
    desk.wait_for_state(number, "COMPLETED")
    taken = [desk.trial(number, index).hparams or {} for index in range(4)]
    chosen = [hparams["optimizer"] for hparams in taken]
    assert [one["name"] for one in chosen] == ["sgd", "sgd", "adam", "adam"]
    for index, optimizer in enumerate(chosen):
        assert optimizer.keys() == {"name", "momentum" if index < 2 else "beta1"}
        made = {"sgd": "SGD", "adam": "Adam"}[optimizer["name"]]
        assert f"took {made} {optimizer}" in desk.log(number, index)

    listed = desk.run("experiment", "list-trials", str(number)).stdout
    assert listed.count("optimizer.beta1=") == listed.count("optimizer.momentum=") == 2
    first = desk.view(number).trials[0].id
    compared = desk.run("compare", "-t", str(first), str(first + 3)).stdout
    assert "optimizer.momentum" in compared and "None" not in compared
    desk.run("experiment", "export", str(number), "--to", "csv", "-o", str(folder / "out"))
    with (folder / "out" / f"experiment-{number}" / "trials.csv").open() as file:
        cells = [
            (row["hparams.optimizer.momentum"] != "", row["hparams.optimizer.beta1"] != "")
            for row in csv.DictReader(file)
        ]
    assert cells == [(True, False)] * 2 + [(False, True)] * 2
    page = folder / "page.html"
    desk.run("report", str(number), "-o", str(page))
    assert "optimizer.momentum" in page.read_text()
