"""The JSON that commands print: one envelope around the data."""

from __future__ import annotations

import json
from typing import Any


def unwrap(text: str) -> Any:
    """The data of what a command printed with --json, which must be nothing else."""
    document = json.loads(text)
    assert list(document) == ["schema_version", "data", "errors"], document
    assert document["schema_version"] == 1
    return document["data"]


def errors_of(text: str) -> list[dict[str, Any]]:
    """The errors in the envelope."""
    unwrap(text)
    found: list[dict[str, Any]] = json.loads(text)["errors"]
    assert all(list(one) == ["kind", "message"] for one in found)
    return found
