"""Experiments from a command line: the script of docs/your-script.md, and a Hydra application."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tests.cluster import Cluster
from tests.docs.pages import REPOSITORY
from tests.e2e.desk import Desk
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

CPU = ("--config", "slurm.slot_type=cpu", "--config", "max_restarts=0")
APP = """\
    import dataclasses
    import hydra
    from hydra.core.config_store import ConfigStore

    @dataclasses.dataclass
    class Model:
        name: str = "none"

    @dataclasses.dataclass
    class Config:
        lr: float = 1.0
        tags: list[str] = dataclasses.field(default_factory=list)
        model: Model = dataclasses.field(default_factory=Model)

    ConfigStore.instance().store(name="config", node=Config)

    @hydra.main(version_base=None, config_name="config")
    def main(config):
        print(f"GOT {config.lr} {config.model.name!r} {config.tags}", flush=True)

    main()
"""


def page_script() -> str:
    page = (REPOSITORY / "docs" / "your-script.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return str(script)


@pytest.mark.slow
def test_a_script_as_it_is(desk: Desk, site: Cluster) -> None:
    """It runs with its log on the terminal, fails as itself, and trains a grid of its flags."""
    folder = desk.write("project/train.py", page_script()).parent

    words = ("--slots", "1", "--time", "30", *CPU)
    command = ("--", "python3", "train.py", "--lr", "0.1", "--epochs", "5")
    done = desk.run("run", *words, *command, cwd=folder)
    assert "|| epoch 4: loss=0.3487" in done.stdout
    assert done.stdout.splitlines()[-1] == "Trial 1 of experiment 1: COMPLETED"

    failed = desk.run("run", *CPU, "python3", "train.py", "--lrr=1", check=False, cwd=folder)
    assert failed.returncode == 1
    assert "unrecognized arguments: --lrr=1" in failed.stdout

    grid = ("--grid", "lr=0.5,0.1", "--grid", "epochs=1,2", "--json")
    done = desk.run("run", *grid, *CPU, *command, cwd=folder)
    assert "--lr 0.1 is left out: each trial gets its own lr" in done.stderr
    number = int(unwrap(done.stdout)["experiment_id"])
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert "Arguments : flags" in desk.run("experiment", "describe", str(number)).stdout
    found = {line for index in range(4) for line in re.findall("epoch .*", desk.log(number, index))}
    losses = {(epoch, (1 - lr) ** (2 * epoch + 2)) for epoch, lr in product((0, 1), (0.5, 0.1))}
    assert found == {f"epoch {epoch}: loss={loss:.4f}" for epoch, loss in losses}

    pattern = r"epoch (?P<step>\d+): loss=(?P<loss>\S+)"
    desk.write(
        "project/printed.yaml", f"metrics_from_log: [{{group: validation, pattern: '{pattern}'}}]"
    )
    search = ("--random", "lr=log:1e-3:1", "--trials", "5", "--search", "adaptive_asha")
    goal = ("--metric", "loss", "--max-time", "4", "--time-metric", "epochs", "--no-follow")
    options = (*search, *goal, *CPU, "--template", "printed.yaml", "--json")
    done = desk.run("run", *options, "--", "python3", "train.py", cwd=folder)
    number = int(unwrap(done.stdout)["experiment_id"])
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.view(number).state == "COMPLETED"
    assert all(desk.trial(number, index).best_validation for index in range(5))


@pytest.mark.slow
def test_a_hydra_application_as_it_is(desk: Desk, site: Cluster) -> None:
    """Each combination of a multirun reaches Hydra as one run of its own."""
    folder = desk.write("project/app.py", APP).parent
    sweeps = ("lr=0.5,-1e-3", "model.name=choice(a,'b $(c), d')", "tags=[x,'y z']", "-m")
    done = desk.run("multirun", "--json", *CPU, "python3", "app.py", *sweeps, cwd=folder)
    number = int(unwrap(done.stdout)["experiment_id"])
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    logs = [desk.log(number, index) for index in range(4)]
    found = {line for log in logs for line in re.findall("GOT .*", log)}
    combinations = product(("0.5", "-0.001"), ("'a'", "'b $(c), d'"))
    assert found == {f"GOT {lr} {name} ['x', 'y z']" for lr, name in combinations}, logs
