"""Snapshot documents by hand: as real ones look, or as an attacker would like them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from detslurm.core._artifacts import artifact_of
from detslurm.look.artifact_parts import _part
from detslurm.look.document import (
    ArtifactPart,
    CheckpointPart,
    Curve,
    ExperimentPart,
    Means,
    Number,
    RungPart,
    RunPart,
    Snapshot,
    TrialPart,
)

BEGIN: Final = 1_790_000_000.0
BATCHES: Final = 100
"""Between two points of a curve."""

HOSTILE: Final = (
    "</script><img src=x onerror=\"document.title='owned'\">",
    "'\"><svg onload=alert(1)>",
    "<!--<script>",
    "]]>&lt;b&gt;&amp;{{7*7}}${7*7}`id`",
    "javascript:alert(1)",
    "line one\nline two\r\n\ttab\x00\x1b[31mred\x07",
    "\u202eright to left\u202c \u2066isolated\u2069 \u2028 \u2029 \ufeff",
    "__proto__",
    "constructor",
    "=cmd|' /C calc'!A0",
    "quote ' double \" back \\ slash / percent %3C",
    "long " * 1000,
    "日本語 🚀 e\u0301",
)
"""Texts that must be shown as they are, and do nothing."""

Part = TypeVar("Part", bound=msgspec.Struct)


def document(
    experiments: int = 1, trials: int = 12, points: int = 200, hostile: bool = False
) -> Snapshot:
    """A snapshot of searches, one a grid and the next asha in turn; the same at each call.

    Trial 1 completed, 2 was preempted and resumed, 3 restarted twice and failed, 4 runs, 5 waits,
    6 has trained with infinite and missing metrics; then it begins again.

    Args:
        experiments: How many.
        trials: Of each experiment.
        points: Of each curve.
        hostile: Whether every text is one of `HOSTILE`, those on which nothing hangs.
    """
    found = [_experiment(number, trials, points) for number in range(1, experiments + 1)]
    snapshot = Snapshot(taken=BEGIN + 90_000, store="/home/alice/detslurm", experiments=found)
    return hostile_twin(snapshot) if hostile else snapshot


def with_artifacts(snapshot: Snapshot) -> Snapshot:
    """The same, whose second trial has images, a table, a histogram and a confusion matrix."""
    first, *others = snapshot.experiments
    trials = [
        msgspec.structs.replace(one, artifacts=_artifacts()) if one.id == 2 else one
        for one in first.trials
    ]
    return msgspec.structs.replace(
        snapshot, experiments=[msgspec.structs.replace(first, trials=trials), *others]
    )


def _artifacts() -> list[ArtifactPart]:
    import numpy as np

    chance, kinds = np.random.default_rng(1), ["airplane", "automobile", "bird", "cat", "deer"]
    height, width = np.mgrid[0:1:96j, 0:1:160j]
    made = []
    for steps in range(100, 600, 100):
        wave = np.stack([np.sin(9 * width + steps) / 2 + 0.5, height, width], 2)
        rows = [{"file": f"val/{n:05}.png", "label": "cat", "loss": 1 / (n + 3)} for n in range(30)]
        matrix = chance.integers(0, 40, (5, 5)) + np.diag([900] * 5)
        made += [
            artifact_of("confusion", steps, matrix, "confusion_matrix", kinds),
            artifact_of("conv1.weight", steps, chance.normal(size=4000), "histogram"),
            artifact_of("reconstruction", steps, wave),
            artifact_of("samples/digit", steps, chance.random((28, 28))),
            artifact_of("samples/mask", steps, (width > steps / 600).astype(float)),
            artifact_of("worst predictions of the validation set", steps, rows),
        ]
    named = {name: [one for one in made if one.name == name] for name in {m.name for m in made}}
    return [_part(name, some) for name, some in sorted(named.items())]


# -- the searches --------------------------------------------------------------------------------


def _experiment(number: int, trials: int, points: int) -> ExperimentPart:
    asha = number % 2 == 1
    first = (number - 1) * trials + 1
    parts = [_trial(first + index, index, asha, points) for index in range(trials)]
    return ExperimentPart(
        id=number,
        name=f"digits-{'asha' if asha else 'grid'}-{number}",
        owner="alice",
        state="ACTIVE" if trials > 3 else "COMPLETED",
        message="1 of its trials failed" if trials > 2 else None,
        description="Digits with a small convolutional network.",
        notes="Compare with *last week's* runs.",
        labels=["digits", "paper"],
        progress=0.75,
        created=BEGIN - 60,
        started=BEGIN,
        metric="accuracy" if asha else "loss",
        smaller_is_better=not asha,
        searcher="async_halving" if asha else "grid",
        unit="batches",
        trial_count=trials,
        config=_config(number, asha),
        code={"train.py": "import detslurm\n\nprint('hello')\n", "model/net.py": "WIDTH = 64\n"},
        trials=parts,
        rungs=_rungs(parts) if asha else [],
        problems=["trial 6: run-2.jsonl: a torn record at byte 81920"] if trials > 5 else [],
    )


def _config(number: int, asha: bool) -> dict[str, Any]:
    return {
        "name": f"digits-{number}",
        "entrypoint": "python3 -m detslurm.launch.torch_distributed -- python3 train.py",
        "searcher": {"name": "async_halving" if asha else "grid", "num_rungs": 3, "divisor": 3},
        "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1, "base": 10}},
        "data": {"secrets": {"token": "********"}},
    }


def _rungs(trials: Sequence[TrialPart]) -> list[RungPart]:
    return [
        RungPart(
            bracket=0,
            rung=rung,
            units=BATCHES * 3**rung,
            trials=len(at),
            outstanding=1 if rung else 0,
            best=max(map(_as_float, at), default=None),
            best_trial=max(at, key=_as_float).id if at else None,
        )
        for rung in range(3)
        for at in [[trial for trial in trials if (trial.rung or 0) >= rung]]
    ]


def _as_float(trial: TrialPart) -> float:
    return trial.best if isinstance(trial.best, float) else -math.inf


# -- the trials ----------------------------------------------------------------------------------

_KINDS: Final = ("completed", "preempted", "failed", "running", "waiting", "infinite")
_STATES: Final = ("COMPLETED", "COMPLETED", "ERROR", "RUNNING", "QUEUED", "COMPLETED")


def _trial(number: int, index: int, asha: bool, points: int) -> TrialPart:
    chance = random.Random(number)
    kind, state = _KINDS[index % 6], _STATES[index % 6]
    count = {"waiting": 0, "running": points // 2, "failed": points // 4}.get(kind, points)
    hparams = _hparams(chance, index)
    curves = _curves(chance, count, hparams["lr"], kind == "infinite") if count else []
    runs = _runs(kind, index, count * BATCHES)
    best = max(_numbers(curves[-1].values)) if count else None
    return TrialPart(
        id=number,
        state=state,
        hparams=hparams,
        steps=count * BATCHES,
        progress=count / points if points else 0.0,
        restarts=2 if kind == "failed" else 0,
        started=runs[0].started if count else None,
        ended=runs[-1].ended if state in ("COMPLETED", "ERROR") else None,
        end_reason="the code exited with 1" if kind == "failed" else None,
        best=best,
        best_steps=curves[-1].steps[curves[-1].values.index(best)] if best is not None else None,
        latest=curves[-1].values[-1] if count else None,
        rung=index % 3 if asha and count else None,
        bracket=0 if asha and count else None,
        batches_per_epoch=None if kind == "failed" else 937.5,
        summary={f"{curve.group}/{curve.metric}": curve.values[-1] for curve in curves},
        curves=curves,
        runs=runs,
        checkpoints=_checkpoints(number, count),
        efficiency=_efficiency(chance) if count else {},
        profile=_profile(chance, count) if kind == "preempted" else [],
        log_tail=_LOG if kind == "failed" else [],
    )


_LOG: Final = [
    "[2026-11-21T04:46:01.000000Z] [rank=0] || step 400: loss 0.31",
    "[2026-11-21T04:46:02.000000Z] [rank=0] || Traceback (most recent call last):",
    '[2026-11-21T04:46:02.000000Z] [rank=0] ||   File "train.py", line 81, in <module>',
    "[2026-11-21T04:46:02.000000Z] [rank=0] || torch.cuda.OutOfMemoryError: CUDA out of memory.",
    "[2026-11-21T04:46:03.000000Z] || the code exited with 1; no restarts are left",
]


def _hparams(chance: random.Random, index: int) -> dict[str, Any]:
    return {
        "lr": round(10 ** chance.uniform(-4, -1), 6),
        "batch_size": 64,
        "optimizer.name": ("sgd", "adam", "lion")[index % 3],
        "optimizer.momentum": round(chance.random(), 3),
        "model.layers": chance.randint(1, 8),
        "model.norm": index % 2 == 0,
        "model.widths": [64, 128],
        "dropout": None if index % 4 == 0 else 0.1,
    }


def _curves(chance: random.Random, count: int, lr: float, infinite: bool) -> list[Curve]:
    def noisy(place: int) -> float:
        return math.exp(-place * lr * 0.5) + chance.random() * 0.1

    loss: list[Number] = [
        _odd(place, noisy(place)) if infinite else noisy(place) for place in range(count)
    ]
    validated = range(max(count // 10, 1))
    shown = [1 - noisy(place * 10) * 0.9 for place in validated]
    return [
        _curve("training", "loss", loss),
        _curve("training", "top.5", [1 - noisy(place) * 0.5 for place in range(count)]),
        _curve("validation", "loss", [noisy(place * 10) for place in validated], every=10),
        _curve("validation", "accuracy", list(shown), every=10),
    ]


def _odd(place: int, value: float) -> Number:
    """A gap, a NaN alone, and infinities."""
    if 20 <= place < 30 or place == 50:
        return None
    return {60: "inf", 61: "-inf"}.get(place, value)


def _numbers(values: Sequence[Number]) -> list[float]:
    return [value for value in values if isinstance(value, float)]


def _curve(group: str, metric: str, values: Sequence[Number], every: int = 1) -> Curve:
    places = [(place + 1) * every for place in range(len(values))]
    return Curve(
        group=group,
        metric=metric,
        steps=[place * BATCHES for place in places],
        values=list(values),
        times=[BEGIN + 300 + place * 10.0 for place in places],
        count=len(places) * 50,
        smallest=min(_numbers(values), default=None),
        largest=max(_numbers(values), default=None),
        means=_means(list(values), every) if len(values) >= 20 else None,
    )


def _means(values: Sequence[Number], every: int) -> Means:
    """As if half of the points were the highest of their parts, and the others the lowest."""
    pairs = [_numbers(values[place : place + 2]) for place in range(0, len(values) - 1, 2)]
    steps = [round((2 * place + 1.5) * every * BATCHES) for place in range(len(pairs))]
    means: list[Number] = [sum(pair) / len(pair) if pair else None for pair in pairs]
    return Means(steps=steps, values=means)


_ENDS: Final[dict[str, list[str | None]]] = {
    "completed": ["completed"],
    "preempted": ["preempted", "preempted", "completed"],
    "failed": ["restart", "restart", "error"],
    "running": [None],
    "infinite": ["completed"],
}


def _runs(kind: str, index: int, steps: int) -> list[RunPart]:
    ends = _ENDS.get(kind, [])
    return [_run(place, len(ends), outcome, index, steps) for place, outcome in enumerate(ends)]


def _run(place: int, count: int, outcome: str | None, index: int, steps: int) -> RunPart:
    begin = BEGIN + 10 * index + 3600 * place
    again = outcome in ("restart", "error") and place > 0  # in the same allocation
    reasons = {"preempted": "Slurm wants the nodes for another job", "restart": "exit code 1"}
    return RunPart(
        number=place + 1,
        queued=None if again else begin,
        started=begin + (5 if again else 300),
        ended=begin + 3000 if outcome else None,
        outcome=outcome,
        reason=reasons.get(outcome or ""),
        nodes=[f"node{index % 4 + 1:03d}", f"node{index % 4 + 2:03d}"],
        job=f"4711_{index}",
        resumed_steps=steps * place // max(count, 1),
        steps=steps * (place + 1) // max(count, 1),
    )


def _checkpoints(trial: int, count: int) -> list[CheckpointPart]:
    return [
        CheckpointPart(
            uuid=(uuid := f"{trial:08x}-0000-4000-8000-{place:012x}"),
            steps=count * BATCHES * (place + 1) // 3,
            time=BEGIN + 1000 * (place + 1),
            state="DELETED" if place == 0 else "COMPLETED",
            size=81_920_000,
            path=f"/scratch/alice/checkpoints/{uuid}",
            metrics={"loss": 0.25, "accuracy": 0.9, "worst": "inf"},
        )
        for place in range(3 if count else 0)
    ]


def _training_time() -> dict[str, Any]:
    parts = {"queue": 300.0, "training": 2700.0, "repeated": 200.0, "save": 100.0, "idle": None}
    best = {"seconds": 420.0, "current": 1200.0, "save": 20.0, "failures": 2, "gain": 1.02}
    return {
        "parts": parts,
        "since_start": 3000.0,
        "since_submission": 3300.0,
        "ettr": 0.9,
        "ettr_submission": 2700 / 3300,
        "checkpoint": best,
        "ettr_best": 0.918,
    }


def _efficiency(chance: random.Random) -> dict[str, Any]:
    return {
        "training_time": _training_time(),
        "elapsed": 3000.0,
        "queue_time": 300.0,
        "nodes": 2,
        "slots": 8,
        "gpu_percent": round(chance.uniform(20, 95), 1),
        "gpu_percent_p10": 4.0,
        "gpu_memory_peak": 31_000_000_000,
        "memory_peak": 9_000_000_000,
        "memory_requested": 64_000_000_000,
        "cpus_used": 1.1,
        "cpus_requested": 8,
        "steps_lost": 40,
        "slot_hours": 6.7,
        "slot_hours_wasted": 0.4,
        "energy": {"kwh": 2.26, "co2_kg": 0.05, "at_least": True, "sources": {"nvml": 2.26}},
    }


def _profile(chance: random.Random, count: int) -> list[Curve]:
    names = ("gpu_util", "gpu_free_memory"), ("cpu_util_simple",)
    return [
        _curve(group, name, [unit * chance.uniform(60, 90) for _ in range(min(count, 100))])
        for group, metrics in zip(("gpu", "cpu"), names, strict=True)
        for name, unit in ((name, 2**30 if "memory" in name else 1) for name in metrics)
    ]


# -- the attack ----------------------------------------------------------------------------------

_KEPT: Final = {"state", "outcome", "searcher", "uuid", "best", "latest", "values", "unit", "group"}
"""Fields whose text decides something, or is chosen by us."""


def hostile_twin(snapshot: Snapshot) -> Snapshot:
    """The same snapshot with one of `HOSTILE` in front of every text and name, in turn."""
    return _spoilt(snapshot, iter(range(10**9)))


def _spoilt(part: Part, turn: Any) -> Part:
    changes = {
        name: _spoil(getattr(part, name), turn)
        for name in part.__struct_fields__
        if name not in _KEPT
    }
    return msgspec.structs.replace(part, **changes)


def _spoil(value: Any, turn: Any) -> Any:
    if isinstance(value, str):
        return HOSTILE[next(turn) % len(HOSTILE)] + value
    if isinstance(value, list):
        return [_spoil(one, turn) for one in value]
    if isinstance(value, dict):
        return {_name(key): _spoil(one, turn) for key, one in value.items()}
    if isinstance(value, msgspec.Struct):
        return _spoilt(value, turn)
    return value


def _name(key: str) -> str:
    """The same for the same key: curves and hyperparameters of all trials keep their names."""
    return HOSTILE[sum(key.encode()) % len(HOSTILE)] + key
