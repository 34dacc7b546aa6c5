"""Step 3: checkpoints in the experiment, and a training that stops and goes on when asked."""

import argparse
import contextlib
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import vision
from torch.nn.parallel import DistributedDataParallel

import detslurm as det


class Saver:
    """Keeps the state after the last epoch in a file."""

    def __init__(self, path, model, optimizer):
        self.path, self.model, self.optimizer = Path(path), model, optimizer

    def save(self, epoch):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "epoch": epoch}, self.path)


class CheckpointSaver(Saver):
    """Stores what `Saver` saves as a checkpoint of the trial, too."""

    def __init__(self, core_context, trial_id, epoch_length, *args):
        super().__init__(*args)
        self.core_context, self.trial_id = core_context, trial_id
        self.epoch_length = epoch_length

    def save(self, epoch):
        super().save(epoch)
        metadata = {
            "steps_completed": self.epoch_length * (epoch + 1),
            "trial_id": self.trial_id,
        }
        with self.core_context.checkpoint.store_path(metadata) as (path, _):
            shutil.copy2(self.path, path / "data")


def resume(path, model, optimizer):
    """Load a saved state; returns the epoch to go on with."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def restored(core_context, latest_checkpoint):
    """The directory of the checkpoint to go on from, for a `with`; None if there is none."""
    if latest_checkpoint is None:
        return contextlib.nullcontext()
    return core_context.checkpoint.restore_path(latest_checkpoint)


def parse_args():
    parser = argparse.ArgumentParser()
    vision.add_arguments(parser)
    parser.add_argument("--output", default="last.pt", help="where to save after every epoch")
    parser.add_argument("--resume", help="a file that was saved before")
    args = parser.parse_args()
    args.local_rank = int(os.environ["LOCAL_RANK"])
    return args


def main(core_context):
    args = parse_args()
    info = det.get_cluster_info()
    # Outside a job there is none.
    latest_checkpoint = info.latest_checkpoint if info is not None else None
    trial_id = info.trial.trial_id if info is not None else -1

    device = vision.start(args)
    rank = dist.get_rank()
    train_data, test_data = vision.load_digits(args.train_images, device)
    model, optimizer = vision.build(args, device)
    epoch_length = vision.epoch_length(args)
    saver = CheckpointSaver(core_context, trial_id, epoch_length, args.output, model, optimizer)

    start_epoch = 0
    with restored(core_context, latest_checkpoint) as path:
        checkpoint = args.resume if path is None else path / "data"
        if checkpoint:
            start_epoch = resume(checkpoint, model, optimizer)
        if latest_checkpoint is not None:
            metadata = core_context.checkpoint.get_metadata(latest_checkpoint)
            if metadata["trial_id"] != trial_id:
                start_epoch = 0  # another trial's weights to begin with, not a training to go on
    net = DistributedDataParallel(model)

    for epoch in range(start_epoch, args.epochs):
        train_metrics = vision.train_one_epoch(net, optimizer, train_data, args, epoch)
        eval_metrics = vision.validate(net, test_data)
        if rank == 0:
            print(f"epoch {epoch}: {train_metrics} {eval_metrics}")
            batches = epoch_length * (epoch + 1)
            core_context.train.report_training_metrics(batches, train_metrics)
            val_metrics = {"val_" + name: value for name, value in eval_metrics.items()}
            core_context.train.report_validation_metrics(batches, val_metrics)
            saver.save(epoch)
        if core_context.preempt.should_preempt():
            break


if __name__ == "__main__":
    distributed = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=distributed) as core_context:
        main(core_context)
