"""Read the sweeps of a Hydra command line: choices and ranges. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_INT = re.compile(r"[+-]?(?:0|[1-9][\d_]*)")
_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9][\d_]*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
_ONLY_HYDRAS = re.compile(r".*(?<!\\)\$\{.*|[+-]?(?:inf|nan)", re.DOTALL | re.IGNORECASE)
_MOST = 1_000_000
_WORDS = {"null": None, "true": True, "false": False}
_PAIRS = {"[": "]", "{": "}", "(": ")"}
_GLOB = "glob() asks Hydra for the names of configuration files: write the names, such as {}=a,b"
_OTHER = "{}() is not read here: write choices ({}=1,2) or range(START,STOP,STEP)"


def sweep(key: str, text: str) -> list[Any] | None:
    """Return the values that `key=text` sweeps over; None for a single value.

    Raises `ValueError` for a sweep that only Hydra can do, and for a text that does not parse.

    Example:
        assert sweep("lr", "range(0,3)") == [0, 1, 2]
    """
    call = _CALL.fullmatch(text.strip())
    if call is None:
        parts = split(text)
        return [value(part) for part in parts] if len(parts) > 1 else None
    name, inner = call.groups()
    if name == "choice":
        return [value(part) for part in split(inner)]
    if name == "range":
        return list(_range(inner))
    raise ValueError(_GLOB.format(key) if name == "glob" else _OTHER.format(name, key))


def split(text: str) -> list[str]:
    """Return the parts between commas that stand outside of quotes and brackets."""
    parts, closing, quote, escaped = [""], "", "", False
    for sign in text:
        if sign == "," and not closing and not quote and not escaped:
            parts.append("")
            continue
        parts[-1] += sign
        if escaped or sign == "\\":
            escaped = not escaped
        elif quote or sign in "'\"":
            quote = (quote if sign != quote else "") if quote else sign
        elif sign in _PAIRS:
            closing = _PAIRS[sign] + closing
        elif closing and sign == closing[0]:
            closing = closing[1:]
    if closing or quote:
        raise ValueError(f"{text} lacks a closing {closing[:1] or quote}")
    return parts


def value(text: str) -> Any:
    """Return the value of an element of Hydra's grammar."""
    text = text.strip()
    if _ONLY_HYDRAS.fullmatch(text):
        raise ValueError(f"{text} can't be one of several values here")
    if text[:1] and text[0] in "'\"" and text[0] == text[-1]:
        backslashes = re.compile(rf"(\\+)({text[0]}|$)")
        return backslashes.sub(lambda m: "\\" * (len(m[1]) // 2) + m[2], text[1:-1])
    if text.startswith("["):
        return [value(part) for part in _inside(text)]
    if text.startswith("{"):
        pairs = (part.partition(":") for part in _inside(text))
        return {key.strip(): value(item) for key, _, item in pairs}
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    number = int if _INT.fullmatch(text) else float if _FLOAT.fullmatch(text) else None
    return number(text) if number else _ESCAPED.sub(r"\1", text)


def _inside(text: str) -> list[str]:
    return split(text[1:-1]) if text[1:-1].strip() else []


def _range(inner: str) -> Iterator[int | float]:
    given: dict[str, str] = {}
    for name, part in zip(("start", "stop", "step"), split(inner), strict=False):
        key, equals, number = part.rpartition("=")
        given[key.strip() if equals else name] = number.strip()
    if not all(map(_FLOAT.fullmatch, given.values())):
        raise ValueError(f"range({inner}): numbers are expected")
    if "stop" not in given:
        given = {"stop": given["start"]}
    at, stop, step = (Decimal(given.get(k, d)) for k, d in (("start", 0), ("stop", 0), ("step", 1)))
    if step == 0 or (stop - at) / step > _MOST:
        raise ValueError(f"range({inner}): at most {_MOST:,} values are expected")
    as_number = int if all(map(_INT.fullmatch, given.values())) else float
    while (at < stop) if step > 0 else (at > stop):
        yield as_number(at)
        at += step
