"""Through the front door: an experiment whose trials Slurm gives a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.cluster import Cluster, ClusterSpec, guarded
from tests.conftest import Login
from tests.e2e import test_keras, test_lightning, test_transformers
from tests.e2e.conftest import copy_example
from tests.e2e.desk import Desk
from tests.envelope import unwrap
from tests.gpu.conftest import ON_CPU
from tests.pytorch.conftest import REPOSITORY

pytestmark = pytest.mark.cluster

MODEL = """\
    import time
    import torch
    from torch import nn
    import detslurm as det
    from detslurm._base.flag import PreemptFlag
    from detslurm import pytorch

    SIZE = 8192 if torch.cuda.is_available() else 256

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            torch.use_deterministic_algorithms(True)
            context.experimental.use_amp()
            self.context = context
            hidden = [nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2)]
            self.model = context.wrap_model(nn.Sequential(*hidden, nn.Linear(32, 1)))
            self.optimizer = context.wrap_optimizer(
                torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
            )
            print("slots", *det.get_cluster_info().slot_ids, "on", context.device)
            self.waits, self.flag = context.get_hparam("waits"), PreemptFlag.of_this_node()
            self.works = det.get_cluster_info().trial._trial_run_id == 1

        def data(self, size, shuffle):
            numbers = torch.Generator().manual_seed(1)
            x = torch.randn(size, 8, generator=numbers)
            return pytorch.DataLoader(
                torch.utils.data.TensorDataset(x, x.prod(1, keepdim=True)),
                batch_size=8, shuffle=shuffle, num_workers=2, pin_memory=torch.cuda.is_available(),
            )

        def build_training_data_loader(self):
            return self.data(104, True)

        def build_validation_data_loader(self):
            return self.data(36, False)

        def train_batch(self, batch, epoch_idx, batch_idx):
            until = time.monotonic() + 24
            work = torch.ones(SIZE, SIZE, device=self.context.device)
            while self.works and batch_idx == 6 and time.monotonic() < until:
                work @ work
                loss = work[0, 0].item()  # nothing is queued that a preemption would wait for
                if self.waits and self.flag.preempt:
                    break
            x, y = batch
            loss = nn.functional.mse_loss(self.model(x).float(), y)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch):
            x, y = batch
            return {"error": nn.functional.mse_loss(self.model(x).float(), y)}
"""

CONFIG = """\
    name: test
    entrypoint: model_def:Trial
    hyperparameters: {{waits: {waits}}}
    searcher: {{name: single, metric: error, max_length: {{batches: 40}}}}
    resources: {{slots_per_trial: 1}}
    optimizations: {{aggregation_frequency: 2}}
    min_validation_period: {{epochs: 1}}
    scheduling_unit: 1
    profiling: {{enabled: true}}
    environment: {{environment_variables: ["CUBLAS_WORKSPACE_CONFIG=:4096:8"]}}
    reproducibility: {{experiment_seed: 5}}
"""


@pytest.fixture(scope="module")
def cluster(needs_gpu: None, slurm_programs: None) -> Iterator[Cluster]:
    """Nodes that all have the same GPU, this machine's first."""
    with guarded(Cluster(ClusterSpec(name="gpu", nodes=8, gpus=1, accounting=False))) as cluster:
        yield cluster


@pytest.fixture
def desk(device: torch.device, cluster: Cluster, login: Login) -> Desk:
    """An ordinary user there."""
    return Desk(login(cluster, "alice"))


def project(desk: Desk, name: str, *, waits: bool) -> Path:
    desk.write(f"{name}/model_def.py", MODEL)
    config = CONFIG.format(waits=str(waits).lower())
    return desk.write(f"{name}/experiment.yaml", config)


def test_a_trial_on_a_gpu_is_preempted(desk: Desk, cluster: Cluster) -> None:
    """With mixed precision and data from workers, a real job of higher priority takes the GPU: the
    trial ends as one that was not disturbed, to the last bit. What it used of the GPU is shown."""
    whole = desk.submit(project(desk, "whole", waits=False))
    desk.wait_for_state(whole, "COMPLETED")
    low = "resources.resource_pool=low"
    preempted = desk.submit(project(desk, "preempted", waits=True), low)
    desk.wait_for_steps(preempted, 6)
    take_nodes(desk, cluster)
    desk.wait_for_state(preempted, "COMPLETED")

    assert desk.outcomes(preempted) == ["preempted", "completed"], desk.log(preempted)
    for group in ("training", "validation"):
        ours, theirs = desk.metrics(preempted, group), desk.metrics(whole, group)
        assert [(r.steps, r.metrics) for r in ours] == [(r.steps, r.metrics) for r in theirs]
    assert f"slots 0 on {'cpu' if ON_CPU else 'cuda'}" in desk.log(whole)
    if not ON_CPU:  # and nobody else is on the GPU: else the figures are nobody's
        (figures,) = unwrap(desk.run("experiment", "efficiency", str(whole), "--json").stdout)
        assert figures["gpu_percent"] > 10 and figures["gpu_memory_peak"] > 1 << 29, figures
        rows = desk.run("trial", "profile", str(desk.trial_dir(whole).id), "--json").stdout
        assert "gpu_util" in rows and "gpu_free_memory" in rows


OTHERS: dict[str, tuple[Any, dict[str, str], str]] = {
    "transformers": (
        test_transformers,
        {"use_cpu=True, ddp_backend=backend": "fp16=True"},
        "trainer.args.device",
    ),
    "lightning": (
        test_lightning,
        {'accelerator="cpu"': 'accelerator="gpu", precision="16-mixed"'},
        "trainer.strategy.root_device",
    ),
    "keras on torch": (test_keras, {}, "model.weights[0].value.device"),
    "keras on jax": (test_keras, {}, "model.weights[0].value.device"),
}
"""By the trainer: the module that tests it on CPUs, its script for a GPU, and which device it says
it has used."""


@pytest.mark.parametrize("name", OTHERS)
def test_other_trainers(desk: Desk, cluster: Cluster, name: str) -> None:
    """Scripts that only add a callback: preempted they go on, and their numbers are the same."""
    package, _, backend = name.partition(" on ")
    skip_without(*filter(None, (package, backend)))
    module, for_gpu, device = OTHERS[name]
    held_at = 16 if package == "keras" else 6  # Keras goes on at the beginning of an epoch
    script = module.SCRIPT + f'\n    print("computed on", {device})\n'
    for old, new in {} if ON_CPU else for_gpu.items():
        assert old in script
        script = script.replace(old, new)
    variables = (
        "CUBLAS_WORKSPACE_CONFIG=:4096:8, XLA_PYTHON_CLIENT_PREALLOCATE=false, "
        "XLA_FLAGS=--xla_gpu_deterministic_ops=true"
    )
    config = module.CONFIG.replace("{value}", "0.05").replace("{path}", "")
    project = desk.project(script, config)
    more = (
        f"environment.environment_variables=[{variables}, KERAS_BACKEND={backend}]",
        f"slurm.slot_type={'cpu' if ON_CPU else 'cuda'}",
        f"searcher.metric={'eval_loss' if package == 'transformers' else 'val_loss'}",
    )
    whole = desk.submit(project, *more)
    number = desk.submit(
        project, *more, f"hyperparameters.hold=[{held_at}, 0]", "resources.resource_pool=low"
    )
    for done in (whole, number):
        if done == number:
            desk.wait_for_log(number, "holds")
            take_nodes(desk, cluster)
        assert desk.wait_for_state(done, "COMPLETED", "ERROR") == "COMPLETED", desk.log(done)
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert desk.trial(number).runs[1].resumed_steps == held_at
    assert module.validations(desk, number) == module.validations(desk, whole)
    assert f"computed on {'cpu' if ON_CPU else 'cuda'}" in desk.log(number).lower()


EXAMPLES = (
    "pytorch_digits/const.yaml",
    "pytorch_text/const.yaml",
    "pytorch_hdf5/const.yaml",
    "deepspeed_core/const.yaml",
    "deepspeed_gan/const.yaml",
    "deepspeed_gpt/const.yaml",
    "deepspeed_pipeline/const.yaml",
    "core_api_walkthrough/step3.yaml",
)


def test_examples_learn(desk: Desk, gpu: torch.device) -> None:
    """All at once, each on one slot and a GPU, with no change but that."""
    skip_without("deepspeed", "mlxtend", "sklearn", "timm", "torchvision")
    submitted = {}
    for example in EXAMPLES:
        folder = copy_example(desk, example.partition("/")[0])
        submitted[example] = desk.submit(
            folder / Path(example).name,
            *("slurm.slot_type=cuda", "resources.slots_per_trial=1"),
            "reproducibility.experiment_seed=7",
        )
    failed = [
        f"{example}:\n{desk.log(number)[-3000:]}"
        for example, number in submitted.items()
        if desk.wait_for_state(number, "COMPLETED", "ERROR") != "COMPLETED"
    ]
    assert not failed, "\n".join(failed)
    for example, number in submitted.items():
        searcher = yaml.safe_load((REPOSITORY / "examples" / example).read_text())["searcher"]
        rows = desk.metrics(number, "validation")
        first, last = (row.metrics[searcher["metric"]] for row in (rows[0], rows[-1]))
        assert last < first if searcher.get("smaller_is_better", True) else last > first, example


def skip_without(*packages: str) -> None:
    """Skip the test where one of them is missing."""
    if missing := [name for name in packages if find_spec(name) is None]:
        pytest.skip(f"GPU: not installed: {', '.join(missing)}")


def take_nodes(desk: Desk, cluster: Cluster) -> None:
    """A job of higher priority that needs all nodes, and has got them."""
    done = desk.user.run(
        *("sbatch", "--parsable", "--partition=high", "--nodes=8", "--exclusive"),
        *("--output=/dev/null", "--wrap=sleep 1"),
    )
    cluster.wait_state(done.stdout.strip(), "RUNNING", "COMPLETED")
