"""A generator and a discriminator of digits, each on a DeepSpeed engine of its own."""

import deepspeed
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

from detslurm import pytorch
from detslurm.pytorch.deepspeed import DeepSpeedTrial, overwrite_deepspeed_config

PIXELS = 64


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2),
        nn.Linear(128, outputs),
    )  # fmt: skip


class GANTrial(DeepSpeedTrial):
    def __init__(self, context):
        self.context = context
        self.config = overwrite_deepspeed_config(
            "ds_config.json", context.get_hparams().get("overwrite_deepspeed_args", {})
        )
        self.generator = self.engine_of(network(context.get_hparam("noise"), PIXELS))
        self.discriminator = self.engine_of(network(PIXELS, 1))
        images = torch.tensor(load_digits().images / 8 - 1).float().flatten(1)
        self.train_data, self.test_data = random_split(
            TensorDataset(images), [1536, 261], torch.Generator().manual_seed(0)
        )

    def engine_of(self, model):
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=self.config
        )
        return self.context.wrap_model_engine(engine)

    def build_training_data_loader(self):
        size = self.context.get_train_micro_batch_size_per_gpu()
        return pytorch.DataLoader(self.train_data, batch_size=size, shuffle=True, drop_last=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(self.test_data, batch_size=64, drop_last=True)

    def noise(self, count, number):
        """By its number, so that ranks have different noise and a resumed training the same."""
        numbers = torch.Generator().manual_seed(number)
        noise = torch.randn(count, self.context.get_hparam("noise"), generator=numbers)
        return self.context.to_device(noise)

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        (real,) = self.context.to_device(next(dataloader_iter))
        ranks = self.context.distributed
        made = self.generator(self.noise(len(real), batch_idx * ranks.size + ranks.rank)).tanh()
        return {
            "discriminator_loss": self.step_discriminator(real, made.detach()),
            "generator_loss": self.step_generator(made),
        }

    def step_discriminator(self, real, made):
        of_real, of_made = self.discriminator(torch.cat([real, made])).chunk(2)
        loss = nn.functional.softplus(-of_real).mean() + nn.functional.softplus(of_made).mean()
        self.discriminator.backward(loss)
        self.discriminator.step()
        return loss

    def step_generator(self, made):
        # The discriminator only judges here; gradients of its own would go into its next step.
        judge = self.discriminator.module.requires_grad_(False)
        loss = nn.functional.softplus(-judge(made)).mean()
        self.generator.backward(loss)
        self.generator.step()
        judge.requires_grad_(True)
        return loss

    def evaluate_batch(self, dataloader_iter, batch_idx):
        """How far the pixels' averages and deviations are from those of real digits."""
        (real,) = self.context.to_device(next(dataloader_iter))
        made = self.generator(self.noise(len(real), batch_idx)).tanh()
        means, deviations = made.mean(0) - real.mean(0), made.std(0) - real.std(0)
        return {"distance": means.square().mean() + deviations.square().mean()}
