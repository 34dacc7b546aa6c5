"""One record as one line that checks itself: `<crc32, 8 hex digits> <json>\\n`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import msgspec

from detslurm.store.errors import CorruptRecord

# JSON knows no NaN and no infinities, and losing a metric's NaN would hide a diverged run.
MARK = b'"$'
_FLOAT = "$float"
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _foreign(value: Any) -> Any:
    """Numpy's and torch's scalars and arrays, known by what they offer: nothing is imported."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    raise TypeError(f"a {type(value).__name__} cannot be recorded: {value!r}")


_encode = msgspec.json.Encoder(enc_hook=_foreign).encode
_decode = msgspec.json.Decoder().decode


def encode_json(value: Any) -> bytes:
    """JSON in which NaN, infinities and broken text survive (see `decode_json`)."""
    try:
        raw = _encode(value)
    except UnicodeEncodeError:
        return _encode(_escaped(value))
    # A null may have been a NaN, and a "$" key may look like our own mark: both are rare.
    if b"null" in raw or MARK in raw:
        return _encode(_escaped(value))
    return raw


def decode_json(raw: bytes) -> Any:
    """The value that `encode_json` was given, tuples as lists and keys as text."""
    value = _decode(raw)
    return restored(value) if MARK in raw else value


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return _escaped_float(float(value))
    if isinstance(value, Mapping):
        return {_escaped_key(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_escaped(item) for item in value]
    if hasattr(value, "tolist"):
        return _escaped(value.tolist())
    return value


def _escaped_float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return {_FLOAT: "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}


def _escaped_key(key: Any) -> Any:
    if not isinstance(key, str):
        return key
    text = key.encode("utf-8", "backslashreplace").decode()
    return "$" + text if text.startswith("$") else text


def restored(value: Any) -> Any:
    """A decoded value with its NaNs and infinities back; needed where JSON contains MARK."""
    if isinstance(value, list):
        return [restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and _FLOAT in value:
        return _SPECIAL.get(value[_FLOAT], math.nan)
    return {key[1:] if key[:1] == "$" else key: restored(v) for key, v in value.items()}


def frame(record: Mapping[str, Any]) -> bytes:
    """The line that stands for `record`."""
    raw = encode_json(record)
    return b"%08x %b\n" % (crc32(raw), raw)


def checked(line: bytes) -> bytes:
    """The JSON inside a line (without its newline), after its checksum was compared."""
    raw = line[9:]
    if line[:9] != b"%08x " % crc32(raw):
        raise CorruptRecord("checksum differs")
    return raw


def unframe(line: bytes) -> dict[str, Any]:
    """The record that a line (without its newline) stands for, or CorruptRecord."""
    try:
        record = decode_json(checked(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise CorruptRecord("not a record")
    return record
