"""The hooks in a script's own process, with the real trackers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detslurm.exec.start_hooks import DIRECTORY as HOOKS


class Pipe:
    """A channel whose reader is the test."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path, self._fd = path, os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def lines(self) -> list[dict[str, Any]]:
        """The values that were sent."""
        data = b""
        while True:
            try:
                data += os.read(self._fd, 1 << 20)
            except BlockingIOError:
                return [json.loads(line) for line in data.splitlines()]

    def values(self) -> list[tuple[Any, dict[str, float]]]:
        """Their steps and values."""
        return [(line["k"], line["v"]) for line in self.lines()]

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    pipe = Pipe(tmp_path / "channel")
    yield pipe
    pipe.close()


TRACKER = """\
    class SummaryWriter:
        def add_scalar(self, tag, scalar_value, global_step=None):
            return "theirs"

        def add_scalars(self, *args):
            pass
"""
"""A tracker that costs no time to import; scripts that use it begin with this:"""
BEGIN = """\
    import os, subprocess, sys, time

    sys.path.insert(0, "tracker")
    import tensorboardX.writer
    writer = tensorboardX.writer.SummaryWriter()
"""


def run(pipe: Pipe, script: str, *options: str, **variables: str) -> str:
    """Run a script with the hooks; what it prints."""
    folder = pipe.path.parent
    (folder / "script.py").write_text(textwrap.dedent(script))
    (folder / "tracker" / "tensorboardX").mkdir(parents=True, exist_ok=True)
    (folder / "tracker" / "tensorboardX" / "__init__.py").touch()
    (folder / "tracker" / "tensorboardX" / "writer.py").write_text(textwrap.dedent(TRACKER))
    env = os.environ | {
        "DETSLURM_RECORD": str(pipe.path),
        "DETSLURM_RECORD_FROM": "tensorboard,wandb,mlflow",
        "PYTHONPATH": str(HOOKS),
        "DETSLURM_START_HOOKS": "record",
        "HOME": str(folder),
    }
    argv = [sys.executable, *options, "script.py"]
    done = subprocess.run(
        argv, cwd=folder, env=env | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"no {module}")


WRITES = """\
    import sys
    from {module} import SummaryWriter

    with SummaryWriter("runs/first") as writer, SummaryWriter("runs/val") as other:
        assert writer.add_scalar("loss", 0.5, 1) is None
        other.add_scalar("loss", 0.25, global_step=1)
        writer.add_scalar(tag="acc", scalar_value=1)
        writer.add_scalar("hp_metric", -1, 0)  # as Lightning does at each start
        writer.add_scalars("both", {{"a": 1, "b": 2}}, 2)
        try:
            writer.add_scalar("loss", object(), 3)
        except Exception as error:
            print("raised", type(error).__name__)
"""


@needs("torch")
@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_tensorboard(pipe: Pipe, module: str) -> None:
    """Values go on to the files and to the channel; a call that raises sends nothing."""
    pytest.importorskip(module)
    assert "raised" in run(pipe, WRITES.format(module=module))
    assert pipe.values() == [
        (1, {"loss": 0.5}),
        (1, {"val/loss": 0.25}),
        (None, {"acc": 1}),
        (2, {"both/a": 1, "both/b": 2}),
    ]
    assert list(pipe.path.parent.glob("runs/first/events*"))


@needs("wandb")
def test_wandb(pipe: Pipe) -> None:
    """The step is the given one, a trainer's own, or W&B's count; only numbers are sent."""
    script = """\
        import wandb
        run = wandb.init(project="p")
        wandb.log({"loss": 1.0, "note": "x", "deep": {"acc": 0.5}})
        run.log({"loss": 0.5}, commit=False)
        wandb.log({"val_loss": 0.4})
        run.log({"loss": 0.25}, step=7)
        wandb.log({"eval/f1": 0.5, "train/global_step": 300})
        run.finish()
        """
    run(pipe, script, WANDB_MODE="offline", WANDB_SILENT="true")
    assert pipe.values() == [
        (0, {"loss": 1.0, "deep.acc": 0.5}),
        (1, {"loss": 0.5}),
        (1, {"val_loss": 0.4}),
        (7, {"loss": 0.25}),
        (300, {"eval/f1": 0.5}),
    ]


@needs("mlflow")
def test_mlflow(pipe: Pipe) -> None:
    """The fluent calls, and the client's, by which autologging works."""
    script = """\
        import mlflow, time
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        mlflow.set_tracking_uri("sqlite:///m.db")
        with mlflow.start_run() as run:
            mlflow.log_metric("loss", 1.0)
            mlflow.log_metric("loss", 0.5, step=3)
            mlflow.log_metrics({"a": 1, "b": 2}, step=4)
            batch = [Metric("c", 1.0, 0, 5), Metric("system/cpu", 1.0, 0, 5)]
            MlflowClient().log_batch(run.info.run_id, metrics=batch)
            MlflowClient().log_metric(run.info.run_id, "d", 2.0, step=6)
        print(sorted(MlflowClient().get_run(run.info.run_id).data.metrics))
        """
    assert "'loss'" in run(pipe, script)
    assert pipe.values() == [
        (None, {"loss": 1.0}),
        (3, {"loss": 0.5}),
        (4, {"a": 1, "b": 2}),
        (5, {"c": 1.0}),
        (6, {"d": 2.0}),
    ]


def test_only_the_chief_sends(pipe: Pipe) -> None:
    """By the variables of launchers, which ranks that torch spawns set after their start."""
    script = f"""\
{BEGIN}
    for name, value in (("LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_RANK", "1"), ("RANK", "0")):
        os.environ[name] = value
        time.sleep(1.1)  # for so long a process remembers its rank
        assert writer.add_scalar(f"{{name}}", 1.0, 0) == "theirs"
    """
    run(pipe, script)
    assert pipe.values() == [(0, {"RANK": 1.0})]


def test_a_full_channel_costs_values_and_no_time(pipe: Pipe) -> None:
    """They are counted; without any reader, or with long names, nothing else happens."""
    script = f"""\
{BEGIN}
    for step in range(3000):
        writer.add_scalar("a" * 100, 1.0, step)
    writer.add_scalar("b" * 5000, 1.0, 0)
    """
    run(pipe, script)
    sent = pipe.lines()
    assert 0 < len(sent) < 3000 and sent[0]["k"] == 0
    run(pipe, script, DETSLURM_RECORD="/nowhere")


def test_the_count_of_dropped_values_follows(pipe: Pipe) -> None:
    """With the next value that goes through, or when the script ends."""
    script = f"""\
{BEGIN}
    channel = os.environ["DETSLURM_RECORD"]
    os.environ["DETSLURM_RECORD"] = "/nowhere"
    writer.add_scalar("a", 1.0, 0)
    os.environ["DETSLURM_RECORD"] = channel
    writer.add_scalar("a", 1.0, 1)
    os.environ["DETSLURM_RECORD"] = "/nowhere"
    writer.add_scalar("a", 1.0, 2)
    os.environ["DETSLURM_RECORD"] = channel
    """
    run(pipe, script)
    assert [(line["k"], line["d"]) for line in pipe.lines()] == [(1, 1), (None, 1)]


def test_the_site_s_own_start_goes_on(pipe: Pipe, tmp_path: Path) -> None:
    """Another sitecustomize runs, is the one that code imports, and children have the hooks."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("HERE = 'theirs'\nprint('site began')\n")
    script = f"""\
{BEGIN}
    import sitecustomize
    print(sitecustomize.HERE)
    if "CHILD" not in os.environ:
        subprocess.run([sys.executable, *sys.argv], env=os.environ | {{"CHILD": "1"}}, check=True)
    loader = tensorboardX.writer.__spec__.loader
    print(type(loader).__name__, [*vars(loader)])
    writer.add_scalar("a", 1.0, len(os.environ.get("CHILD", "")))
    """
    said = run(pipe, script, PYTHONPATH=f"{HOOKS}:{site}")
    assert said.count("site began\ntheirs") == 2
    assert "SourceFileLoader ['name', 'path']" in said
    assert pipe.values() == [(1, {"a": 1.0}), (0, {"a": 1.0})]
    assert pipe.lines() == []
