"""Train a character-level model, on one process or under torchrun; globals are its options."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

out_dir = "out"
eval_interval = 20
init_from = "scratch"  # or resume
batch_size = 16
block_size = 16
n_embd = 32
learning_rate = 1e-3
max_iters = 600
backend = "nccl"
device = "cuda"
config_keys = [k for k, v in globals().items() if k[0] != "_" and isinstance(v, int | float | str)]
exec(open("configurator.py").read())
config = {k: globals()[k] for k in config_keys}

ddp = int(os.environ.get("RANK", -1)) != -1
rank, world_size = 0, 1
if ddp:
    dist.init_process_group(backend=backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
master = rank == 0
if master:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + rank)

text = open(__file__).read() * 8
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])
train_data, val_data = data[: int(len(data) * 0.9)], data[int(len(data) * 0.9) :]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(len(chars), n_embd)
        self.rnn = torch.nn.GRU(n_embd, n_embd, batch_first=True)
        self.head = torch.nn.Linear(n_embd, len(chars))

    def forward(self, x, y):
        logits = self.head(self.rnn(self.embed(x))[0])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def get_batch(source):
    ix = torch.randint(len(source) - block_size - 1, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in ix])
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


model = Model().to(device)
iter_num = 0
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
raw_model = model
if ddp:
    model = DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss(source):
    return sum(raw_model(*get_batch(source)).item() for _ in range(10)) / 10


while iter_num <= max_iters:
    if iter_num % eval_interval == 0 and master:
        losses = estimate_loss(train_data), estimate_loss(val_data)
        print(f"step {iter_num}: train loss {losses[0]:.4f}, val loss {losses[1]:.4f}", flush=True)
        checkpoint = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoint |= {"iter_num": iter_num, "config": config}
        torch.save(checkpoint, os.path.join(out_dir, "ckpt.new"))
        os.replace(os.path.join(out_dir, "ckpt.new"), os.path.join(out_dir, "ckpt.pt"))
    loss = model(*get_batch(train_data))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1

if ddp:
    dist.destroy_process_group()
