"""Images and tables that code reports: what is kept of them, over restarts and torn writes."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detslurm import core
from detslurm.core._artifacts import artifact_of, png
from detslurm.store import artifacts, fold_trial
from detslurm.store.artifacts import Artifact, ArtifactLog, read_artifacts

from .jobs import Job


def one(steps: int, name: str = "x", size: int = 10) -> Artifact:
    return Artifact(name=name, steps=steps, kind="image", media="png", data=b"d" * size)


def steps_of(folder: Path, name: str = "x") -> list[int]:
    return [found.steps for found in read_artifacts(folder).get(name, [])]


def test_of_a_thousand_steps_few_are_kept_and_the_first_and_the_last(tmp_path: Path) -> None:
    """The same each time, spread over the whole way; little more is ever written or on disk."""
    kept = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        log = ArtifactLog(folder, 1)
        for step in range(1, 1001):
            log.add(one(step, size=10_000))
        assert steps_of(folder)[-1] >= 950  # it is seen while it runs
        log.close()
        kept.append([found.steps for found in read_artifacts(folder)["x"]])
    assert kept[0] == kept[1]
    assert kept[0][0] == 1 and kept[0][-1] == 1000
    (file,) = (tmp_path / "a").iterdir()
    assert file.stat().st_size < 3 << 20


def test_the_size_of_all_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of each name makes room for others; one that has no room is refused."""
    monkeypatch.setattr(artifacts, "MOST_BYTES", 16 << 10)
    log = ArtifactLog(tmp_path, 1)
    for step in range(20):
        log.add(one(step, "a", 1 << 10))
    for name in "bcdefg":
        log.add(one(1, name, 1 << 10))
        log.add(one(2, name, 1 << 10))
    with pytest.raises(ValueError, match="dropped"):
        for number in range(20):
            log.add(one(1, f"n{number}", 1 << 10))
    log.close()
    found = read_artifacts(tmp_path)
    assert [found["a"][0].steps, found["a"][-1].steps] == [0, 19]


def test_a_later_run_takes_over_what_stands(tmp_path: Path) -> None:
    """Artifacts past the checkpoint that it resumed from are the lost past."""
    log = ArtifactLog(tmp_path, 1)
    for step in (10, 20, 30):
        log.add(one(step))
    # It is killed: nothing closes its log, and its last line is torn.
    with (tmp_path / "run-1.artifacts.jsonl").open("ab") as file:
        file.write(b"12345678 {torn")
    assert steps_of(tmp_path) == [10, 20, 30]
    later = ArtifactLog(tmp_path, 2)
    later.add(one(20))
    later.add(one(40))
    later.close()
    assert steps_of(tmp_path) == [10, 20, 40]
    assert [file.name for file in tmp_path.iterdir()] == ["run-2.artifacts.jsonl"]
    log.add(one(50))  # a zombie's
    assert steps_of(tmp_path) == [10, 20, 40]


def test_arrays_become_png() -> None:
    """Grey or coloured, channels first or last, floats or integers; large ones get smaller."""
    colours = np.array([[[255, 0, 0], [0, 255, 0]]], np.uint8)
    for same in (colours, colours / 255, colours.transpose(2, 0, 1)):
        assert png(same) == png(colours)
    data = png(colours)
    body = data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8]
    assert zlib.decompress(body) == b"\0\xff\0\0\0\xff\0"
    assert png(np.zeros((2000, 1000)))[16:24] == bytes((0, 0, 0, 250, 0, 0, 1, 244))
    with pytest.raises(ValueError, match="is no image"):
        png(np.zeros((2, 2, 7)))


def test_histograms_matrices_and_tables() -> None:
    """Each as small JSON."""

    def content(value: Any, **kwargs: Any) -> Any:
        return json.loads(artifact_of("x", 1, value, **kwargs).data)

    found = content(np.r_[0.0, 1.0, 1.0, np.nan], kind="histogram")
    assert sum(found["counts"]) == 3 and found["edges"][0] == 0 and found["edges"][-1] == 1
    found = content([[5, 1], [0, 4]], kind="confusion_matrix", labels=["cat", "dog"])
    assert found == {"labels": ["cat", "dog"], "counts": [[5, 1], [0, 4]]}
    table = {"columns": ["text", "loss"], "rows": [["a", 1.0], ["b", 2.0]]}
    assert content([{"text": "a", "loss": 1.0}, {"text": "b", "loss": 2.0}]) == table
    assert content({"text": ["a", "b"], "loss": [1.0, 2.0]}) == table
    with pytest.raises(ValueError, match="square"):
        content([[1, 2]], kind="confusion_matrix")
    with pytest.raises(TypeError, match="not a int"):
        content(3)


def test_a_run_reports_artifacts(
    job: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files, arrays and tables; what can't be kept is a warning and ends no training."""
    (tmp_path / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / "big.svg").write_text("<svg/>" + "x" * (1 << 20))
    with core.init() as context:
        report = context.train.report_artifact
        for step in range(100):
            report("sample", step, np.full((4, 4), step / 100))
        report("drawing", 5, tmp_path / "a.svg")
        report("drawing", 5, tmp_path / "a.svg")
        report("big", 5, tmp_path / "big.svg")
    assert [r.getMessage().partition(" is dropped")[0] for r in caplog.records] == [
        "artifact 'drawing' was already reported at step 5",
        "artifact 'big' of step 5",
    ]
    assert fold_trial(job.trial).artifacts
    found = read_artifacts(job.trial.path)
    assert found.keys() == {"sample", "drawing"}
    assert [found["sample"][0].steps, found["sample"][-1].steps] == [0, 99]
    assert found["drawing"][0].media == "svg"
