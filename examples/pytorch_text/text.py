"""The text: Python's own language reference, which comes with Python."""

from pydoc_data.topics import topics

import torch
from torch.utils.data import Dataset


def load_text():
    """The bytes of all pages in order, split into training and validation text."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    values = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    split = len(values) * 9 // 10
    return values[:split], values[split:]


class Windows(Dataset):
    """Stretches of `length` bytes, each with the bytes that follow them."""

    def __init__(self, values, length):
        self.values, self.length = values, length

    def __len__(self):
        return (len(self.values) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        window = self.values[start : start + self.length + 1]
        return window[:-1], window[1:]
