"""What model_def.py imports from beside it."""

import torch


class Net(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, 1)
        torch.nn.init.constant_(self.linear.weight, 0.25)
        torch.nn.init.constant_(self.linear.bias, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)
