"""Make the store of a release, by real runs: python -m tests.released.make_store, as root.

It installs the wheel of this checkout and starts a Slurm cluster, both where paths and the names of
hosts are nobody's, runs one experiment of each kind, and writes `store-VERSION.tar.xz` here, and
beside it `store-VERSION.answers.json.xz`: what commands say of it. Run it once for each release.
"""

from __future__ import annotations

import json
import lzma
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import textwrap
import time
from pathlib import Path

from detslurm import __version__
from scripts.dist import build
from tests.cluster.cluster import Cluster, temporary_folder
from tests.cluster.spec import ClusterSpec
from tests.cluster.watchdog import guarded
from tests.envelope import unwrap
from tests.released.answers import answers

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLACE = Path(f"/opt/detslurm/{__version__}")
HOME = Path("/home/user")
STORE = HOME / "detslurm"
# Other machines can't use these, and no command asks for them.
LEFT_OUT = ("module-cache-", "queue.json", "start-estimates.json", "secret")

TRAIN = """\
    import json, os, time
    import detslurm as det

    info = det.get_cluster_info()
    hparams = info.trial.hparams
    with det.core.init() as core:
        step, loss = 0, None
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step, loss = json.loads((path / "state.json").read_text())
        for operation in core.searcher.operations():
            while step < operation.length:
                step += 1
                loss = (hparams["x"] - 0.3) ** 2 + 1 / step
                core.train.report_training_metrics(step, {"loss": loss, "rates": {"lr": 0.1}})
                while hparams.get("waits") and step == 2 and info.latest_checkpoint is None:
                    time.sleep(0.1)
                    if core.preempt.should_preempt():
                        break
                if core.preempt.should_preempt():
                    break
            found = {"loss": loss, "cost": hparams["x"] * step, "word": "fine"}
            core.train.report_validation_metrics(step, found)
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "state.json").write_text(json.dumps([step, loss]))
            if core.preempt.should_preempt():
                raise SystemExit(0)
            if hparams.get("fails") and info.latest_checkpoint is None:
                raise SystemExit(3)
            operation.report_completed(found if hparams.get("several") else loss)
    print("trained to", step)
    """
TORCH = """\
    import torch
    import detslurm as det
    from detslurm import pytorch

    class Line(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.model = context.wrap_model(torch.nn.Linear(1, 1))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))
            self.context = context

        def loader(self):
            x = torch.linspace(0, 1, 8).unsqueeze(1)
            data = torch.utils.data.TensorDataset(x, 2 * x + 1)
            return pytorch.DataLoader(data, batch_size=4)

        build_training_data_loader = build_validation_data_loader = loader

        def train_batch(self, batch, epoch, index):
            loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch):
            return {"loss": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}

    if __name__ == "__main__":
        with pytorch.init() as context:
            pytorch.Trainer(Line(context), context).fit(
                validation_period=pytorch.Batch(4), checkpoint_period=pytorch.Batch(4),
                reporting_period=pytorch.Batch(2),
                latest_checkpoint=det.get_cluster_info().latest_checkpoint,
            )
    """
METHOD = """\
    import uuid
    from detslurm import searcher

    class Two(searcher.SearchMethod):
        def initial_operations(self, state):
            operations = []
            for number in (1, 2):
                trial = uuid.UUID(int=number)
                operations += [searcher.Create(trial, {"x": number / 10})]
                operations += [searcher.ValidateAfter(trial, 2), searcher.Close(trial)]
            return operations

        def on_trial_created(self, state, request_id):
            return []

        def on_validation_completed(self, state, request_id, metric, train_length):
            return []

        def on_trial_closed(self, state, request_id):
            return [searcher.Shutdown()] if len(state.trials_closed) == 2 else []

        def on_trial_exited_early(self, state, request_id, exited_reason):
            return []

        def progress(self, state):
            return len(state.trials_closed) / 2

        def save_method_state(self, path):
            pass

        load_method_state = save_method_state

    searcher.LocalSearchRunner(Two(), "method").run("custom.yaml", ".")
    """
SCRIPT = """\
    import detslurm as det

    with det.core.init() as core:
        for step in (1, 2, 3):
            core.train.report_training_metrics(step, {"loss": 1 / step})
        core.train.report_validation_metrics(3, {"loss": 1 / 3})
    """
BATCH = f"#!/bin/bash\n#SBATCH --job-name=own --output=own.out\n{PLACE}/bin/python3 script.py\n"
BASE = """\
    entrypoint: python3 train.py
    slurm: {slot_type: cpu}
    checkpoint_storage: {save_trial_best: 1, save_trial_latest: 1}
    """
CONFIGS = {
    "grid": "searcher: {name: grid, metric: loss, max_length: {batches: 3}}\n"
    "hyperparameters: {x: {type: categorical, vals: [0.1, 0.4]}, fails: true}\n"
    "description: two points\nlabels: [old, grid]\nmax_restarts: 1\n",
    "asha": "searcher: {name: async_halving, metric: loss, max_length: {batches: 4}, num_rungs: 2,"
    " divisor: 2, max_trials: 4, max_concurrent_trials: 2}\n"
    "hyperparameters: {x: {type: double, minval: 0, maxval: 1}}\n",
    "custom": "searcher: {name: custom, metric: loss, unit: batches}\nhyperparameters: {}\n",
    "several": "searcher: {name: random, max_trials: 3, max_length: {batches: 2},"
    " metrics: [{name: loss}, {name: cost}], constraints: {cost: '<= 1.5'}}\n"
    "hyperparameters: {x: {type: double, minval: 0, maxval: 1}, several: true}\n",
    "lost": "searcher: {name: single, metric: loss, max_length: {batches: 4}}\n"
    "hyperparameters: {x: 0.5, waits: true}\nmax_restarts: 0\n",
    "paused": "searcher: {name: single, metric: loss, max_length: {batches: 4}}\n"
    "hyperparameters: {x: 0.5, waits: true}\n",
    "torch": "searcher: {name: single, metric: loss, max_length: {batches: 12}}\n"
    "hyperparameters: {global_batch_size: 4}\n",
}


def inside() -> None:
    """Run everything; paths and names of hosts are neutral from here on."""
    env = {
        "HOME": str(HOME),
        "PATH": f"{PLACE}/bin:/usr/bin:/bin",
        "DETSLURM_ROOT": str(STORE),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }
    os.environ.pop("DETSLURM_SUITE", None)
    with guarded(Cluster(ClusterSpec(nodes=1, cpus=4), temporary_folder())) as cluster:
        env["SLURM_CONF"] = str(cluster.layout.slurm_conf)
        _experiments(env, cluster)
    _pack()


def _experiments(env: dict[str, str], cluster: Cluster) -> None:
    def run(*words: str, check: bool = True) -> str:
        done = subprocess.run(words, env=env, cwd=project, text=True, stdout=-1, check=False)
        assert not check or done.returncode == 0, (words, done.stdout)
        return done.stdout

    def made(*words: str) -> str:
        return str(unwrap(run("detslurm", *words, "--json"))["experiment_id"])

    def wait(*ids: str) -> None:
        run("detslurm", "e", "wait", "--polling-interval", "0.5", *ids, check=False)

    project = HOME / "project"
    project.mkdir(parents=True)
    files = {"train.py": TRAIN, "line.py": TORCH, "method.py": METHOD, "script.py": SCRIPT}
    for name, text in files.items():
        (project / name).write_text(textwrap.dedent(text))
    (project / "own.sh").write_text(BATCH)
    for name, text in CONFIGS.items():
        base = textwrap.dedent(BASE).replace(
            "train.py", "line.py" if name == "torch" else "train.py"
        )
        (project / f"{name}.yaml").write_text(f"name: {name}\n{base}{text}")

    ids = {name: made("submit", f"{name}.yaml") for name in CONFIGS if name != "custom"}
    run("python3", "method.py")
    _begun(STORE / "experiments" / ids["paused"])
    run("detslurm", "experiment", "pause", ids["paused"])
    _kill(STORE / "experiments" / ids["lost"])
    run("sbatch", "own.sh")
    run("python3", "script.py")
    run("detslurm", "cmd", "run", "echo", "hello")
    wait(*(str(number) for number in range(1, 11)))
    run("detslurm", "experiment", "list")  # it records the evidence on dead jobs
    more = [
        made("experiment", "fork", ids["grid"], "--config", "hyperparameters.x=0.2"),
        made("experiment", "continue", ids["asha"], "--config", "searcher.max_trials=6"),
        made("experiment", "continue", ids["torch"], "--config", "searcher.max_length.batches=16"),
    ]
    wait(*more)
    saved = [one["uuid"] for one in unwrap(run("detslurm", "checkpoint", "list", "--json"))]
    run("detslurm", "model", "create", "line", "--description", "a line", "--metadata", "slope=2")
    for uuid in saved[:2]:
        run("detslurm", "model", "register-version", "line", uuid)
    run("detslurm", "model", "delete-version", "line", "2", "--yes")
    run("detslurm", "experiment", "set", "notes", ids["grid"], "kept")
    run("detslurm", "experiment", "archive", ids["several"])
    run("detslurm", "experiment", "list")
    run("detslurm", "checkpoint", "list")
    run("detslurm", "gc")


def _begun(experiment: Path) -> None:
    """Wait until a trial has reported something."""
    while not any(path.stat().st_size for path in experiment.glob("trials/*/*/run-1.jsonl")):
        time.sleep(0.1)


def _kill(experiment: Path) -> None:
    """Kill all processes of an experiment as a node does that loses its power."""
    _begun(experiment)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if str(experiment).encode() in path.read_bytes():
            os.kill(int(path.parent.name), signal.SIGKILL)


def _pack() -> None:
    archive = HERE / f"store-{__version__}.tar.xz"
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        packed.add(STORE, "store", filter=_neutral)
    record_answers(archive)


def record_answers(archive: Path) -> None:
    """Write what commands say of a store elsewhere: some records name the place of the first."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
        found = json.dumps(answers(Path(folder) / "store"), indent=0, sort_keys=True)
    archive.with_name(f"store-{__version__}.answers.json.xz").write_bytes(
        lzma.compress(found.encode(), preset=lzma.PRESET_EXTREME)
    )
    print(archive, archive.stat().st_size)


def _neutral(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uname = member.gname = ""
    member.uid = member.gid = 0
    return None if Path(member.name).name.startswith(LEFT_OUT) else member


def main(argv: list[str]) -> int:
    if argv == ["--inside"]:
        inside()
        return 0
    packages = sysconfig.get_path("purelib")
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "sources"
        subprocess.run([ROOT / "scripts" / "copy.sh", sources], check=True)
        wheel = build(Path(folder) / "dist", sources, 1_700_000_000)[1]
        script = f"""
            set -e
            hostname login1
            mount -t tmpfs none /opt
            mount -t tmpfs none /home
            "{sys.executable}" -m venv {PLACE}
            echo "{packages}" >"$(echo {PLACE}/lib/python3*/site-packages)/borrowed.pth"
            {PLACE}/bin/python -m pip install -q --no-deps --no-index "{wheel}"
            exec "{sys.executable}" -m tests.released.make_store --inside
            """
        return subprocess.run(["unshare", "--mount", "--uts", "bash", "-c", script]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
