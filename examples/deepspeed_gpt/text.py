"""The text: Python's own language reference, which comes with Python."""

from pydoc_data.topics import topics

import torch
from torch.utils.data import Dataset

CHARACTERS = 128  # of ASCII; others are left out


def load_text():
    """All pages in order as numbers of characters: text to train on, and to validate with."""
    pages = "\n".join(topics[name] for name in sorted(topics))
    numbers = torch.tensor(list(pages.encode("ascii", "ignore")))
    split = len(numbers) * 19 // 20
    return numbers[:split], numbers[split:]


class Passages(Dataset):
    """Passages of `length` characters, each with the characters to predict."""

    def __init__(self, numbers, length):
        self.numbers, self.length = numbers, length

    def __len__(self):
        return (len(self.numbers) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        end = start + self.length
        return self.numbers[start:end], self.numbers[start + 1 : end + 1]
