"""A DeepSpeed script of one's own on the Core API: scikit-learn's digits with ZeRO.

It is what a plain DeepSpeed script is, `deepspeed.initialize` and a loop, and three things more: it
reports metrics, saves checkpoints of which every rank writes its own shards, and leaves when it is
asked to. A run that was interrupted ends with the same bits as one that was not.
"""

import json
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from sklearn.datasets import load_digits
from torch import nn

import detslurm as det

TAG = "state"


def load_data(device):
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32, device=device) / 16.0
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(device)
    train, test = order[300:], order[:300]
    return (images[train], labels[train]), (images[test], labels[test])


def build_engine(hparams):
    torch.manual_seed(hparams["seed"])  # every rank begins with the same weights
    width = hparams["width"]
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    config = json.loads(Path("ds_config.json").read_text())
    config["optimizer"]["params"]["lr"] = hparams["learning_rate"]
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    return engine


def epoch_batches(count, batch_size, seed, epoch):
    generator = torch.Generator().manual_seed(seed * 1000 + epoch)
    return torch.randperm(count, generator=generator)[: count // batch_size * batch_size].split(
        batch_size
    )


def train_batch(engine, images, labels, batch):
    """One optimizer step: each rank has its share of every micro-batch."""
    size = engine.train_micro_batch_size_per_gpu()
    shares = batch.split(size)[engine.global_rank :: engine.world_size]
    total = 0.0
    for share in shares:
        loss = nn.functional.cross_entropy(engine(images[share]), labels[share])
        engine.backward(loss)
        engine.step()
        total += loss.item() / len(shares)
    return total


@torch.no_grad()
def evaluate(engine, images, labels):
    output = engine.module(images)
    return {
        "loss": nn.functional.cross_entropy(output, labels).item(),
        "accuracy": (output.argmax(1) == labels).float().mean().item(),
    }


def save(core_context, engine, step):
    # Every rank writes: its part of the optimizer's state; with ZeRO-3 of the weights, too.
    with core_context.checkpoint.store_path({"steps_completed": step}, shard=True) as (path, _):
        engine.save_checkpoint(str(path), tag=TAG, client_state={"step": step})


def restore(core_context, engine, storage_id):
    with core_context.checkpoint.restore_path(storage_id) as path:
        loaded, state = engine.load_checkpoint(str(path), tag=TAG)
    assert loaded is not None, "DeepSpeed found no checkpoint there"
    return state["step"]


def main(core_context, info):
    hparams, seed = info.trial.hparams, info.trial.trial_seed
    engine = build_engine({**hparams, "seed": seed})
    (images, labels), test = load_data(engine.device)
    is_chief = core_context.distributed.rank == 0

    step = 0
    if info.latest_checkpoint is not None:
        step = restore(core_context, engine, info.latest_checkpoint)
        print(f"going on after batch {step}")

    size = engine.train_batch_size()
    per_epoch = len(epoch_batches(len(labels), size, seed, 0))
    for op in core_context.searcher.operations():
        while step < op.length * per_epoch:
            epoch, position = divmod(step, per_epoch)
            batch = epoch_batches(len(labels), size, seed, epoch)[position]
            loss = train_batch(engine, images, labels, batch)
            step += 1

            if is_chief and step % 10 == 0:
                core_context.train.report_training_metrics(step, {"loss": loss})
            if step % per_epoch == 0:
                metrics = evaluate(engine, *test)
                if is_chief:
                    print(f"epoch {epoch + 1}: accuracy {metrics['accuracy']:.3f}")
                    core_context.train.report_validation_metrics(step, metrics)
                    op.report_progress(epoch + 1)
                save(core_context, engine, step)
            if core_context.preempt.should_preempt():
                if step % per_epoch != 0:
                    save(core_context, engine, step)
                return
        metrics = evaluate(engine, *test)  # also where this run began with the last checkpoint
        if is_chief:
            op.report_completed(metrics["accuracy"])


if __name__ == "__main__":
    info = det.get_cluster_info()
    assert info is not None, "submit this with `detslurm submit const.yaml`"
    if get_accelerator().device_name() == "cpu":
        # Without GPUs DeepSpeed would compile a kernel for a minute, which training has no use for.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    distributed = det.core.DistributedContext.from_deepspeed()
    with det.core.init(distributed=distributed) as core_context:
        main(core_context, info)
