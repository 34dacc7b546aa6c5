"""The paths of the working directory that stay from run to run."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any

from detslurm.config.fields import Section, Text, must


def _within(value: Any) -> str | None:
    path = PurePosixPath(value)
    if path.is_absolute() or not path.parts or ".." in path.parts or not value.isprintable():
        return "must be a relative path below the working directory"
    return None


class Outputs(Section, frozen=True, kw_only=True):
    """Paths that lie in a directory of the trial; on all nodes if `shared`, else the first's."""

    paths: tuple[Annotated[Text, must(_within)], ...] = ()
    shared: bool = False
