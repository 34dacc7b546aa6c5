"""Every bent configuration gives one screen that says where and what, and never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.config import ConfigErrors, load_experiment
from tests.config.bent import BENT, Bent


@pytest.mark.parametrize("bent", BENT, ids=lambda bent: bent.name)
def test_bent_configuration_is_refused_with_its_place(bent: Bent, tmp_path: Path) -> None:
    """The error is one screen, begins with the file and holds line, column, path and advice."""
    path = tmp_path / "experiment.yaml"
    path.write_text(bent.text)
    with pytest.raises(ConfigErrors) as caught:
        load_experiment(path)
    text = str(caught.value)
    assert len(text.splitlines()) <= 21
    assert all(line.startswith((str(path), "and ")) for line in text.splitlines())
    assert all(part in text for part in bent.fragments), text
    assert all(str(path) + ":" in line for line in text.splitlines()[:1])


def test_there_are_enough_of_them_with_distinct_names() -> None:
    """The table holds at least 60 cases, each with its own name."""
    assert len({bent.name for bent in BENT}) == len(BENT) >= 60
