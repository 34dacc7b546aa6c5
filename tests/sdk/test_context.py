"""Which files of a context directory are frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.context import MAX_BYTES, collect


def test_links_to_directories_above_are_left_out(tmp_path: Path) -> None:
    """Nobody walks through the whole machine for them; other links are frozen by content."""
    context, other = tmp_path / "context", tmp_path / "other"
    (context / "inside").mkdir(parents=True)
    other.mkdir()
    (other / "file").write_text("x")
    for name, target in {"all": Path("/"), "up": tmp_path, "self": context, "o": other}.items():
        (context / "inside" / name).symlink_to(target)
    found = collect(context)
    assert [file.name for file in found.files] == ["inside/o/file"]
    assert set(found.directories) == {"inside", "inside/o", "inside/self"}
    assert [note.partition(" is left out")[0] for note in found.notes] == [
        str(context / "inside" / name) for name in ("all", "up")
    ]


def test_a_link_to_a_whole_data_set(tmp_path: Path) -> None:
    """Once it is far too much, the rest is not looked at."""
    for number in range(12):
        with (tmp_path / f"{number:02d}").open("wb") as file:
            file.truncate(MAX_BYTES)
    with pytest.raises(SubmitError, match=r"1\.0 GiB of") as refusal:
        collect(tmp_path)
    assert "11" not in str(refusal.value)
