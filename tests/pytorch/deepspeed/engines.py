"""DeepSpeed engines on several ranks: python -m tests.pytorch.deepspeed.engines FOLDER.

Engines are saved on two ranks, go on on four and are saved again there, then go on on one. Each
world leaves in FOLDER what its engines' state was, bit for bit. The last one also loads what two
ranks saved to use it (`0` in FOLDER).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import deepspeed.comm
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import nn

from detslurm import core, pytorch
from detslurm.errors import InvalidCheckpointException
from detslurm.pytorch.deepspeed import DeepSpeedTrial, DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._checkpoints import _for_nobody_else_to_write
from detslurm.pytorch.deepspeed._universal import load_engine
from tests.pytorch import forked

TAG = "model0"
MOMENTS = ("exp_avg", "exp_avg_sq")


class Layer(nn.Module):  # type: ignore[misc]
    """A layer of odd sizes that also keeps a buffer."""

    def __init__(self, inputs: int, outputs: int, frozen: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.linear.weight.requires_grad_(not frozen)
        self.register_buffer("passes", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return torch.tanh(self.linear(x.to(self.linear.weight.dtype)))


LAYERS = ((7, 13, False), (13, 13, True), (13, 11, False), (11, 5, False))


def loss_of(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The same mean square for any precision."""
    return (output.float() - wanted).square().mean()


def _dtype(precision: str) -> torch.dtype:
    """By its name in torch; "half" is float16 on processors that DeepSpeed trains it on."""
    if precision == "half":
        return torch.float16 if get_accelerator().is_fp16_supported() else torch.bfloat16
    found: torch.dtype = getattr(torch, precision)
    return found


class Engine:
    """One engine with everything that could be forgotten: `kind` is "ZERO_STAGE PRECISION WHAT"."""

    def __init__(self, kind: str, seed: int, stages: int = 0) -> None:
        stage, precision, self.what = kind.split()
        self.stage, self.dtype = int(stage), _dtype(precision)
        torch.manual_seed(seed)
        if self.what == "pipeline":
            specs = [LayerSpec(Layer, *sizes) for sizes in LAYERS]
            model = PipelineModule(
                specs, stages, loss_fn=loss_of, partition_method="uniform", checkpointable_layers=[]
            )
        else:
            model = nn.Sequential(*(Layer(*sizes) for sizes in LAYERS))
        config = self._config()
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=self._optimizer(model), config=config
        )

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        trained = [p for p in model.parameters() if p.requires_grad]
        groups = [{"params": trained[:1], "lr": 0.01, "weight_decay": 0.1}]
        if self.what != "pipeline":  # where each stage has all groups
            groups.append({"params": trained[1:], "lr": 0.03, "weight_decay": 0.0})
        else:
            groups[0]["params"] = trained
        if self.what == "momentum":
            return torch.optim.SGD(groups, momentum=0.9)
        return torch.optim.Adam(groups)

    def _config(self) -> dict[str, Any]:
        return {
            "train_batch_size": 16,
            "gradient_accumulation_steps": 2 if self.what != "pipeline" else 4,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": self.stage, "sub_group_size": 64},
            "scheduler": {
                "type": "WarmupLR",
                "params": {"warmup_num_steps": 50, "warmup_max_lr": 0.02},
            },
            "bf16": {"enabled": self.dtype is torch.bfloat16},
            "fp16": {"enabled": self.dtype is torch.float16, "initial_scale_power": 8},
        }

    def step(self, number: int) -> float:
        """Train on 16 records, whatever the ranks are; the mean loss."""
        random = torch.Generator().manual_seed(number)
        x, y = torch.randn(16, 7, generator=random), torch.randn(16, 5, generator=random)
        engine, ranks = self.engine, self.engine.seq_dp_world_size
        parts = self.engine.gradient_accumulation_steps()
        mine = [
            slice(start, start + 16 // parts // ranks)
            for part in range(parts)
            for start in [(part * ranks + self._replica()) * (16 // parts // ranks)]
        ]
        if self.what == "pipeline":
            return float(engine.train_batch(iter([(x[part], y[part]) for part in mine])))
        total = torch.zeros(())
        for part in mine:
            loss = loss_of(engine(x[part].to(self.dtype)), y[part])
            engine.backward(loss)
            engine.step()
            total += loss.detach() / parts / ranks
        deepspeed.comm.all_reduce(total)
        return float(total)

    def _replica(self) -> int:
        if self.what == "pipeline":
            return int(self.engine.grid.get_data_parallel_rank())
        return int(deepspeed.comm.get_rank())

    def state(self) -> dict[str, Any]:
        """All that training goes on with; a collective."""
        optimizer = getattr(self.engine.optimizer, "optimizer", self.engine.optimizer)
        counts = {float(state["step"]) for state in optimizer.state.values() if "step" in state}
        options = [{k: g[k] for k in ("lr", "weight_decay")} for g in optimizer.param_groups]
        schedule = self.engine.lr_scheduler.state_dict()
        return {
            "steps": (sorted(counts), self.engine.global_steps, schedule),
            "options": options,
            **self.weights(),
            **dict(self._optimized()),
        }

    def weights(self) -> dict[str, torch.Tensor]:
        """What the forward pass uses; a collective."""
        module = self.engine.module
        with deepspeed.zero.GatheredParameters(list(module.parameters()), enabled=self.stage == 3):
            return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    def _optimized(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.engine.module.named_parameters():
            if not parameter.requires_grad or self.what == "momentum":
                continue
            for key in (None, *MOMENTS):
                whole = self._whole(parameter, key)
                if whole is not None:
                    yield f"{name} {key}", whole

    def _whole(self, parameter: nn.Parameter, key: str | None) -> torch.Tensor | None:
        if self.stage == 3:
            if key is None:
                return safe_get_full_fp32_param(parameter)
            return safe_get_full_optimizer_state(parameter, key)
        # What DeepSpeed has for this needs a step first.
        whole, part = torch.zeros(parameter.numel()), parameter._hp_mapping
        if part is not None:
            optimizer = self.engine.optimizer.optimizer
            flat = optimizer.param_groups[part.param_group_index]["params"][0]
            source = flat if key is None else optimizer.state[flat][key]
            here, there = part.lp_fragment_address, part.hp_fragment_address
            whole[here.start :][: here.numel] = source[there.start :][: there.numel].detach()
        deepspeed.comm.all_reduce(whole, group=parameter._dp_group)
        return whole


class Used(DeepSpeedTrial):
    """A trial with one of these engines."""

    def __init__(self, context: DeepSpeedTrialContext, kind: str) -> None:
        self.own = Engine(kind, 99, stages=1)
        context.wrap_model_engine(self.own.engine)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        raise NotImplementedError

    def build_training_data_loader(self) -> None:
        raise NotImplementedError

    def build_validation_data_loader(self) -> None:
        raise NotImplementedError


KINDS = ("2 half plain", "3 bfloat16 plain", "1 float32 momentum", "1 bfloat16 pipeline")


def main() -> None:
    """One rank of a world; its parent is `sequence`."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    dist = core.DistributedContext.from_torch_distributed()
    with core.init(distributed=dist, checkpoint_storage=str(target)) as context:
        # With a core the conversion is beside its checkpoints, else in a directory of the node.
        own = context if dist.size > 1 else None
        trial = SimpleNamespace(distributed=dist, _core=own, _only_used=False)
        for kind in KINDS:
            if source == target or (source / kind).is_dir():
                _go_on(kind, trial, source, target)
    if dist.size == 1:
        os.umask(0)
        with _for_nobody_else_to_write():
            (target / "file").touch()
        assert (target / "file").stat().st_mode & 0o777 == 0o644
        for kind in KINDS:
            folder = target.with_name("2") / kind
            (folder / "load_data.json").write_text(json.dumps({"trial_type": "DeepSpeedTrial"}))
            loaded = pytorch.load_trial_from_checkpoint_path(str(folder), Used, {"kind": kind})
            torch.save({"state": loaded.own.weights()}, target.with_name("0") / f"{kind} 0.pt")


def _go_on(kind: str, trial: Any, source: Path, target: Path) -> None:
    rank, ranks, fresh = trial.distributed.rank, trial.distributed.size, source == target
    engine = Engine(kind, 1 if fresh else 99, ranks)
    try:
        if fresh:
            for number in range(3):
                engine.step(number)
        else:
            load_engine(trial, engine.engine, source / kind, TAG)
    except InvalidCheckpointException as refusal:
        torch.save(str(refusal), target / f"{kind} {rank}.pt")
        return
    found: dict[str, Any] = {"state": engine.state()}
    engine.engine.save_checkpoint(str(target / kind), tag=TAG)
    found["losses"] = [engine.step(number) for number in (100, 101)]
    found["steps"] = engine.state()["steps"]
    torch.save(found, target / f"{kind} {rank}.pt")


def sequence(folder: Path) -> None:
    """All worlds, one after the other."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled
    source = folder / "2"
    (folder / "0").mkdir()
    for ranks in (2, 4, 1):
        target = folder / str(ranks)
        target.mkdir()
        if status := forked.main(
            ranks, "tests.pytorch.deepspeed.engines", str(source), str(target)
        ):
            sys.exit(abs(status))
        source = target


if __name__ == "__main__":
    sequence(Path(sys.argv[1]))
