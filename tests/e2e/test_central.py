"""One installation for all users of a cluster: their code runs in Pythons of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from detslurm import __version__
from detslurm._base import contract
from scripts.dist import build
from tests.cluster.waiting import wait_for
from tests.e2e.conftest import needs_mpi
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap
from tests.store.listing import rows_of
from tests.test_packages import ROOT, borrowing_python

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

TRAIN = """\
    import importlib.util, sys
    from detslurm import core

    assert importlib.util.find_spec("click") is None, sys.executable
    with core.init() as context:
        context.train.report_validation_metrics(steps_completed=1, metrics={"loss": 0.5})
    print("trained in", sys.prefix)
    """


class Central(NamedTuple):
    """An installation, and an environment of a user's that has nothing of ours."""

    place: Path
    environment: Path


@pytest.fixture
def central(desk: Desk, tmp_path: Path) -> Iterator[Central]:
    assert desk.user.cwd is not None
    root = desk.user.cwd.parent / "central"
    place = install(root, tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "mine"], check=True)
    yield Central(place, root / "mine")
    shutil.rmtree(root)


def install(root: Path, tmp: Path, changes: Mapping[str, tuple[str, str]] = {}) -> Path:
    """Install this checkout for all users below `root`, with a text of some files replaced."""
    sources = Path(tempfile.mkdtemp(dir=tmp)) / "sources"
    subprocess.run([ROOT / "scripts" / "copy.sh", sources], check=True)
    for name, (old, new) in changes.items():
        text = (sources / name).read_text()
        assert old in text, name
        (sources / name).write_text(text.replace(old, new))
    wheel = build(sources.parent / "dist", sources, 1_700_000_000)[1]
    script = [ROOT / "packaging" / "module" / "install.sh", root, root / "modules", wheel]
    env = {"PYTHON": str(borrowing_python(tmp)), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    subprocess.run(script, env={**os.environ, **env}, check=True, capture_output=True)
    return root / "detslurm" / wheel.name.split("-")[1]


def test_code_needs_nothing_of_ours_and_outlives_a_removed_version(
    desk: Desk, central: Central
) -> None:
    config = desk.project(TRAIN)
    path = f"{central.environment}/bin:{central.place}/only:{desk.user.env['PATH']}"

    def submit(*options: str) -> int:
        words = ("detslurm", "submit", str(config), "--json", *options)
        return int(unwrap(desk.user.run(*words, env={"PATH": path}).stdout)["experiment_id"])

    first, waiting = submit(), submit("--paused")
    desk.wait_for_state(first, "COMPLETED")
    assert f"trained in {central.environment}" in desk.log(first)
    newer = central.place.with_name("9.0.0")
    central.place.rename(newer)
    python = str(newer / "bin" / "python3")
    desk.user.run(python, "-m", "detslurm", "experiment", "activate", str(waiting))
    desk.wait_for_state(waiting, "COMPLETED")
    assert f"trained in {central.environment}" in desk.log(waiting)
    outputs = desk.experiment(waiting).jobs.glob("slurm-*.out")
    assert f"{newer}/bin/python3 goes on" in "".join(path.read_text() for path in outputs)


NEXT = {
    "detslurm/__init__.py": (f'__version__ = "{__version__}"', '__version__ = "9.0.0"'),
    "detslurm/store/facts.py": ("FORMAT: Final = 1", "FORMAT: Final = 2"),
    "detslurm/exec/runner.py": (
        "        self._excluded: list[str] = []\n",
        "        self._excluded: list[str] = []\n"
        '        self._experiment.append({"type": "greeted", "runner": "9.0.0"})\n',
    ),
}
"""A newer version: it decides new experiments by other rules, and writes records of a new type."""

GATED = """\
    import os, time
    import detslurm as det

    info = det.get_cluster_info()
    with det.core.init() as core:
        for operation in core.searcher.operations():
            while not os.path.exists({gate!r}):
                time.sleep(0.2)
            loss = info.trial.hparams["x"] + 1 / operation.length
            if core.distributed.rank == 0:
                core.train.report_validation_metrics(operation.length, {{"loss": loss}})
                with core.checkpoint.store_path({{"steps_completed": operation.length}}):
                    pass
                operation.report_completed(loss)
    """
GATED_MPI = GATED.replace(
    "det.core.init()",
    "det.core.init(distributed=det.core.DistributedContext.from_mpi(MPI.COMM_WORLD))",
).replace("import detslurm", "from mpi4py import MPI\n    import detslurm", 1)
GATED_TORCH = """\
    import os, time, torch
    import detslurm as det
    from detslurm import pytorch

    class Line(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.model = context.wrap_model(torch.nn.Linear(1, 1))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))
            self.context = context
            while not os.path.exists({gate!r}):
                time.sleep(0.2)

        def loader(self):
            x = torch.linspace(0, 1, 8).unsqueeze(1)
            return pytorch.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=4)

        build_training_data_loader = build_validation_data_loader = loader

        def loss(self, batch):
            return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

        def train_batch(self, batch, epoch, index):
            self.context.backward(loss := self.loss(batch))
            self.context.step_optimizer(self.optimizer)
            return {{"loss": loss}}

        def evaluate_batch(self, batch):
            return {{"loss": self.loss(batch)}}

    if __name__ == "__main__":
        with pytorch.init() as context:
            latest = det.get_cluster_info().latest_checkpoint
            pytorch.Trainer(Line(context), context).fit(latest_checkpoint=latest)
    """
GATED_SCRIPT = """\
    import os, time
    import detslurm as det

    with det.core.init() as core:
        while not os.path.exists({gate!r}):
            time.sleep(0.2)
        core.train.report_validation_metrics(1, {{"loss": 0.5}})
    """

SEARCHES = {
    "array": (20, "searcher: {name: grid, metric: loss, max_length: 1}"),
    "shares": (20, "searcher: {name: grid, metric: loss, max_length: 1}\ntrials_per_job: 5"),
    "asha": (20, "searcher: {name: async_halving, metric: loss, max_length: 4, num_rungs: 2,"
     " divisor: 2, max_trials: 20, max_concurrent_trials: 5}"),
    "torch": (6, "searcher: {name: grid, metric: loss, max_length: {batches: 12}}"),
    "mpi": (4, "searcher: {name: grid, metric: loss, max_length: 1}\nslots_per_node: 1"),
}  # fmt: skip
"""How many trials of a kind, and its configuration."""

ENTRYPOINTS = {"torch": "python3 line.py", "mpi": "python3 -m detslurm.launch.mpi ranks.py"}
COMMANDS = 20
BATCH = """\
export PYTHONPATH=$(ls -d {versions}/*/{library} | sort -V | tail -n 1) # as `module load detslurm`
exec {python} own.py
"""


def configuration(kind: str) -> str:
    count, text = SEARCHES[kind]
    searcher, _, more = text.partition("\n")
    spread = f"vals: [{', '.join(str(n / 100) for n in range(count))}]"
    x = "double, minval: 0, maxval: 1" if kind == "asha" else f"categorical, {spread}"
    return textwrap.dedent(f"""\
        name: {kind}
        entrypoint: {ENTRYPOINTS.get(kind, "python3 train.py")}
        {searcher}
        resources: {{slots_per_trial: {2 if kind == "mpi" else 1}, max_slots: 6}}
        slurm: {{slot_type: cpu, {more}}}
        hyperparameters: {{x: {{type: {x}}}, global_batch_size: 4}}
        """)


def test_all_kinds_of_trials_outlive_an_upgrade(
    desk: Desk, central: Central, tmp_path: Path
) -> None:
    """Version 9 takes the place of version 1, which is removed, while trials run and wait: 110 or
    so end right, in searches with the decisions of version 1."""
    assert desk.user.cwd is not None
    gate, versions = desk.user.cwd / "gate", central.place.parent
    program = borrowing_python(tmp_path)
    environment = versions.parent / "theirs"  # it has torch and mpi4py, and nothing of ours
    subprocess.run([program, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python3"
    for name, text in {
        "train.py": GATED,
        "line.py": GATED_TORCH,
        "ranks.py": GATED_MPI,
        "own.py": GATED_SCRIPT,
    }.items():
        desk.write(f"project/{name}", text.format(gate=str(gate)))
    kinds = [kind for kind in SEARCHES if kind != "mpi" or not needs_mpi.args[0]]

    def run(place: Path, *words: str) -> str:
        path = f"{python.parent}:{place}/only:{desk.user.env['PATH']}"
        return desk.user.run("detslurm", *words, env={"PATH": path}).stdout

    def submit(place: Path, *words: str) -> int:
        return int(unwrap(run(place, *words, "--json"))["experiment_id"])

    configs = {kind: desk.write(f"project/{kind}.yaml", configuration(kind)) for kind in kinds}
    made = {submit(central.place, "submit", str(configs[kind])): kind for kind in kinds}
    lines = BATCH.format(versions=versions, library=contract.CENTRAL_LIBRARY, python=python)
    desk.write("project/own.sh", "").write_text(f"#!/bin/bash\n{lines}")
    project = str(configs["array"].parent)
    command = f"while [ ! -e {gate} ]; do sleep 0.2; done"
    words = ("cmd", "run", "--detach", "--context", project, "bash", "-c", command)
    for _ in range(COMMANDS):
        desk.user.run("sbatch", "-D", project, "-J", "own", "own.sh")
        made[int(run(central.place, *words))] = "cmd"
    first = next(iter(made))
    wait_for(lambda: desk.trial(first).runs, PATIENCE, "a trial that runs")

    newer = install(versions.parent, tmp_path, NEXT)
    shutil.rmtree(central.place)
    gate.touch()
    theirs = submit(newer, "submit", str(configs["array"]))
    wait_for(lambda: len(rows_of(desk.store)) == len(made) + COMMANDS + 1, PATIENCE, "all jobs")
    for row in rows_of(desk.store):
        desk.wait_for_state(row.id, "COMPLETED", timeout=2 * PATIENCE)
    for number, kind in made.items():
        view = desk.view(number)
        count = SEARCHES[kind][0] if kind in SEARCHES else 1
        assert [trial.state for trial in view.trials] == ["COMPLETED"] * count, (kind, view)
    greeted = {n for n in made if any(f["type"] == "greeted" for f in desk.experiment(n).facts())}
    assert {made[n] for n in greeted} >= {"array", "shares"}
    assert desk.view(theirs).format == 2 and {desk.view(n).format for n in made} == {1}
    refused = desk.run("experiment", "archive", str(theirs), check=False)
    assert refused.returncode == 1 and "newer detslurm (format 2)" in refused.stderr
