"""A Hydra app: conf/config.yaml, and overrides of it."""

import json
import os

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.tensorboard import SummaryWriter


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    print(OmegaConf.to_yaml(cfg), flush=True)
    torch.manual_seed(cfg.seed)
    y = torch.randint(10, (1800,))
    x = torch.randn(10, 64)[y] + 2 * torch.randn(1800, 64)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, cfg.model.width), torch.nn.Tanh(), torch.nn.Linear(cfg.model.width, 10)
    )
    optimizer = hydra.utils.instantiate(cfg.optimizer, params=model.parameters())
    os.makedirs(cfg.save_dir, exist_ok=True)
    last, begin = os.path.join(cfg.save_dir, "last.pt"), 0
    if os.path.exists(last):
        state = torch.load(last)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"]
        print("resuming at epoch", begin, flush=True)
    writer = SummaryWriter(os.path.join(cfg.save_dir, "tensorboard"))
    for epoch in range(begin, cfg.epochs):
        for batch in torch.randperm(1500).split(8):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            output = model(x[1500:])
        loss = torch.nn.functional.cross_entropy(output, y[1500:]).item()
        accuracy = (output.argmax(-1) == y[1500:]).float().mean().item()
        writer.add_scalar("val/loss", loss, epoch + 1)
        writer.add_scalar("val/accuracy", accuracy, epoch + 1)
        writer.flush()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epoch": epoch + 1}, f"{last}.new")
        os.replace(f"{last}.new", last)
    print(json.dumps({"accuracy": accuracy}))


if __name__ == "__main__":
    main()
