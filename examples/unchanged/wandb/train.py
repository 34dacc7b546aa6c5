"""A loop that logs to W&B and goes on from checkpoints/last.pt."""

import argparse
from pathlib import Path

import torch
import wandb
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--nesterov", action=argparse.BooleanOptionalAction)
args = parser.parse_args()

run = wandb.init(project="digits", config=vars(args))
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer = torch.optim.SGD(
    model.parameters(), lr=args.lr, momentum=0.9, nesterov=bool(args.nesterov)
)
last, start = Path("checkpoints/last.pt"), 0
if last.exists():
    state = torch.load(last)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["epoch"] + 1
    print("resuming at epoch", start, flush=True)
for epoch in range(start, args.epochs):
    for batch in torch.randperm(1500).split(args.batch_size):
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        output = model(x[1500:])
    wandb.log(
        {
            "train/loss": loss.item(),
            "val/loss": torch.nn.functional.cross_entropy(output, y[1500:]).item(),
            "val/accuracy": (output.argmax(-1) == y[1500:]).float().mean().item(),
        },
        step=epoch,
    )
    last.parent.mkdir(exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, "checkpoints/new.pt")
    Path("checkpoints/new.pt").replace(last)
run.finish()
