"""Where a section says that a storage is."""

from __future__ import annotations

import pytest

from detslurm import core


@pytest.mark.parametrize(
    ("kind", "needed"),
    [("directory", "container_path"), ("s3", "bucket"), ("gcs", "bucket"), ("azure", "container")],
)
def test_a_section_without_its_place_is_refused(kind: str, needed: str) -> None:
    """As the documentation of `core.init` has it, in words that say what is missing."""
    for section in ({"type": kind, "prefix": "x"}, {"type": kind, needed: ""}):
        with pytest.raises(ValueError, match=f"of type {kind} needs {needed}"):
            core.init(checkpoint_storage=section)
