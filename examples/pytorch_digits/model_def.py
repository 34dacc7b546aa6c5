"""A small convolutional network on scikit-learn's handwritten digits, as a PyTorchTrial."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from detslurm import pytorch


def digits():
    """1,797 real images of 8 x 8 pixels: those to train on, and those to validate with."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[300:], order[:300]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network(channels, dropout):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * channels * 16, 10),
    )


def optimizer_of(model, hparams):
    """Adam, unless the search has chosen SGD; conditions.yaml has ranges of their options."""
    rate, chosen = hparams["learning_rate"], hparams.get("optimizer", {"name": "adam"})
    if chosen["name"] == "sgd":
        return torch.optim.SGD(model.parameters(), rate, momentum=chosen["momentum"])
    return torch.optim.Adam(model.parameters(), rate, betas=(chosen.get("beta1", 0.9), 0.999))


class DigitsTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        if not torch.cuda.is_available():
            torch.set_num_threads(1)
        self.train_data, self.test_data = digits()
        model = network(context.get_hparam("channels"), context.get_hparam("dropout"))
        self.model = context.wrap_model(model)
        optimizer = optimizer_of(self.model, context.get_hparams())
        self.optimizer = context.wrap_optimizer(optimizer)
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9),
            pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )

    def build_training_data_loader(self):
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(self.train_data, batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(self.test_data, batch_size=100)

    def train_batch(self, batch, epoch_idx, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        images, labels = batch
        output = self.model(images)
        return {
            "validation_loss": nn.functional.cross_entropy(output, labels),
            "accuracy": (output.argmax(1) == labels).float().mean(),
        }
