"""A small transformer that predicts the next byte of Python's documentation."""

import math

import torch
from text import Windows, load_text
from torch import nn

from detslurm import pytorch

LENGTH = 64


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))

    def attention(self, x):
        parts = self.queries_keys_values(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attended(found.transpose(1, 2).flatten(-2))


class Transformer(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, values):
        positions = torch.arange(values.shape[1], device=values.device)
        return self.output(self.blocks(self.bytes(values) + self.positions(positions)))


class TextTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        if not torch.cuda.is_available():
            torch.set_num_threads(1)
        self.train_text, self.test_text = load_text()
        shape = [context.get_hparam(name) for name in ("width", "heads", "layers")]
        self.model = context.wrap_model(Transformer(*shape))
        rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), rate))
        warmup = context.get_hparam("warmup_steps")
        # Stepped with the optimizer, however many batches are aggregated.
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.LambdaLR(
                self.optimizer, lambda step: min(1.0, (step + 1) / warmup)
            ),
            pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )

    def build_training_data_loader(self):
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(Windows(self.train_text, LENGTH), batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Windows(self.test_text, LENGTH), batch_size=64, drop_last=True)

    def loss(self, batch):
        values, following = batch
        output = self.model(values)
        return nn.functional.cross_entropy(output.flatten(0, 1), following.flatten())

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda params: nn.utils.clip_grad_norm_(params, 1.0)
        )
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        loss = self.loss(batch)
        return {"validation_loss": loss, "bits_per_byte": loss / math.log(2)}
