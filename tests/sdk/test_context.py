"""Which files of a context directory are frozen."""

from __future__ import annotations

from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.context import ALWAYS_IGNORED, MAX_BYTES, always_ignored, collect


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


def test_our_own_patterns_are_gitignores() -> None:
    """They are matched without pathspec where the user has no ignore file: to the same end."""
    spec = GitIgnoreSpec.from_lines(ALWAYS_IGNORED)
    bases = [
        pattern.strip("/").replace("*", "x").replace("[co]", "c") for pattern in ALWAYS_IGNORED
    ]
    bases += [base + "x" for base in bases] + ["x" + base for base in bases] + [".py", "a b", "{}"]
    for base in bases:
        for name in (base, f"{base}/", f"a/{base}", f"a/b/{base}/", f"terrafor/{base}"):
            assert always_ignored(name) == spec.match_file(name), name
