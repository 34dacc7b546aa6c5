"""Matches plain values with types of the schema, without conversion (5.0 is not an integer)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import inspect as schema

_MATCHES: dict[type, Callable[[Any], bool]] = {
    schema.AnyType: lambda value: True,
    schema.NoneType: lambda value: value is None,
    schema.BoolType: lambda value: isinstance(value, bool),
    schema.IntType: lambda value: type(value) is int,
    schema.FloatType: lambda value: type(value) in (int, float),
    schema.StrType: lambda value: isinstance(value, str),
    schema.LiteralType: lambda value: isinstance(value, str),
    schema.VarTupleType: lambda value: isinstance(value, list),
    schema.StructType: lambda value: isinstance(value, dict),
    schema.DictType: lambda value: isinstance(value, dict),
    schema.CustomType: lambda value: isinstance(value, dict),
}


def matches(value: Any, kind: schema.Type) -> bool:
    """Whether a plain value is of the right kind, leaving bounds and contents aside."""
    if isinstance(kind, schema.Metadata):
        return matches(value, kind.type)
    if isinstance(kind, schema.UnionType):
        return any(matches(value, member) for member in kind.types)
    return _MATCHES[type(kind)](value)


def in_bounds(value: float, kind: schema.IntType | schema.FloatType) -> bool:
    """Whether a number keeps its bounds."""
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
    )
