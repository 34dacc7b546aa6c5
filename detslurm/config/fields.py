"""The vocabulary of the schema: what a field may hold, and its further properties.

The structs of `detslurm.config.schema` are the one description of a configuration. msgspec reads
types, bounds and defaults from them; what it can't express stands in `Meta(extra=...)` and is
read by the checker (`detslurm.config.checking`) and by `masked()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta

Check = Callable[[Any], str | None]
"""Returns the fault of a value (may be an empty text), or None."""

NonNegative = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]


def one_line(value: Any) -> str | None:
    """Wants no line breaks or other control characters, as for all that a batch script holds."""
    return None if value.isprintable() else "must be one printable line"


def title(value: Any) -> str | None:
    """Wants one line in which something stands, as for what people know a thing by."""
    return one_line(value) or (None if value.strip() else "must not be empty")


def word(value: Any) -> str | None:
    """Requires one word, as Slurm's names are."""
    return one_line(value) or ("must be one word" if " " in value else None)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every part of a configuration: immutable, built by keyword."""


IGNORED = Meta(extra={"ignored": True})
"""Accepted, but without effect on Slurm: named in the one warning about such fields."""

SECRET = Meta(extra={"secret": True})
"""Never shown: not by `masked()`, not in an error."""


def deprecated(advice: str) -> Meta:
    """Still accepted; the warning about such fields gives `advice`."""
    return Meta(extra={"deprecated": advice})


def accepts(form: Any, expected: str | None = None) -> Meta:
    """The forms that a user may write, where the resolved configuration holds fewer."""
    return Meta(extra={"accepts": form} | ({"expected": expected} if expected else {}))


def must(check: Check, expected: str | None = None) -> Meta:
    """A check of the value beyond type and bounds; `expected` names the right form in errors."""
    return Meta(extra={"check": check} | ({"expected": expected} if expected else {}))


def expected(what: str) -> Meta:
    """The right form as errors name it, where the type alone is not specific enough."""
    return Meta(extra={"expected": what})


# -- immutable plain data -------------------------------------------------------------------------


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes; everything else, JSON included, takes it for a dict."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the configuration is immutable: change a copy of it, dict(...)")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse
    __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds a dict item by item, which is refused here.
        return type(self), (dict(self),)

    def __deepcopy__(self, memo: object) -> FrozenDict:
        return self


def freeze(value: Any) -> Any:
    """The same data with immutable containers, at every depth."""
    if isinstance(value, FrozenDict):
        return value
    if isinstance(value, Mapping):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value
