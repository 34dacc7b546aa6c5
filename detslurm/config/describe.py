"""Texts of errors: the expected type, the value found, the nearest name."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import inspect as schema

from detslurm.config.schema.hyperparameters import Hyperparameters
from detslurm.config.yaml_node import YamlNode

type_info = functools.cache(schema.type_info)
"""msgspec's description of a type; making it takes longer than checking a configuration with it."""

_SHOWN = 40
_PLAIN: dict[type, str] = {
    schema.BoolType: "true or false",
    schema.StructType: "a mapping",
    schema.DictType: "a mapping",
    schema.NoneType: "nothing",
    schema.AnyType: "anything",
}


def expected(kind: schema.Type, extra: Mapping[str, Any] | None = None) -> str:
    """An example of a value of this type."""
    if extra and "expected" in extra:
        return str(extra["expected"])
    if isinstance(kind, schema.Metadata):
        return expected(kind.type, kind.extra)
    if isinstance(kind, schema.IntType | schema.FloatType):
        noun = "an integer" if isinstance(kind, schema.IntType) else "a number"
        return noun + _bounds(kind)
    if isinstance(kind, schema.StrType):
        return "text that isn't empty" if kind.min_length else "text"
    if isinstance(kind, schema.VarTupleType):
        return f"a list of {_plural(expected(kind.item_type))}"
    if isinstance(kind, schema.LiteralType):
        return one_of(kind.values)
    if isinstance(kind, schema.UnionType):
        members = [m for m in kind.types if not isinstance(m, schema.NoneType)]
        return " or ".join(dict.fromkeys(map(expected, members)))
    if isinstance(kind, schema.CustomType):
        return "a mapping of hyperparameters" if kind.cls is Hyperparameters else "a mapping"
    return _PLAIN.get(type(kind), "something else")


def one_of(values: Iterable[Any]) -> str:
    """The alternatives, quoted."""
    shown = [json.dumps(value) for value in values]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"


def _bounds(kind: schema.IntType | schema.FloatType) -> str:
    low = f">= {kind.ge}" if kind.ge is not None else f"> {kind.gt}" if kind.gt is not None else ""
    high = f"<= {kind.le}" if kind.le is not None else ""
    text = " and ".join(filter(None, (low, high)))
    return f" {text}" if text else ""


def _plural(text: str) -> str:
    known = {
        "text": "texts",
        "text that isn't empty": "texts",
        "a mapping": "mappings",
        "an integer": "integers",
        "a number": "numbers",
        "anything": "values",
    }
    return known.get(text, text)


def found(node: YamlNode, secret: bool = False) -> str:
    """The value found, shortened; of a secret only its kind."""
    value = node.value
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None:
        return "nothing"
    if secret:
        return "a value of another kind"
    if isinstance(value, str):
        return f"the text {quoted(value)}" if value else "an empty text"
    return json.dumps(value)


def quoted(text: str) -> str:
    """Text in quotes, on one line, shortened."""
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return json.dumps(shown, ensure_ascii=False)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint at the known name that is most like `name`; empty if none is like it at all."""
    by_shape = {_shape(k): k for k in known}
    match = difflib.get_close_matches(_shape(name[:80]), by_shape, n=1, cutoff=cutoff)
    return f"did you mean {quoted(by_shape[match[0]])}?" if match else ""


def _shape(name: str) -> str:
    return name.lower().replace("-", "_")


def conversion_hint(node: YamlNode, kind: schema.Type) -> str:
    """The text to write instead, where the value is nearly right."""
    value = node.value
    wants = {type(m) for m in members(kind)}
    if schema.BoolType in wants and isinstance(value, str):
        word = value.lower()
        if word in ("yes", "on", "y", "true", "1"):
            return "write true"
        if word in ("no", "off", "n", "false", "0"):
            return "write false"
    if wants & {schema.IntType, schema.FloatType} and isinstance(value, str):
        return "remove the quotes" if _is_number(value) else ""
    if schema.IntType in wants and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if wants == {schema.StrType} and isinstance(value, bool | int | float):
        return "put it in quotes"
    if schema.VarTupleType in wants and isinstance(value, str):
        return "begin each item with a dash, or use [ ]"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def members(kind: schema.Type) -> list[schema.Type]:
    """The alternatives of a type, without annotations and None."""
    if isinstance(kind, schema.Metadata):
        return members(kind.type)
    if isinstance(kind, schema.UnionType):
        return [m for t in kind.types for m in members(t) if not isinstance(m, schema.NoneType)]
    return [kind]
