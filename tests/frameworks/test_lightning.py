"""Where a training with Lightning is left makes no difference."""

from __future__ import annotations

from pathlib import Path

from tests.beside import lightning
from tests.frameworks.scripts import printed_by

__all__ = ["lightning"]


def test_it_goes_on_as_if_it_had_not_left(lightning: Path, tmp_path: Path) -> None:
    """Within an epoch, at its end, in a validation; with a limit of epochs or of steps, schedules
    that wait for a metric, and early stopping that insists on one."""
    found, said = printed_by("lightning_leaves.py", lightning, tmp_path)
    assert found == {}, said
