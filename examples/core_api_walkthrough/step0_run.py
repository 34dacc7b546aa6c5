"""Step 0: an ordinary training script, which knows nothing of detslurm.

It trains one of timm's models on digits, in as many processes as it finds itself in, and has
checkpoints of its own.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import vision
from torch.nn.parallel import DistributedDataParallel


class Saver:
    """Keeps the state after the last epoch in a file."""

    def __init__(self, path, model, optimizer):
        self.path, self.model, self.optimizer = Path(path), model, optimizer

    def save(self, epoch):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "epoch": epoch}, self.path)


def resume(path, model, optimizer):
    """Load a saved state; returns the epoch to go on with."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def parse_args():
    parser = argparse.ArgumentParser()
    vision.add_arguments(parser)
    parser.add_argument("--local-rank", type=int, default=0)
    parser.add_argument("--output", default="last.pt", help="where to save after every epoch")
    parser.add_argument("--resume", help="a file that was saved before")
    return parser.parse_args()


def main():
    args = parse_args()
    device = vision.start(args)
    rank = dist.get_rank()
    train_data, test_data = vision.load_digits(args.train_images, device)
    model, optimizer = vision.build(args, device)
    saver = Saver(args.output, model, optimizer)

    start_epoch = 0
    if args.resume:
        start_epoch = resume(args.resume, model, optimizer)
    net = DistributedDataParallel(model)

    for epoch in range(start_epoch, args.epochs):
        train_metrics = vision.train_one_epoch(net, optimizer, train_data, args, epoch)
        eval_metrics = vision.validate(net, test_data)
        if rank == 0:
            print(f"epoch {epoch}: {train_metrics} {eval_metrics}")
            saver.save(epoch)


if __name__ == "__main__":
    main()
