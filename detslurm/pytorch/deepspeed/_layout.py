"""How a DeepSpeed checkpoint is divided among ranks, and which other ranks can go on with it."""

from __future__ import annotations

import errno
import fnmatch
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_CONVERTIBLE = frozenset({"exp_avg", "exp_avg_sq"})
"""The part of an optimizer's state that DeepSpeed's conversion keeps; it drops the rest."""


@dataclass(frozen=True)
class EngineLayout:
    """The owners of the parts of an engine's state."""

    stage: int  # of ZeRO
    data_parallel: int  # the ranks that the optimizer's state is divided among, with ZeRO
    pipeline: int = 0  # its stages; 0 for a model that is none
    model_parallel: int = 1  # the ranks that one tensor of the model is cut for

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.data_parallel * self.model_parallel * max(self.pipeline, 1)

    def __str__(self) -> str:
        zero = f"ZeRO stage {self.stage}" if self.stage else "no ZeRO"
        parts = [f"pipeline of {self.pipeline}"] if self.pipeline else []
        parts += [f"{self.model_parallel} model-parallel"] if self.model_parallel > 1 else []
        grid = f" ({' x '.join([*parts, f'{self.data_parallel} data-parallel'])})" if parts else ""
        return f"{self.ranks} rank{'s' * (self.ranks != 1)}{grid} with {zero}"


@dataclass(frozen=True)
class Saved:
    """The shape of an engine's checkpoint."""

    layout: EngineLayout
    # The optimizer's state of each parameter, but for the count of its steps; None where
    # DeepSpeed's conversion can't read it.
    optimizer_state: frozenset[str] | None = field(default=_CONVERTIBLE)
    by_groups: bool = False  # there is state that only a group of ranks has divided among it
    is_offloaded: bool = False  # parts of the state are copies of files on NVMe
    repeated: frozenset[str] = frozenset()  # parameters that several stages of the pipeline have
    groups: frozenset[int] = frozenset({1})  # of parameters, in the optimizers of the stages
    global_batch: int | None = None  # the records in a step of the optimizer, if known


@dataclass(frozen=True)
class Present:
    """The shape of engines that load a checkpoint."""

    layout: EngineLayout
    groups: frozenset[int] = frozenset({1})  # of parameters, in the ranks' optimizers
    tied: frozenset[str] = frozenset()  # parameters that are the same on all stages with them
    has_parts: bool = True  # each rank has a part of each group, as DeepSpeed's loading expects


def needs_conversion(saved: EngineLayout, present: EngineLayout) -> bool:
    """Whether DeepSpeed can't load the saved files just as they are."""
    return _parts(saved) != _parts(present)


def _parts(layout: EngineLayout) -> tuple[int, ...]:
    """The parts that have files; without ZeRO each data-parallel rank has everything."""
    return layout.data_parallel if layout.stage else 1, layout.pipeline, layout.model_parallel


def obstacle(saved: Saved, present: Present) -> str | None:
    """Why DeepSpeed can't go on with a checkpoint, and what would help; None if it can."""
    was, now = saved.layout, present.layout
    if bool(was.pipeline) != bool(now.pipeline):
        return "One is a pipeline, the other is not: make the model as it was."
    if was.stage != now.stage and {was.stage, now.stage} != {1, 2}:  # which write the same files
        return f"Set zero_optimization.stage to {was.stage}, as it was."
    if was.stage == 0 and was.pipeline != now.pipeline:
        return (
            "Without ZeRO each stage of a pipeline keeps its own optimizer's state: use"
            f" {was.pipeline} stages, as before, or train with ZeRO stage 1."
        )
    if not needs_conversion(was, now):
        return None
    reason = _not_convertible(saved, present)
    return None if reason is None else f"{reason} Run it on {was.ranks} slots, as before."


def _not_convertible(saved: Saved, present: Present) -> str | None:
    if max(saved.layout.model_parallel, present.layout.model_parallel) > 1:
        return "Tensors that a model-parallel unit has cut can't be put together again."
    if saved.by_groups:
        return "Parts that groups of ranks divide among them (experts, MiCS) can't be divided anew."
    if saved.is_offloaded:
        return "The optimizer's state is offloaded to NVMe, for each rank in files of its own."
    if apart := sorted(saved.repeated - present.tied):
        return (
            f"Stages of the pipeline have parameters of one name that are not tied ({apart[0]}), of"
            " which DeepSpeed keeps one."
        )
    if len(saved.groups | present.groups) > 1:
        return "The optimizers of stages, then and now, have different groups of parameters."
    if not present.has_parts:
        return "A group of parameters is too small for each rank to have a part of it."
    if saved.optimizer_state is None:
        return "It was saved with elastic_checkpoint, which DeepSpeed can't convert."
    if saved.optimizer_state != _CONVERTIBLE:
        names = ", ".join(sorted(saved.optimizer_state)) or "nothing yet"
        return f"DeepSpeed converts the state of Adam alone; this optimizer keeps {names}."
    return None


def saved_in(folder: Path) -> Saved:
    """The content of a checkpoint tag's files. Raises `FileNotFoundError` where there are none."""
    names: list[str] = []
    # Listed here, because `glob()` takes a directory that is closed now for an empty directory.
    with suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(path.name for path in folder.iterdir())
    models = [_opened(folder / name) for name in fnmatch.filter(names, "mp_rank_*_model_states.pt")]
    if not models:
        only_parts = fnmatch.filter(names, "zero_pp_rank_0_mp_rank_00_model_*")
        models = [_opened(folder / name) for name in only_parts]
    if not models:
        raise FileNotFoundError(f"there is no checkpoint of a DeepSpeed engine in {folder}")
    # One of each stage of the pipeline: they may differ in more than their numbers.
    files = fnmatch.filter(names, "*zero_pp_rank_0_mp_rank_*_optim_states.pt")
    shards = [_opened(folder / name)["optimizer_state_dict"] for name in files]
    shard = shards[0] if shards else {}
    pipeline = any(fnmatch.filter(names, "layer_*-model_states.pt"))
    layout = _layout(models[0], _stage(models[0], shard), pipeline=pipeline)
    return Saved(
        layout,
        _optimizer_state(shard),
        by_groups=any(fnmatch.filter(names, "*expert_*_model_states.pt"))
        or not _divisors(shard) <= {layout.data_parallel},
        is_offloaded="offloaded_tensors" in names,
        repeated=_repeated(models) if pipeline else frozenset(),
        groups=frozenset(len(_base(shard).get("param_groups", ())) for shard in shards),
        global_batch=_global_batch(models[0]),
    )


def _opened(path: Path) -> dict[str, Any]:
    """DeepSpeed's files, without reading their tensors."""
    opened: dict[str, Any]
    try:
        opened = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
    except RuntimeError as err:  # torch's errors have no number
        if not str(err).startswith("unable to open file"):
            raise
        raise OSError(errno.EIO, str(err).splitlines()[0], str(path)) from err
    return opened


def _repeated(stages: list[dict[str, Any]]) -> frozenset[str]:
    names = Counter(
        name for stage in stages for group in stage.get("param_shapes") or [] for name in group
    )
    return frozenset(name for name, count in names.items() if count > 1)


def _divisors(shard: Mapping[str, Any]) -> set[int]:
    """Among how many ranks the groups of parameters are divided."""
    counts = shard.get("partition_count", [])
    return set(counts if isinstance(counts, list) else [counts])


def _stage(model: Mapping[str, Any], shard: Mapping[str, Any]) -> int:
    config = model.get("ds_config")  # a path, where the trial gave one
    zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
    if isinstance(zero, Mapping) and isinstance(stage := zero.get("stage"), int):
        return stage
    return int(shard.get("zero_stage", 1)) if shard else 0


def _layout(model: Mapping[str, Any], stage: int, *, pipeline: bool) -> EngineLayout:
    together = int(model.get("mp_world_size", 1))  # stages of the pipeline, too
    degrees = model.get("checkpoint_parallel_dimensions") or {}  # older DeepSpeeds write none
    stages = int(degrees.get("pp_degree", together if pipeline else 1))
    return EngineLayout(
        stage, int(model["dp_world_size"]), stages if pipeline else 0, max(together // stages, 1)
    )


def _optimizer_state(shard: Mapping[str, Any]) -> frozenset[str] | None:
    if isinstance(shard.get("base_optimizer_state"), list):
        return None
    states = _base(shard).get("state", {})
    return frozenset(name for state in states.values() for name in state) - {"step"}


def _base(shard: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the optimizer that ZeRO wraps."""
    base = shard.get("base_optimizer_state") or shard.get("optimizer_state_dict")
    return base if isinstance(base, Mapping) else {}


def _global_batch(model: Mapping[str, Any]) -> int | None:
    config = model.get("ds_config")
    if not isinstance(config, Mapping):
        return None
    total = config.get("train_batch_size")
    if total is None and isinstance(micro := config.get("train_micro_batch_size_per_gpu"), int):
        steps = config.get("gradient_accumulation_steps", 1)
        total = micro * steps * int(model["dp_world_size"]) if isinstance(steps, int) else None
    return total if isinstance(total, int) else None
