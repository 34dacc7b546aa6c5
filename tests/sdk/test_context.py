"""Which files of a context directory are frozen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.context import (
    ALWAYS_IGNORED,
    MAX_BYTES,
    always_ignored,
    collect,
    freeze,
)
from detslurm.sdk.submission.generated import REPORT_MARK

UUID = "aaaa1111-0000-4000-8000-000000000001"


def write(root: Path, *names: str) -> None:
    """Files with one byte each."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


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


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    """One to itself is left out with a word, or in silence where it is ignored."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x")
    found = collect(tmp_path)
    assert [file.name for file in found.files] == ["file"]
    assert "loop is left out: it leads nowhere" in found.notes[0]
    (tmp_path / ".detignore").write_text("loop\n")
    assert collect(tmp_path).notes == ()


def test_a_link_to_a_whole_data_set(tmp_path: Path) -> None:
    """Once it is far too much, the rest is not looked at."""
    for number in range(12):
        with (tmp_path / f"{number:02d}").open("wb") as file:
            file.truncate(MAX_BYTES)
    with pytest.raises(SubmitError, match=r"1\.0 GiB of") as refusal:
        collect(tmp_path)
    assert "11" not in str(refusal.value)


def test_what_programs_have_generated_is_left_out(tmp_path: Path) -> None:
    """With a note each but for reports; --include takes it, and so does a copy of frozen code."""
    generated = {
        "venv": "a virtual environment",
        "tools/env": "a conda environment",
        "web/node_modules": "packages of Node.js",
        f"checkpoints/{UUID}": "a downloaded checkpoint",
        f"checkpoints/.{UUID}.aaaa1111.partial": "a downloaded checkpoint",
    }
    write(tmp_path, "venv/pyvenv.cfg", "tools/env/conda-meta/history", "web/node_modules/x.js")
    write(tmp_path, f"checkpoints/{UUID}/metadata.json", f"checkpoints/{UUID}/weights")
    write(tmp_path, f"checkpoints/.{UUID}.aaaa1111.partial/weights")
    (tmp_path / "searches.html").write_text(f"<!doctype html>{REPORT_MARK}")
    write(tmp_path, "form.html", "model/metadata.json", f"data/{UUID}/image", "web/venv.py")
    found = collect(tmp_path)
    assert {file.name for file in found.files} == {
        "form.html", "model/metadata.json", f"data/{UUID}/image", "web/venv.py",
    }  # fmt: skip
    assert "checkpoints" in found.directories and "venv" not in found.directories
    assert len(found.notes) == len(generated)
    for name, kind in generated.items():
        assert any(f"{tmp_path / name} is left out: it is {kind}" in note for note in found.notes)
    (empty := tmp_path / "model" / "none").mkdir()
    included = collect(empty, [tmp_path / "checkpoints" / UUID])
    assert f"{UUID}/weights" in {file.name for file in included.files}
    again = collect(tmp_path, [tmp_path / "searches.html"])
    assert "searches.html" in {file.name for file in again.files}
    assert not collect(tmp_path, frozen=True).notes


def test_what_is_included_all_the_same_stays_where_it_is(tmp_path: Path) -> None:
    """The code looks for it there; a directory that is emptied has not taken the name."""
    copies, other = tmp_path / "checkpoints", UUID.replace("aaaa", "bbbb")
    write(tmp_path, "train.py", f"checkpoints/{UUID}/metadata.json", f"checkpoints/{UUID}/a/w")
    write(tmp_path, f"checkpoints/{other}/metadata.json", "venv/pyvenv.cfg", "venv/lib/x")
    one = collect(tmp_path, [copies / UUID, tmp_path / "venv" / "lib"])
    names = {"train.py", f"checkpoints/{UUID}/metadata.json", f"checkpoints/{UUID}/a/w"}
    assert {file.name for file in one.files} == {*names, "venv/lib/x"}
    assert [note.partition(" is left out")[0] for note in one.notes] == [
        str(copies / other), str(tmp_path / "venv"),
    ]  # fmt: skip
    (stage := tmp_path / "stage").mkdir()
    freeze(one, stage)
    assert (stage / "checkpoints" / UUID / "a" / "w").exists() and (stage / "venv/lib/x").exists()
    shutil.rmtree(stage)
    both = collect(tmp_path, [copies])
    assert {file.name for file in both.files} == {*names, f"checkpoints/{other}/metadata.json"}
    with pytest.raises(SubmitError, match="duplicate path detected: 'checkpoints'"):
        collect(tmp_path, [copies, copies])
    (tmp_path / ".detignore").write_text("data/\n")
    write(tmp_path, "data/small/x")
    ignored = collect(tmp_path, [tmp_path / "data" / "small"])
    assert "small/x" in {file.name for file in ignored.files}


def test_many_files_are_a_warning(tmp_path: Path) -> None:
    """With the directories that have most of them."""
    write(tmp_path, "train.py", *(f"data/{n % 7}/{n}.png" for n in range(1990)))
    write(tmp_path, *(f"lib/{n}.py" for n in range(9)))
    assert collect(tmp_path).notes == ()
    write(tmp_path, "one_more.py")
    (note,) = collect(tmp_path).notes
    assert note.startswith("2,001 files are copied") and "data (1,990), lib (9): name" in note


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
