"""One of several ranks: python -m tests.gpu.ranks SCENARIO FOLDER, by the launcher.

GPU_BACKEND names what connects them; without it that is up to `pytorch.init()`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from detslurm import pytorch
from detslurm.pytorch import _ddp
from tests.pytorch import scenarios, sharding
from tests.pytorch.ranks import Plain, train
from tests.pytorch.sharding import Sharded


class Amp(Plain):
    """Automatic mixed precision; the last rank alone has an infinite loss in batch 4."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        context.experimental.use_amp()
        context._amp.scaler = torch.amp.GradScaler(context.device.type, init_scale=64.0)
        self.context, self.batch_size, self.synced = context, 4, []
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.model = context.wrap_model(net)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        ranks = self.context.distributed
        too_much = batch_idx == 3 and ranks.rank == ranks.size - 1
        loss = (self.model(batch[0]).float() - batch[1]).square().mean()
        self.context.backward(loss * (torch.inf if too_much else 1))
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda p: nn.utils.clip_grad_norm_(p, 0.5)
        )
        return {"scale": self.context._amp.scaler.get_scale()}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.model(batch[0]).mean()}


class Split(Sharded):
    """Split up by `fully_shard()`, also where there is one rank alone."""

    def split(self, net: Any) -> nn.Module:
        for layer in (net[0], net[2], net):
            fully_shard(layer)
        return net


def exchanged(device: torch.device) -> list[list[float]]:
    """Gradients of a model that the process group has been through, and those of the bare one."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).to(device)
    x = torch.randn(16, 8).to(device)
    found = []
    for model in (net, _ddp.replicate(net, device)):
        model(x).square().sum().backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        _ddp.all_reduce_sum(flat)
        found.append(flat.tolist())
        net.zero_grad()
    _ddp.broadcast_buffers([model])
    return found


def amp() -> dict[str, Any]:
    """A step that no rank makes."""
    return train(1, 8, Amp)


def replicated() -> dict[str, Any]:
    """What DDP does, and what goes on where it was interrupted."""
    names = ("plain", "aggregated", "halfway", "adversaries", "compressed", "normalized", "twice")
    found: dict[str, Any] = {name: getattr(scenarios, name)() for name in names}
    if torch_dist.get_world_size() == 1:  # the trials have exchanged nothing
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        found["exchanged"] = exchanged(device)
    return found | {"amp": amp()}


def sharded() -> dict[str, Any]:
    """What `fully_shard()` does, and what goes on where it was interrupted."""
    found = {"whole": sharding.train(8, kind=Split), "first": sharding.train(5, kind=Split)}
    return found | {"rest": sharding.train(8, found["first"]["checkpoint"], kind=Split)}


def connect() -> None:
    """Connect the ranks by what GPU_BACKEND names."""
    backend = os.environ.get("GPU_BACKEND")
    if not backend:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
    torch_dist.init_process_group(backend, device_id=device)


def main() -> None:
    """Run a scenario and write what it returns, and where it ran."""
    torch.use_deterministic_algorithms(True)
    connect()
    result = globals()[sys.argv[1]]()
    result["device"] = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    result["backend"] = torch_dist.get_backend()
    text = json.dumps(result, default=lambda array: array.tolist())
    (Path(sys.argv[2]) / f"rank{os.environ['RANK']}.json").write_text(text)


if __name__ == "__main__":
    main()
