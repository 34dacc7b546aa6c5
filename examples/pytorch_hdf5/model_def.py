"""A network on MNIST images in an HDF5 file that all ranks read."""

import torch
from hdf5 import HDF5Records
from torch import nn
from torch.utils.data import BatchSampler, SequentialSampler

from detslurm import pytorch

TRAINING, ALL = 4000, 5000


class Accuracy(pytorch.MetricReducer):
    """The share of right answers among all records: batches and ranks may have different sizes."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.right, self.count = 0, 0

    def update(self, output, labels):
        self.right += (output.argmax(1) == labels).sum().item()
        self.count += len(labels)

    def per_slot_reduce(self):
        return self.right, self.count

    def cross_slot_reduce(self, per_slot_metrics):
        right, count = (sum(numbers) for numbers in zip(*per_slot_metrics, strict=True))
        return right / count


class ImagesTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        if not torch.cuda.is_available():
            torch.set_num_threads(1)
        hidden = context.get_hparam("hidden")
        model = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 12 * 12, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 10),
        )
        self.model = context.wrap_model(model)
        optimizer = torch.optim.SGD(
            self.model.parameters(), context.get_hparam("learning_rate"), momentum=0.9
        )
        self.optimizer = context.wrap_optimizer(optimizer)
        self.accuracy = context.wrap_reducer(Accuracy(), name="accuracy")

    def build_training_data_loader(self):
        records = HDF5Records(self.context.get_data_config()["file"], 0, TRAINING)
        size = self.context.get_per_slot_batch_size()
        # Batches are whole stretches of the file; their order is what is shuffled.
        batches = BatchSampler(SequentialSampler(records), size, drop_last=True)
        return pytorch.DataLoader(
            records,
            batch_sampler=pytorch.samplers.ReproducibleShuffleBatchSampler(batches, seed=1),
            num_workers=1,
            persistent_workers=True,
        )

    def build_validation_data_loader(self):
        records = HDF5Records(self.context.get_data_config()["file"], TRAINING, ALL)
        return pytorch.DataLoader(records, batch_size=128)

    def loss(self, batch):
        images, labels = batch
        output = self.model(images.unsqueeze(1).float() / 255)
        self.accuracy.update(output, labels)
        return nn.functional.cross_entropy(output, labels)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": self.loss(batch)}
