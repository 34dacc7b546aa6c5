"""Settings of accelerate that lie in the home since another machine was the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.sdk.submission.accelerate_defaults import accelerate_notes
from detslurm.slurm import JobRequest

JOB = JobRequest(name="a", command=("b",), folder=Path("/tmp"), slots=2, slot_type="cuda")


@pytest.mark.parametrize(
    ("settings", "entrypoint", "wrong"),
    [
        ("num_processes: 8\nuse_cpu: true\n", "accelerate launch t.py",
         "num_processes: 8, use_cpu: true"),
        ("gpu_ids: 4,5\n", "cd src && accelerate-launch t.py", "gpu_ids: 4,5"),
        ("distributed_type: 'NO'\n", ["python3", "-m", "accelerate.commands.launch", "t.py"],
         "distributed_type: 'NO'"),
        ("num_processes: 2\ngpu_ids: all\nuse_cpu: false\n", "accelerate launch t.py", None),
        ("num_processes: 8\n", "accelerate launch --num_processes=2 t.py", None),
        ("num_processes: 8\n", "accelerate launch --config_file mine.yaml t.py", None),
        ("num_processes: 8\n", "torchrun t.py", None),
        ("num_processes: [\n", "accelerate launch t.py", None),
        (None, "accelerate launch t.py", None),
    ],
)  # fmt: skip
def test_contradictions_are_named(
    settings: str | None,
    entrypoint: str | list[str],
    wrong: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "huggingface/accelerate/default_config.yaml"
    path.parent.mkdir(parents=True)
    if settings is not None:
        path.write_text(settings)
    found = [note.partition(" accelerate launch")[0] for note in accelerate_notes(entrypoint, JOB)]
    expected = f"entrypoint: {path} has {wrong}, but a trial has 2 slots (cuda)."
    assert found == ([expected] if wrong else [])
