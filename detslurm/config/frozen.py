"""Immutable plain data: what a configuration holds can't be changed by who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


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
