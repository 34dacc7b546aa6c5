"""Train an image model: options from a YAML file and the command line, a summary.csv, --resume."""

import argparse
import csv
from pathlib import Path

import timm
import torch
import yaml
from sklearn.datasets import load_digits
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, CheckpointSaver, accuracy

config_parser = argparse.ArgumentParser(add_help=False)
config_parser.add_argument("-c", "--config", default="", metavar="FILE")

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="test_resnet")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--opt", default="sgd")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--weight-decay", type=float, default=2e-5)
parser.add_argument("--resume", default="", metavar="PATH")
parser.add_argument("--output", default="output", metavar="DIR")
parser.add_argument("--seed", type=int, default=42)


def parse_args():
    given, remaining = config_parser.parse_known_args()
    if given.config:
        parser.set_defaults(**yaml.safe_load(Path(given.config).read_text()))
    return parser.parse_args(remaining)


def loaders(batch_size):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = torch.nn.functional.interpolate(images, 32)
    data = torch.utils.data.TensorDataset(images, torch.tensor(digits.target))
    train, val = torch.utils.data.random_split(
        data, [1500, 297], generator=torch.Generator().manual_seed(0)
    )
    make = torch.utils.data.DataLoader
    return make(train, batch_size, shuffle=True), make(val, 256)


def validate(model, loader):
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            output = model(x)
            losses.update(torch.nn.functional.cross_entropy(output, y).item(), len(y))
            top1.update(accuracy(output, y)[0].item(), len(y))
    return losses.avg, top1.avg


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    model = timm.create_model(args.model, num_classes=10, in_chans=1)
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=args.lr, weight_decay=args.weight_decay)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs)
    start_epoch = 0
    if args.resume:
        state = torch.load(args.resume, weights_only=False)
        model.load_state_dict(state["state_dict"])
        optimizer.load_state_dict(state["optimizer"])
        start_epoch = state["epoch"] + 1
        print(f"Loaded checkpoint '{args.resume}' (epoch {state['epoch']})")
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    saver = CheckpointSaver(
        model, optimizer, args, checkpoint_dir=output, recovery_dir=output, max_history=2
    )
    train, val = loaders(args.batch_size)
    for epoch in range(start_epoch, args.epochs):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step(epoch + 1)
        loss, top1 = validate(model, val)
        print(f"Test: {epoch} Loss: {loss:.4f} Acc@1: {top1:.3f}", flush=True)
        with (output / "summary.csv").open("a") as file:
            csv.writer(file).writerow([epoch, loss, top1])
        saver.save_checkpoint(epoch, metric=top1)


if __name__ == "__main__":
    main()
