"""What DeepSpeed compiles while a trial starts is named before the minutes that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from deepspeed.ops.op_builder.all_ops import ALL_OPS
from deepspeed.ops.op_builder.builder import OpBuilder

from detslurm.pytorch.deepspeed._connect import announce_builds


def test_a_build_is_announced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the way around it; nothing is said of a kernel that was compiled before."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(OpBuilder, "jit_load", lambda builder, verbose=True: builder.name)
    announce_builds()
    announce_builds()  # the next trial of this process
    builder = ALL_OPS["cpu_adam"]
    assert builder.jit_load(verbose=False) == "cpu_adam"
    (said,) = caplog.messages
    assert "compiles cpu_adam now, which may take minutes" in said and '"torch_adam": true' in said
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "cpu_adam.so").touch()
    builder.jit_load()
    assert len(caplog.messages) == 1
