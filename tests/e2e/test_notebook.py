"""A project in a notebook: everything through the SDK, in a kernel of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.e2e.desk import Desk

CELLS = (
    """
    import json, warnings
    warnings.simplefilter("ignore")  # the store is on one disk here
    from detslurm.sdk import Client, submit
    """,
    """
    def train(core):
        lr, weight = core.info.trial.hparams["lr"], 0.0
        for step in range(1, 11):
            weight += lr * (3 - weight)
            core.train.report_training_metrics(step, {"weight": weight})
        core.train.report_validation_metrics(step, {"loss": (3 - weight) ** 2})
        with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "model.json").write_text(json.dumps({"weight": weight}))
    """,
    """
    config = {
        "name": "from a notebook",
        "hyperparameters": {"lr": {"type": "categorical", "vals": [0.01, 0.2]}},
        "searcher": {"name": "grid", "metric": "loss"},
        "slurm": {"slot_type": "cpu"},
    }
    experiments = [submit(train, config, cluster=cluster) for cluster in ("slurm", "local")]
    display(*experiments)
    """,
    """
    for experiment in experiments:
        assert experiment.wait(interval=1) == "COMPLETED", list(experiment.first_trial().logs())
        display(experiment.trials_frame().sort_values("best loss"))
    """,
    """
    for experiment in experiments:
        compared = Client().compare([trial.id for trial in experiment.trials()], trials=True)
        curves = experiment.metrics_frame("training")
        assert len(curves) == 20
        best = experiment.best_checkpoint
        assert best.hparams == {"lr": 0.2}
        display(best)
    """,
    """
    model = Client().create_model("net")
    for experiment in experiments:
        best = experiment.best_checkpoint
        loaded = best.load(lambda path: json.loads((path / "model.json").read_text()))
        version = model.register_version(best.uuid)
        assert version.checkpoint.uuid == best.uuid
        print(loaded["weight"])
    """,
)

RUN = """
import asyncio, sys, nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=240, kernel_name="this").execute()
nbformat.write(notebook, sys.argv[1])
"""

FRESH = """
import json
from detslurm.experimental import client

model = client.get_model("net")
for version in (model.get_version(1), model.get_version()):
    print(version.checkpoint.load(lambda path: json.loads((path / "model.json").read_text())))
"""


def _notebook() -> dict[str, Any]:
    empty: dict[str, Any] = {"metadata": {}, "outputs": [], "execution_count": None}
    cells = [
        {"cell_type": "code", "id": f"c{number}", "source": dedent(text).strip(), **empty}
        for number, text in enumerate(CELLS)
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def _environment(folder: Path) -> dict[str, str]:
    """A kernel that is this Python."""
    kernel = folder / "jupyter" / "kernels" / "this" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "this", "language": "python"}))
    return {
        "JUPYTER_PATH": str(folder / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
    }


@pytest.mark.nightly
def test_a_whole_project_in_a_notebook(desk: Desk) -> None:
    """Submit a search to Slurm and one to this machine, wait, compare, register the best, and load
    them in another process."""
    path = desk.write("project.ipynb", json.dumps(_notebook()))
    env = {**desk.user.env, **_environment(path.parent)}
    desk.user.own(path.parent)
    desk.user.run(sys.executable, "-c", RUN, str(path), env=env)

    outputs = [cell["outputs"] for cell in json.loads(path.read_text())["cells"]]
    for place, title in ((2, "from a notebook"), (3, "hparams.lr"), (4, "Checkpoint")):
        shown = ["".join(output["data"]["text/html"]) for output in outputs[place]]
        assert [title in html for html in shown] == [True, True], (title, shown)
    weights = [float(word) for word in "".join(outputs[5][0]["text"]).split()]
    assert weights == pytest.approx([3, 3], abs=0.5)
    said = desk.user.run(sys.executable, "-c", FRESH).stdout
    assert said.splitlines() == [str({"weight": weight}) for weight in weights]
