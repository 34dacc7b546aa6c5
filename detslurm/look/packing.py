"""The document as a page holds it: the curves stand apart, each metric compressed by itself.

A page of a thousand trials shows its table at once, and unpacks a metric when it is looked at.
docs/snapshot.md describes the format.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from detslurm.look.document import Curve, Means, Snapshot, TrialPart

_LEVEL: Final = 6


class PackedSnapshot(Snapshot, frozen=True, kw_only=True):
    """A snapshot whose curves have no points: these are in `packed`, as docs/snapshot.md describes,
    or None where they stand elsewhere in a page."""

    packed: dict[str, str] | None


def packed(snapshot: Snapshot) -> PackedSnapshot:
    """The same document with its points packed."""
    blocks: dict[str, list[Any]] = {}
    experiments = [
        replace(part, trials=[_without_points(trial, blocks) for trial in part.trials])
        for part in snapshot.experiments
    ]
    return PackedSnapshot(
        taken=snapshot.taken,
        store=snapshot.store,
        experiments=experiments,
        packed={name: compressed(msgspec.json.encode(rows)) for name, rows in blocks.items()},
    )


def compressed(data: bytes) -> str:
    """Base64 of the data, compressed without any header: `DecompressionStream` undoes it."""
    packer = zlib.compressobj(_LEVEL, wbits=-15)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode()


def _without_points(trial: TrialPart, blocks: dict[str, list[Any]]) -> TrialPart:
    for curve in trial.curves:
        name = f"{curve.group}/{curve.metric}"
        blocks.setdefault(name, []).append([trial.id, *_points(curve), _means(curve.means)])
    if trial.profile:
        rows = [[place, *_points(curve), None] for place, curve in enumerate(trial.profile)]
        blocks[f"profile {trial.id}"] = rows
    if trial.artifacts:
        blocks[f"artifacts {trial.id}"] = [[one.name, one.data] for one in trial.artifacts]
    return replace(
        trial,
        artifacts=[replace(one, data=[]) for one in trial.artifacts],
        curves=[_head(curve) for curve in trial.curves],
        profile=[_head(curve) for curve in trial.profile],
    )


def _head(curve: Curve) -> Curve:
    return replace(curve, steps=[], values=[], times=[], means=None)


def _points(curve: Curve | Means) -> list[Any]:
    """Steps and times as differences from the one before, which compress to almost nothing."""
    tenths = (None if time is None else round(10 * time) for time in curve.times)
    return [_differences(curve.steps), curve.values, _differences(tenths)]


def _means(means: Means | None) -> list[Any] | None:
    return None if means is None else _points(means)


def _differences(numbers: Iterable[int | None]) -> list[int | None]:
    last = 0
    found: list[int | None] = []
    for number in numbers:
        found.append(None if number is None else number - last)
        last = last if number is None else number
    return found
