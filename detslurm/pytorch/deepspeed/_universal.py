"""DeepSpeed checkpoints that go on on another number of ranks.

With ZeRO each rank saves its own part of the optimizer's state. DeepSpeed loads that on as many
ranks again; for others a checkpoint can be converted, or not: the chief decides for all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from deepspeed.pipe import PipelineModule, TiedLayerSpec

from detslurm._base.trust import others_can_change_below
from detslurm.core._collective import run_collectively
from detslurm.core._retries import keep_trying
from detslurm.errors import InvalidCheckpointException
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._conversion import (
    FAILED,
    converted,
    load_converted,
    load_weights,
    loaded,
)
from detslurm.pytorch.deepspeed._layout import (
    EngineLayout,
    Present,
    needs_conversion,
    obstacle,
    saved_in,
)

logger = logging.getLogger("detslurm.pytorch")


class _Groups(NamedTuple):
    """The groups of parameters of a rank's optimizer."""

    number: int
    has_parts: bool
    """Whether the rank has a part of each: DeepSpeed fails to load others."""


class _Plan(NamedTuple):
    """The chief's decision for all ranks."""

    converts: bool = False
    error: Exception | None = None


def load_engine(context: DeepSpeedTrialContext, engine: Any, path: Path, tag: str) -> None:
    """Load what `engine.save_checkpoint(path, tag)` wrote, on these ranks or on others.

    A collective of all ranks; the engine is fresh from `deepspeed.initialize()`. For a trial that
    is not to be trained only the weights are loaded. Raises `InvalidCheckpointException` if
    DeepSpeed can't go on with it on these ranks, `AssertionError` if DeepSpeed loads nothing, and
    `PermissionError` if others can change what DeepSpeed unpickles.
    """
    if context._only_used:
        load_weights(engine, path, tag)
        return
    dist = context.distributed
    plan = run_collectively(
        dist, lambda: _groups(engine.optimizer), lambda groups: _plan(path / tag, engine, groups)
    )
    if plan.error is not None:
        raise plan.error
    if not plan.converts:
        loaded(engine, path, tag)
        return
    with converted(context, path / tag) as folder:
        load_converted(engine, path, folder, tag)


def _groups(optimizer: Any) -> _Groups:
    divided = getattr(optimizer, "bit16_groups", None) or getattr(optimizer, "bf16_groups", [])
    has_parts = all(any(p._hp_mapping is not None for p in group) for group in divided)
    return _Groups(len(getattr(optimizer, "param_groups", ())), has_parts)


def _present(engine: Any, groups: Sequence[_Groups]) -> Present:
    return Present(
        _layout(engine),
        groups=frozenset(rank.number for rank in groups),
        tied=_tied(engine),
        has_parts=all(rank.has_parts for rank in groups),
    )


def _layout(engine: Any) -> EngineLayout:
    """The present owners of the parts of an engine's state."""
    module = engine.module
    pipeline = int(module.num_stages) if isinstance(module, PipelineModule) else 0
    together = int(engine.mp_world_size)  # stages of the pipeline, too
    return EngineLayout(
        int(engine.zero_optimization_stage()),
        int(engine.seq_dp_world_size),
        pipeline,
        together // max(pipeline, 1),
    )


def _tied(engine: Any) -> frozenset[str]:
    """The parameters of a pipeline that are the same on all stages that have them."""
    return frozenset(
        f"tied_modules.{spec.key}.{name}"
        for spec in getattr(engine.module, "_layer_specs", [])
        if isinstance(spec, TiedLayerSpec)
        for name in spec.tied_weight_attr
    )


def _plan(folder: Path, engine: Any, groups: Sequence[_Groups]) -> _Plan:
    try:
        if others_can_change_below(folder):
            return _Plan(error=PermissionError(untrusted(folder)))
        saved = keep_trying(partial(saved_in, folder))
        present = _present(engine, groups)
    except FileNotFoundError as err:
        return _Plan(error=AssertionError(f"{FAILED} {err}"))
    was, now = saved.layout, present.layout
    reason = obstacle(saved, present)
    if reason is not None:
        text = f"{folder} was saved by {was}; this is {now}. {reason}"
        return _Plan(error=InvalidCheckpointException(text))
    if was != now:
        logger.info("%s was saved by %s, and goes on on %s", folder, was, now)
    batch = int(engine.train_batch_size())
    if saved.global_batch not in (None, batch):
        logger.warning(
            "a step has %d records now, and had %d: fix train_batch_size in DeepSpeed's"
            " configuration, not train_micro_batch_size_per_gpu, to keep it on any number of slots",
            batch,
            saved.global_batch,
        )
    return _Plan(needs_conversion(was, now))


def untrusted(folder: Path) -> str:
    """Why DeepSpeed is not to read a checkpoint."""
    return (
        f"others can change files in {folder}, and DeepSpeed reads them by pickle, which runs code"
        " that is in them. If you trust them, copy the checkpoint and use your copy"
    )
