"""Hyperparameters: constants, ranges, categories, choices, and mappings of these, at any depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from detslurm.config.fields import FrozenDict, Positive, Section, freeze


class Const(Section, frozen=True, kw_only=True, tag_field="type", tag="const"):
    """The same value in every trial."""

    val: Any


class Int(Section, frozen=True, kw_only=True, tag_field="type", tag="int"):
    """An integer, both ends included."""

    minval: int
    maxval: int
    count: Positive | None = None


class Double(Section, frozen=True, kw_only=True, tag_field="type", tag="double"):
    """A floating-point number from minval to maxval."""

    minval: float
    maxval: float
    count: Positive | None = None


class Log(Section, frozen=True, kw_only=True, tag_field="type", tag="log"):
    """base ** x with x from minval to maxval: the bounds are exponents."""

    minval: float
    maxval: float
    base: Annotated[float, msgspec.Meta(gt=0)]
    count: Positive | None = None


class Categorical(Section, frozen=True, kw_only=True, tag_field="type", tag="categorical"):
    """One of several values."""

    vals: Annotated[tuple[Any, ...], msgspec.Meta(min_length=1)]


class Choice(Section, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """One of several vals, each of which may be whatever a hyperparameter may be."""

    vals: Annotated[tuple[Any, ...], msgspec.Meta(min_length=1)]


Range = Const | Int | Double | Log | Categorical | Choice


class Hyperparameters(FrozenDict):
    """Hyperparameters by name; a value is a range or, nested, `Hyperparameters` again."""

    @classmethod
    def parse(cls, specs: Mapping[str, Any]) -> Hyperparameters:
        """Read the plain form, where anything but a mapping is a constant."""
        return cls({name: parse_one(spec) for name, spec in specs.items()})


def parse_one(spec: Any) -> Range | Hyperparameters:
    """One hyperparameter from its plain form."""
    if not isinstance(spec, Mapping):
        return Const(val=freeze(spec))
    if "type" not in spec:
        return Hyperparameters.parse(spec)
    parsed: Range = msgspec.convert(freeze(spec), Range)
    if isinstance(parsed, Choice):
        return Choice(vals=tuple(map(parse_one, parsed.vals)))
    return parsed
