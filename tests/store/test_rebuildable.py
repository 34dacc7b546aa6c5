"""Files that can be made again are used whole or not at all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from detslurm.store import rebuildable


class Content(msgspec.Struct):
    """What a file may hold."""

    rows: dict[int, tuple[str, ...]] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize("damage", [b"", b"garbage", b"00000000 {}\n"])
def test_what_is_not_whole_is_left_aside(tmp_path: Path, damage: bytes) -> None:
    """As what is not there."""
    path = tmp_path / "rows.json"
    assert rebuildable.load(path, Content) is None
    rebuildable.save(path, Content({7: ("a", "b")}))
    assert rebuildable.load(path, Content) == Content({7: ("a", "b")})
    path.write_bytes(damage)
    assert rebuildable.load(path, Content) is None


def test_where_nothing_can_be_written_nothing_is_lost(tmp_path: Path) -> None:
    """The next reader works a little more."""
    rebuildable.save(tmp_path / "missing" / "rows.json", Content())
    assert not (tmp_path / "missing").exists()
