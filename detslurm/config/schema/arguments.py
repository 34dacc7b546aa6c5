"""How a trial's hyperparameters become arguments of its command."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from detslurm.config.fields import Section, Text, must

FILE_ENDINGS = (".json", ".yaml", ".yml")


def _file(value: Any) -> str | None:
    path = PurePosixPath(value)
    if path.suffix not in FILE_ENDINGS:
        return f"its name ends with {' or '.join(FILE_ENDINGS)}"
    inside = value.isprintable() and not path.is_absolute() and ".." not in path.parts
    return None if inside else "it lies in the working directory"


class Flags(Section, frozen=True, kw_only=True):
    """Options of a command line; each choice shows what the script gets."""

    separator: Literal[".", "_", "-"] = "."
    booleans: Literal["--flag/--no-flag", "--flag=true", "--flag=True", "--flag"] = (
        "--flag/--no-flag"
    )
    lists: Literal["--flag 1 2", "--flag=1 --flag=2", "--flag=1,2", "--flag=[1,2]"] = "--flag 1 2"


class Arguments(Section, frozen=True, kw_only=True):
    """Flags, or a file in the working directory whose path is appended, or named by `option`."""

    flags: Flags | None = None
    file: Annotated[str | None, must(_file, "a relative path of a JSON or YAML file")] = None
    option: Text | None = None
