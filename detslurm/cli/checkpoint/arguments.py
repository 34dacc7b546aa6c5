"""Arguments of commands on checkpoints: ids, ages and sizes."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from detslurm.cli.arguments.ids import several
from detslurm.cli.lazy import completed_by

_UNITS: Final = {
    "age": {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800},
    "size": {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
}
_SHORTEST: Final = 4


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """A number with a unit: an age such as `12h` or `7d`, a size such as `500M` or `2GiB`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number in seconds or bytes, or a usage error."""
        units = _UNITS[self.name]
        found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([A-Za-z]*)", str(value).strip())
        unit = "?" if found is None else found[2]
        if self.name == "size" and len(unit) > 1:
            unit = re.sub("(?i)i?B$", "", unit).upper()
        if found is None or unit not in units:
            known = ", ".join(f"3{name}" for name in units if name)
            self.fail(f"{value!r} is not {self.name_with_article}: {known}", param, ctx)
        return float(found[1]) * units[unit]

    @property
    def name_with_article(self) -> str:
        return f"{'an' if self.name[0] == 'a' else 'a'} {self.name}"


def _uuid(text: str) -> str:
    word = text.strip().lower() if re.fullmatch(r"[0-9A-Fa-f-]+", text.strip()) else text.strip()
    if len(word) < _SHORTEST or "/" in word:
        raise click.BadParameter(
            f"{text!r} is not the id of a checkpoint: give at least {_SHORTEST} characters of it"
        )
    return word


def _one(ctx: click.Context, param: click.Parameter, value: str) -> str:
    return _uuid(value)


_several = several(lambda text: [_uuid(text)])
_completed = completed_by("checkpoints")
one_uuid = click.argument("uuid", metavar="UUID", callback=_one, shell_complete=_completed)
several_uuids = click.argument(
    "uuids",
    metavar="UUID...",
    nargs=-1,
    required=True,
    callback=_several,
    shell_complete=_completed,
)
any_uuids = click.argument(
    "uuids", metavar="[UUID...]", nargs=-1, callback=_several, shell_complete=_completed
)
