"""A small GPT that predicts the next character, on one DeepSpeed engine."""

import deepspeed
import torch
from text import CHARACTERS, Passages, load_text
from torch import nn

from detslurm import pytorch
from detslurm.pytorch.deepspeed import DeepSpeedTrial, overwrite_deepspeed_config

LENGTH = 64


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        shape = (rows, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(nn.functional.gelu(self.widen(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, CHARACTERS)

    def forward(self, numbers):
        places = torch.arange(numbers.shape[1], device=numbers.device)
        x = self.characters(numbers) + self.positions(places)
        return self.output(self.norm(self.layers(x)))


class GPTTrial(DeepSpeedTrial):
    def __init__(self, context):
        self.context = context
        config = overwrite_deepspeed_config(
            "ds_config.json", context.get_hparams().get("overwrite_deepspeed_args", {})
        )
        model = GPT(*(context.get_hparam(name) for name in ("width", "heads", "layers")))
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        self.engine = context.wrap_model_engine(engine)
        self.train_text, self.test_text = load_text()

    def build_training_data_loader(self):
        size = self.context.get_train_micro_batch_size_per_gpu()
        return pytorch.DataLoader(Passages(self.train_text, LENGTH), batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Passages(self.test_text, LENGTH), batch_size=32)

    def loss(self, dataloader_iter):
        numbers, following = self.context.to_device(next(dataloader_iter))
        output = self.engine(numbers)
        return nn.functional.cross_entropy(output.flatten(0, 1), following.flatten())

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        loss = self.loss(dataloader_iter)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter, batch_idx):
        return {"validation_loss": self.loss(dataloader_iter)}
