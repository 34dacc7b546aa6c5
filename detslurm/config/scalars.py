"""Reads a plain YAML scalar by YAML 1.2's core schema.

PyYAML itself follows YAML 1.1, where `1e-3` is text, `on` is true and `1:30:00` is a number, all
of them traps in a configuration. Underscores between digits (1_000_000) are taken as in Python.
"""

from __future__ import annotations

import re

from detslurm.config.yaml_node import Scalar

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_YAML_1_1_BOOL = frozenset(("yes", "no", "on", "off"))
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_INT = re.compile(rf"[-+]?{_DIGITS}")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    rf"[-+]?(?:\.[0-9]+|{_DIGITS}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_DOTTED_WORD = re.compile(r"\.([A-Za-z])")
_LONGEST_NUMBER = 400


def was_bool_in_yaml_1_1(text: str) -> bool:
    """Whether an unquoted scalar is a boolean to YAML 1.1, and text here."""
    return text.lower() in _YAML_1_1_BOOL


def resolve(text: str) -> Scalar:
    """The value of an unquoted scalar."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if _FLOAT.fullmatch(text):
        return float(_DOTTED_WORD.sub(r"\1", text))
    return text
