"""A configuration as it may be shown: without its secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec import inspect as schema

from detslurm.config.describe import members, type_info

MASK = "********"
# Of tokenizers, numbers of tokens and authors much is said that is no secret.
_SECRET_NAME = (
    r"(?:secret|(?<!max_)(?<!num_)(?<!max-)(?<!num-)token(?!iz)|passw|pwd"
    r"|(?:api|access|private)[_-]?key|credential|auth(?!ors?\b))"
)
_ASSIGNMENT = re.compile(
    rf"""(\b\w*{_SECRET_NAME}\w*\s*=\s*)("[^"]*"|'[^']*'|[^\s,;]+)""", re.IGNORECASE
)
_VARIABLE = re.compile(rf"(\w*{_SECRET_NAME}\w*=).*", re.IGNORECASE | re.DOTALL)
_USER_INFO = re.compile(r"(\w://)[^/@\s]+@")
_SIGNATURE = re.compile(r"([?&](?:sig|signature|token)=)[^&\s]+", re.IGNORECASE)


def masked(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """A plain configuration whose schema is `kind`, with every secret replaced by asterisks."""
    plain: dict[str, Any] = _by_schema(config, type_info(kind))
    if "secrets" in plain["data"]:
        plain["data"]["secrets"] = _everything(plain["data"]["secrets"])
    variables = plain["environment"]["environment_variables"]
    for device, entries in variables.items():
        variables[device] = [_VARIABLE.sub(rf"\1{MASK}", entry) for entry in entries]
    for key in ("setup", "sbatch_args"):
        plain["slurm"][key] = _texts(plain["slurm"][key], _assignments)
    plain["entrypoint"] = _texts(plain["entrypoint"], _assignments)
    return {key: _texts(value, _url) for key, value in plain.items()}


def shareable(plain: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """These sections of any plain configuration, without its secrets: for files that are copied.

    Unlike `masked` it leaves out whole sections, where it need not know what is secret.
    """
    chosen = {key: plain[key] for key in keys if key in plain}
    data = chosen.get("data")
    if isinstance(data, Mapping) and "secrets" in data:
        chosen["data"] = {**data, "secrets": _everything(data["secrets"])}
    if "entrypoint" in chosen:
        chosen["entrypoint"] = _texts(chosen["entrypoint"], _assignments)
    return {key: _texts(value, _url) for key, value in chosen.items()}


def secrets_of(plain: Any, shown: Any) -> Iterator[str]:
    """What a configuration has where `masked` shows asterisks."""
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
        return MASK
    for member in members(kind):
        if isinstance(member, schema.StructType) and isinstance(value, dict):
            if member.tag is not None and value.get(str(member.tag_field)) != member.tag:
                continue
            types = {field.encode_name: field.type for field in member.fields}
            return {k: _by_schema(v, types[k]) if k in types else v for k, v in value.items()}
    return value


def _everything(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _everything(item) for key, item in value.items()}
    return MASK


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _assignments(text: str) -> str:
    return _ASSIGNMENT.sub(rf"\1{MASK}", text)


def _url(text: str) -> str:
    return _SIGNATURE.sub(rf"\1{MASK}", _USER_INFO.sub(rf"\1{MASK}@", text))
