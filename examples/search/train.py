"""Train a small network on scikit-learn's handwritten digits, as far as a search wants it to.

One script for all searchers: most say how far to train by `searcher.operations()`; those with
`time_metric` and `max_time` let it train on and stop it by `should_preempt()`.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import detslurm as det


def load_data():
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[500:], order[:500]
    return (images[train], labels[train]), (images[test], labels[test])


class Trainer:
    def __init__(self, core_context, hparams, seed):
        torch.manual_seed(seed)
        self.core_context, self.hparams = core_context, hparams
        self.train_data, self.test_data = load_data()
        self.model = nn.Sequential(
            nn.Linear(64, hparams["hidden"]),
            nn.ReLU(),
            nn.Dropout(hparams["dropout"]),
            nn.Linear(hparams["hidden"], 10),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=hparams["learning_rate"])
        self.epoch = 0

    def train_to(self, epochs):
        """Train until `epochs` are done; None if the trial has to leave before."""
        accuracy = self.accuracy()
        while self.epoch < epochs:
            self.train_epoch()
            self.epoch += 1
            accuracy = self.accuracy()
            print(f"epoch {self.epoch}: accuracy {accuracy:.3f}")
            self.save()
            metrics = {"accuracy": accuracy, "epochs": self.epoch}
            self.core_context.train.report_validation_metrics(self.epoch, metrics)
            if self.core_context.preempt.should_preempt():
                return None
        return accuracy

    def train_epoch(self):
        images, labels = self.train_data
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(labels), generator=generator)
        for batch in order.split(self.hparams["batch_size"]):
            loss = nn.functional.cross_entropy(self.model(images[batch]), labels[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def accuracy(self):
        images, labels = self.test_data
        self.model.eval()
        right = (self.model(images).argmax(1) == labels).float().mean().item()
        self.model.train()
        return right

    def save(self):
        state = {"model": self.model.state_dict(), "epoch": self.epoch}
        metadata = {"steps_completed": self.epoch}
        with self.core_context.checkpoint.store_path(metadata) as (path, _):
            torch.save(state, path / "state.pt")

    def restore(self, storage_id):
        # The weights alone: the learning rate is the trial's own, also where population based
        # training starts it from another trial's checkpoint.
        with self.core_context.checkpoint.restore_path(storage_id) as path:
            state = torch.load(path / "state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.epoch = state["epoch"]


def main(core_context, info):
    torch.set_num_threads(1)
    hparams = info.trial.hparams
    trainer = Trainer(core_context, hparams, info.trial.trial_seed)
    if info.latest_checkpoint is not None:
        trainer.restore(info.latest_checkpoint)
    if "max_epochs" in hparams:  # the search watches, and may stop the trial on the way
        trainer.train_to(hparams["max_epochs"])
        return
    for op in core_context.searcher.operations():
        accuracy = trainer.train_to(op.length)
        if accuracy is None:
            return
        op.report_completed(accuracy)


if __name__ == "__main__":
    info = det.get_cluster_info()
    assert info is not None, "submit one of the .yaml files with `detslurm submit`"
    with det.core.init() as core_context:
        main(core_context, info)
