"""Write hyperparameters as overrides of Hydra, by its grammar. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

KEY = re.compile(r"\+{0,2}[A-Za-z_$][\w$-]*(?:[./][A-Za-z_$][\w$-]*)*(?:@[\w.:$-]+)?", re.ASCII)
"""A key of an override; `+` or `++` adds a key that the application's configuration lacks."""
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_DICT_KEY = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_WORDS = frozenset(["null", "true", "false", "inf", "nan"])


def assignments(hparams: Mapping[str, Any], outer: str = "") -> list[str]:
    """Return an override for each hyperparameter; nested names are joined by dots."""
    words = []
    for name, value in hparams.items():
        if isinstance(value, Mapping) and value:
            words += assignments(value, f"{outer}{name}.")
        else:
            words.append(f"{outer}{name}={value_of(value)}")
    return words


def value_of(value: Any) -> str:
    """Return a value in Hydra's grammar; a text arrives as it is, and nothing in it is expanded.

    Raises `ValueError` for a key inside of a list that the grammar has no form for.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(value_of, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_dict_key(k)}:{value_of(v)}' for k, v in value.items())}}}"
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if is_plain else _quoted(value)


def _dict_key(key: str) -> str:
    if not _DICT_KEY.fullmatch(key) or key.lower() in _WORDS:
        raise ValueError(f"Hydra has no form for the key {key!r} in a list")
    return key


def _quoted(text: str) -> str:
    # OmegaConf would resolve ${...}: a backslash stops it, and those before it are doubled.
    text = re.sub(r"(\\*)\$\{", lambda found: f"{found[1] * 2}\\${{", text)
    # Backslashes escape only before a quote and at the end; there they are doubled.
    escaped = re.sub(r"(\\*)'", lambda found: f"{found[1] * 2}\\'", text)
    doubled_end = "\\" * (len(escaped) - len(escaped.rstrip("\\")))
    return f"'{escaped}{doubled_end}'"
