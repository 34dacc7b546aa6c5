"""Plain data to YAML text that `reading` takes for the same data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from detslurm.config.scalars import resolve


class _Dumper(yaml.SafeDumper):
    """PyYAML's, which quotes what YAML 1.1 would take for something else than text."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Only double quotes keep every line break and every invisible character.
    style = None if text.isprintable() and isinstance(resolve(text), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(plain: Mapping[str, Any], *, sort_keys: bool = False) -> str:
    """YAML of plain data, which `reading.parse` gives back; numbers of libraries become plain."""
    data = json.loads(json.dumps(plain))
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=sort_keys, allow_unicode=True)
    return text
