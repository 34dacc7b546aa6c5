"""docs/snapshot.md is about the document as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from detslurm.look import document as schema
from detslurm.look.code_listing import ALL as ALL_CODE
from detslurm.look.code_listing import LARGEST
from detslurm.look.document import DOCUMENT, MAX_POINTS, VERSION
from detslurm.look.document import PAGE as PAGE_BUDGET
from detslurm.look.experiment_reader import CHECKPOINTS
from detslurm.look.log_tails import ALL as ALL_LOGS
from detslurm.look.packing import packed
from detslurm.store.thinning import LEAST
from tests.docs.pages import REPOSITORY, blocks
from tests.look.documents import document
from tests.sdk.scenes import Scene

PAGE = REPOSITORY / "docs" / "snapshot.md"
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "The document": schema.Snapshot,
    "Experiment": schema.ExperimentPart,
    "Trial": schema.TrialPart,
    "Curve": schema.Curve,
    "Means": schema.Means,
    "Run": schema.RunPart,
    "Checkpoint": schema.CheckpointPart,
    "Artifact": schema.ArtifactPart,
    "Objective": schema.ObjectivePart,
    "Rung": schema.RungPart,
}


@pytest.mark.parametrize("title", STRUCTS)
def test_every_field_is_described(title: str) -> None:
    """In the section of its part, in the order of the code."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert named == list(STRUCTS[title].__struct_fields__)


def test_the_numbers_are_those_of_the_code() -> None:
    """The version and the limits."""
    text = PAGE.read_text()
    for number in (MAX_POINTS, LEAST, CHECKPOINTS, *DOCUMENT[:2], PAGE_BUDGET.points):
        assert f"{number:,}" in text
    assert f"{LARGEST >> 10} KiB" in text
    assert f"{ALL_CODE >> 10} KiB" in text
    assert f"{ALL_LOGS // 1000} kB" in text
    assert f"version {VERSION}" in text


def test_the_example_reads_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines of Python, on a document as tests have it."""
    (lines,) = [block.text for block in blocks(PAGE) if "Infinity" in block.text]
    exec(lines, {"document": json.loads(msgspec.json.encode(document()))})
    assert re.search(r"6 training/loss 200 -inf inf\n", capsys.readouterr().out)


def test_the_example_unpacks_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines of Python, on what a page holds of a document."""
    (lines,) = [block.text for block in blocks(PAGE) if "wbits" in block.text]
    exec(lines, {"packed": packed(document()).packed})
    assert re.search(r"^training/loss 1 20000 [01]\.\d+$", capsys.readouterr().out, re.MULTILINE)


def test_the_page_writes_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first lines of Python, on an experiment whose number is 1."""
    scene = Scene(tmp_path / "store")
    scene.run(scene.experiment(job=None), losses=[0.5], end="completed")
    monkeypatch.setenv("DETSLURM_ROOT", str(scene.root))
    monkeypatch.chdir(tmp_path)
    (lines,) = [block.text for block in blocks(PAGE) if "write_bytes" in block.text]
    exec(lines.replace("experiment(7)", "experiment(1)"), {})
    written = json.loads((tmp_path / "experiment-7.json").read_bytes())
    assert written["experiments"][0]["trials"][0]["curves"][0]["values"] == [0.5]
    assert "train.py" in written["experiments"][0]["code"]
