"""Man pages are made from the program's help."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import man_pages


def test_every_command_has_a_page(tmp_path: Path) -> None:
    """With its options and examples."""
    assert man_pages.main([str(tmp_path)]) == 0
    page = (tmp_path / "man1" / "detslurm-experiment-list.1").read_text()
    assert ".SH EXAMPLES" in page and "\\-\\-columns" in page
    assert "detslurm-trial-logs.1" in {path.name for path in tmp_path.rglob("*.1")}


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_pages_are_in_order(tmp_path: Path) -> None:
    """groff has nothing to say about them."""
    man_pages.main([str(tmp_path)])
    argv = ["groff", "-man", "-ww", "-Tutf8", "-z", *map(str, sorted(tmp_path.rglob("*.1")))]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stderr == ""
