"""Train on two devices; a run goes on from the last checkpoint, if there is one."""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader, TensorDataset, random_split


class Classifier(LightningModule):
    def __init__(self, lr, hidden):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
        )

    def loss(self, batch, name):
        x, y = batch
        output = self.net(x)
        loss = torch.nn.functional.cross_entropy(output, y)
        self.log(f"{name}_loss", loss, sync_dist=True)
        self.log(f"{name}_acc", (output.argmax(-1) == y).float().mean(), sync_dist=True)
        return loss

    def training_step(self, batch, index):
        return self.loss(batch, "train")

    def validation_step(self, batch, index):
        self.loss(batch, "val")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    seed_everything(1)
    y = torch.randint(10, (1800,))
    data = TensorDataset(torch.randn(10, 64)[y] + 2 * torch.randn(1800, 64), y)
    train, val = random_split(data, [1500, 300])
    trainer = Trainer(
        accelerator="auto",
        devices=2,
        strategy="ddp",
        max_epochs=args.epochs,
        logger=TensorBoardLogger("logs", version=""),
        callbacks=[ModelCheckpoint("checkpoints", save_last=True)],
        enable_progress_bar=False,
        log_every_n_steps=10,
    )
    trainer.fit(
        Classifier(args.lr, args.hidden),
        DataLoader(train, 32, shuffle=True),
        DataLoader(val, 128),
        ckpt_path="last",
    )


if __name__ == "__main__":
    main()
