"""Learning curves of 1,500 small networks on scikit-learn's digits, as a problem.

`python -m benchmarks.quality.networks` trains them again, in a few minutes, and writes the file.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from benchmarks.quality.problem import Point, Space

if TYPE_CHECKING:
    import numpy as np

CURVES = Path(__file__).with_name("networks.json.gz")
NETWORKS = "digits-networks"
EPOCHS = 32
GRID: dict[str, list[Any]] = {
    "activation": ["relu", "tanh"],
    "batch_size": [16, 32, 128],
    "learning_rate": [10.0 ** (-3.5 + 0.4 * step) for step in range(10)],
    "weight_decay": [0.0, 1e-5, 1e-4, 1e-3, 1e-2],
    "width": [4, 8, 16, 32, 64],
}
WORST = 10.0
"""The loss of a network that has diverged."""


class Networks:
    """The validation loss of each network after each epoch; an epoch takes one to two seconds."""

    name = NETWORKS
    units = EPOCHS

    def __init__(self) -> None:
        curves = json.loads(gzip.decompress(CURVES.read_bytes()))
        names = itertools.product(*(range(len(values)) for values in GRID.values()))
        self._curves = dict(zip(names, curves, strict=True))
        self.space: Space = {
            name: {"type": "categorical", "vals": values}
            if isinstance(values[0], str)
            else {"type": "int", "minval": 0, "maxval": len(values) - 1}
            for name, values in GRID.items()
        }
        last = [curve[-1] for curve in curves]
        self.best, self.median = min(last), median(last)
        epochs = [_epoch_seconds(batch, width) for batch in range(3) for width in range(5)]
        self.full_seconds = EPOCHS * fmean(epochs)

    def _curve(self, point: Point) -> list[float]:
        places = tuple(
            values.index(point[name]) if isinstance(values[0], str) else int(point[name])
            for name, values in GRID.items()
        )
        curve: list[float] = self._curves[places]
        return curve

    def truth(self, point: Point) -> float:
        """Return the loss after the last epoch."""
        return self._curve(point)[-1]

    def loss(self, point: Point, units: int, seed: int) -> float:
        """Return the loss after so many epochs."""
        return self._curve(point)[units - 1]

    def seconds(self, point: Point, start: int, end: int) -> float:
        """Return the time of the epochs from `start` to `end`."""
        return (end - start) * _epoch_seconds(int(point["batch_size"]), int(point["width"]))


def _epoch_seconds(batch: int, width: int) -> float:
    """Time of an epoch by the positions of both in the grid: smaller batches take longer."""
    return 1.0 + 0.4 * (2 - batch) + 0.05 * width


def _train(activation: str, batch: int, width: int) -> Any:
    """Train all learning rates and weight decays of a shape at once; losses by epoch."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    train, held = slice(0, 1200), slice(1200, None)
    targets = np.eye(10, dtype=np.float32)[labels]
    pairs = list(itertools.product(GRID["learning_rate"], GRID["weight_decay"]))
    rates = np.array([rate for rate, _ in pairs], np.float32)[:, None, None]
    decays = np.array([decay for _, decay in pairs], np.float32)[:, None, None]
    random = np.random.default_rng(1)
    first = random.normal(0, math.sqrt(2 / 65), (1, 65, width)).astype(np.float32)
    second = random.normal(0, math.sqrt(2 / (width + 1)), (1, width + 1, 10)).astype(np.float32)
    weights = [np.repeat(first, len(pairs), 0), np.repeat(second, len(pairs), 0)]
    speeds = [np.zeros_like(weight) for weight in weights]

    def forward(batch_images: np.ndarray) -> tuple[Any, Any, Any]:
        inputs = np.concatenate([batch_images, np.ones((len(batch_images), 1), np.float32)], 1)
        sums = inputs @ weights[0]
        hidden = np.maximum(sums, 0) if activation == "relu" else np.tanh(sums)
        ones = np.ones((*hidden.shape[:2], 1), np.float32)
        hidden = np.concatenate([hidden, ones], 2)
        scores = hidden @ weights[1]
        scores -= scores.max(2, keepdims=True)
        odds = np.exp(scores)
        return inputs, hidden, odds / odds.sum(2, keepdims=True)

    losses = []
    for _ in range(EPOCHS):
        shuffled = random.permutation(1200)
        for start in range(0, 1200, batch):
            chosen = shuffled[start : start + batch]
            inputs, hidden, odds = forward(images[train][chosen])
            error = (odds - targets[train][chosen]) / len(chosen)
            back = (error @ weights[1].transpose(0, 2, 1))[:, :, :-1]
            inner = hidden[:, :, :-1]
            back = back * (inner > 0) if activation == "relu" else back * (1 - inner**2)
            slopes = [inputs.T @ back, hidden.transpose(0, 2, 1) @ error]
            for weight, speed, slope in zip(weights, speeds, slopes, strict=True):
                speed *= 0.9
                speed -= rates * (slope + decays * weight)
                weight += speed
        odds = forward(images[held])[2]
        right = (odds * targets[held]).sum(2)
        losses.append(-np.log(np.clip(right, 1e-12, 1)).mean(1))
    table = np.nan_to_num(np.stack(losses, 1), nan=WORST)
    return np.clip(table, 0, WORST).reshape(len(GRID["learning_rate"]), -1, EPOCHS)


def main() -> None:
    """Train all networks, and write their curves in the order of the grid."""
    import numpy as np

    np.seterr(all="ignore")
    shapes = itertools.product(GRID["activation"], GRID["batch_size"], GRID["width"])
    trained = {shape: _train(*shape) for shape in shapes}
    curves = [
        [float(f"{loss:.4g}") for loss in trained[kind, batch, width][rate, decay]]
        for kind in GRID["activation"]
        for batch in GRID["batch_size"]
        for rate in range(len(GRID["learning_rate"]))
        for decay in range(len(GRID["weight_decay"]))
        for width in GRID["width"]
    ]
    text = json.dumps(curves, separators=(",", ":"))
    CURVES.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
