"""What the callback says of a checkpoint that a killed run has left half-written."""

from __future__ import annotations

from pathlib import Path

from detslurm.frameworks.half_written import half_written_warning


def save(folder: Path, steps: int, state: str | None = "{}") -> Path:
    path = folder / f"checkpoint-{steps}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    if state is not None:
        (path / "trainer_state.json").write_text(state)
    return path


def test_the_sound_checkpoint_is_named(tmp_path: Path) -> None:
    """The trial's own, else the newest in the folder that is whole; by number, not by name."""
    assert half_written_warning(tmp_path / "new", None) is None
    assert half_written_warning(tmp_path, None) is None
    save(tmp_path, 9)
    whole = save(tmp_path, 20)
    (tmp_path / "checkpoint-best").mkdir()
    assert half_written_warning(tmp_path, None) is None
    for steps, state in ((100, None), (200, '{"global_st'), (300, "")):
        broken = save(tmp_path, steps, state)
        text = half_written_warning(tmp_path, None) or ""
        assert f"{broken} is half-written" in text
        assert f"resume_from_checkpoint={str(whole)!r}" in text
    assert "the newest sound one is /store/c" in (half_written_warning(tmp_path, "/store/c") or "")


def test_without_a_sound_one_training_begins_anew(tmp_path: Path) -> None:
    save(tmp_path, 10, None)
    assert "begin without a checkpoint" in (half_written_warning(tmp_path, None) or "")
