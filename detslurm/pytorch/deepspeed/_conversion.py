"""Convert a DeepSpeed checkpoint to files with one parameter each ("universal"), and load any.

Loading converted ones DeepSpeed forgets some things without a word, which is made good here.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.zero import GatheredParameters
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

from detslurm._base.node_files import own_name
from detslurm.core import DistributedContext
from detslurm.core._collective import run_collectively
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext

logger = logging.getLogger("detslurm.pytorch")

FAILED = "Failed to load deepspeed checkpoint."  # Determined's words


def loaded(engine: Any, path: Path, tag: str, **options: Any) -> None:
    found = None
    if (path / tag).is_dir():
        found, _ = engine.load_checkpoint(str(path), tag=tag, **options)
    if found is None:
        raise AssertionError(f"{FAILED} {path} has no {tag} for this engine")


def load_weights(engine: Any, path: Path, tag: str) -> None:
    if int(engine.zero_optimization_stage()) < 3:
        loaded(engine, path, tag, load_module_only=True)
        return
    state = get_fp32_state_dict_from_zero_checkpoint(str(path), tag)
    with GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
        engine.module.load_state_dict(state)


@contextlib.contextmanager
def converted(context: DeepSpeedTrialContext, folder: Path) -> Iterator[Path]:
    """A directory with the converted checkpoint, for as long as the body runs.

    One conversion serves all nodes that see the chief's directory beside the checkpoints; where
    not all do (these may be in a cloud), each node makes its own.
    """
    dist = context.distributed
    with contextlib.ExitStack() as stack:
        target = run_collectively(
            dist, lambda: _beside_checkpoints(stack, context), lambda folders: folders[0]
        )
        converts = dist.rank == 0
        if target is None or not all(dist.allgather(target.is_dir())):
            converts = dist.local_rank == 0
            target = run_collectively(
                dist, lambda: _on_node(stack, dist), lambda folders: folders[0], local=True
            )
        assert target is not None
        result = target / folder.name
        run_collectively(
            dist, lambda: _convert(folder, result) if converts else None, lambda _: None
        )
        yield target
        # All have read it before it is removed. (A rank that failed doesn't wait for others, which
        # may be in a collective of DeepSpeed, and wait for it.)
        dist.allgather(None)


def _beside_checkpoints(stack: contextlib.ExitStack, context: DeepSpeedTrialContext) -> Path | None:
    if context.distributed.rank != 0 or context._core is None:
        return None
    return stack.enter_context(context._core.checkpoint._scratch())


def _on_node(stack: contextlib.ExitStack, dist: DistributedContext) -> Path | None:
    if dist.local_rank != 0:
        return None
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=own_name(""))))


def _convert(source: Path, target: Path) -> None:
    """Write a checkpoint's parameters, each with its optimizer's state, one by one."""
    from deepspeed.checkpoint import ds_to_universal

    logger.info("converting %s for another number of ranks", source)
    target.mkdir()
    # Seeing the files of a pipeline's layers, which it doesn't need, it fails with few of them.
    needed = target.with_name("needed")
    needed.mkdir()
    for file in source.glob("[!l]*.pt"):
        (needed / file.name).symlink_to(file.absolute())
    options = argparse.Namespace(
        input_folder=str(needed),
        output_folder=str(target),
        num_extract_workers=1,  # more would be forks of this process, with its threads
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,  # no patterns of names, for no tensor is cut
    )
    chatter = io.StringIO()
    with contextlib.redirect_stdout(chatter), contextlib.redirect_stderr(chatter):
        try:
            ds_to_universal.main(options)
        except OSError:
            raise
        except Exception as err:
            raise RuntimeError(
                f"DeepSpeed can't convert {source} for another number of slots: {err!r}. Run it on"
                " as many as before."
            ) from err


def load_converted(engine: Any, path: Path, folder: Path, tag: str) -> None:
    zero3 = int(engine.zero_optimization_stage()) == 3
    if not zero3:
        # Tensors without an optimizer (buffers, frozen parameters) don't come from converted files.
        loaded(engine, path, tag, load_module_only=True)
    config = engine._config
    before = config.load_universal_checkpoint
    config.load_universal_checkpoint = True  # only loading asks for it
    try:
        loaded(engine, folder, tag)
    finally:
        config.load_universal_checkpoint = before
    if zero3:
        _mend_optimizer(engine, folder / tag)
        _load_untrained(engine, path / tag)


def _mend_optimizer(engine: Any, converted: Path) -> None:
    """Undo that ZeRO-3 gives every group of parameters the options of the first, and all of
    them one count of steps, which each of them would increase."""
    optimizer = engine.optimizer.optimizer
    saved = torch.load(
        converted / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False
    )
    groups = saved["optimizer_state_dict"]["param_groups"]
    for group, was in zip(optimizer.param_groups, groups, strict=True):
        group.update({name: value for name, value in was.items() if name != "params"})
    for state in optimizer.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].clone()


def _load_untrained(engine: Any, folder: Path) -> None:
    """Load tensors without an optimizer with ZeRO-3: buffers, and frozen parameters."""
    files = sorted(folder.glob("zero_pp_rank_*_model_states.pt"), key=_rank_of)
    parts = [torch.load(file, map_location="cpu", weights_only=False, mmap=True) for file in files]
    with torch.no_grad():
        for name, buffer in engine.module.named_buffers():
            if name in parts[0]["buffer_names"]:
                buffer.copy_(parts[0]["module"][name])
        frozen = parts[0]["frozen_param_fragments"] or {}
        named = dict(engine.module.named_parameters())
        for name in frozen:
            whole = torch.cat([part["frozen_param_fragments"][name].flatten() for part in parts])
            with GatheredParameters([named[name]], modifier_rank=0):
                if engine.global_rank == 0:
                    named[name].copy_(whole[: named[name].numel()].view_as(named[name]))


def _rank_of(file: Path) -> int:
    return int(file.name.split("_")[3])
