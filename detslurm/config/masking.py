"""Show a configuration, hyperparameters and other plain data without their secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec import inspect as schema

from detslurm.config.describe import members, type_info
from detslurm.config.secret_names import MASK, is_secret_variable
from detslurm.config.secret_texts import masked_forms
from detslurm.config.secret_values import masked_values

# A word before a colon is no name in these.
_PROSE = frozenset(["name", "description", "labels", "workspace", "project", "log_policies"])


def masked(config: Mapping[str, Any], kind: type, *, variables: bool = True) -> dict[str, Any]:
    """A plain configuration of this schema with every secret replaced by asterisks.

    With `variables` the values of all environment variables are masked, otherwise only of those
    with a secret's name.
    """
    plain: dict[str, Any] = _by_schema(config, type_info(kind))
    by_device = plain["environment"]["environment_variables"]
    for device, entries in by_device.items():
        by_device[device] = [_variable(entry, variables) for entry in entries]
    return {key: _section(key, value) for key, value in plain.items()}


def shareable(plain: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """These sections of any plain configuration without secrets, for files that are copied."""
    return {key: _section(key, plain[key]) for key in keys if key in plain}


def secrets_of(plain: Any, shown: Any) -> Iterator[str]:
    """Yield what plain data has where its masked form `shown` has asterisks."""
    if isinstance(plain, Mapping) and isinstance(shown, Mapping):
        for key, value in plain.items():
            yield from secrets_of(value, shown.get(key))
    elif isinstance(plain, list) and isinstance(shown, list):
        for value, known in zip(plain, shown, strict=False):
            yield from secrets_of(value, known)
    elif isinstance(shown, str) and MASK in shown:
        around = "(.*)".join(map(re.escape, shown.split(MASK)))
        found = re.fullmatch(around, str(plain), re.DOTALL)
        yield from (found.groups() if found else [str(plain)])


def _by_schema(value: Any, kind: schema.Type) -> Any:
    if value is None:
        return None
    if isinstance(kind, schema.Metadata) and (kind.extra or {}).get("secret"):
        return _everything(value)
    for member in members(kind):
        if isinstance(member, schema.StructType) and isinstance(value, dict):
            if member.tag is not None and value.get(str(member.tag_field)) != member.tag:
                continue
            types = {field.encode_name: field.type for field in member.fields}
            return {k: _by_schema(v, types[k]) if k in types else v for k, v in value.items()}
    return value


def _variable(entry: str, every: bool) -> str:
    name, sign, _ = entry.partition("=")
    return f"{name}{sign}{MASK}" if sign and (every or is_secret_variable(name)) else entry


def _section(key: str, value: Any) -> Any:
    if key in _PROSE:
        return _texts(value, masked_forms)
    if key == "data" and isinstance(value, Mapping) and "secrets" in value:
        value = {**value, "secrets": _everything(value["secrets"])}
    return masked_values(value)


def _everything(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _everything(item) for key, item in value.items()}
    return MASK


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value
