"""Records as lines that check themselves: `<crc32, 8 hex digits> <json>\\n`.

The JSON is one record, or a list of those that were written together: a block, whose checksum costs
its writer and its readers once what it would cost for each record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from detslurm.store.errors import CorruptRecord

if TYPE_CHECKING:
    import msgspec

# JSON knows no NaN and no infinities, and losing a metric's NaN would hide a diverged run.
MARK = b'"$'
_DOLLAR = ord("$")
_FLOAT = "$float"
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _foreign(value: Any) -> Any:
    """Numpy's and torch's scalars and arrays, known by what they offer: nothing is imported."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    raise TypeError(f"a {type(value).__name__} cannot be recorded: {value!r}")


def _first_encoded(value: Any) -> bytes:
    """As `_encode`, which the first value makes msgspec's own: each report passes through it."""
    global _encode
    import msgspec

    _encode = msgspec.json.Encoder(enc_hook=_foreign).encode
    return _encode(value)


_encode: Callable[[Any], bytes] = _first_encoded


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    import msgspec

    return msgspec.json.Decoder()


def encode_json(value: Any) -> bytes:
    """JSON in which NaN, infinities and broken text survive (see `decode_json`)."""
    try:
        raw = _encode(value)
    except UnicodeEncodeError:
        return _encode(_escaped(value))
    # A null may have been a NaN, and a "$" key may look like our own mark: both are rare.
    if raw.find(b"null") >= 0 or has_mark(raw):
        return _encode(_escaped(value))
    return raw


def decode_json(raw: bytes) -> Any:
    """The value that `encode_json` was given, tuples as lists and keys as text."""
    value = _decoder().decode(raw)
    return restored(value) if has_mark(raw) else value


def has_mark(raw: bytes) -> bool:
    """Whether a value in JSON may have to be `restored`."""
    return _DOLLAR in raw and MARK in raw  # a number is found in a fifth of a text's time


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
    """A decoded value with its NaNs and infinities back; needed where JSON `has_mark`."""
    if isinstance(value, list):
        return [restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and _FLOAT in value:
        return _SPECIAL.get(str(value[_FLOAT]), math.nan)
    return {key[1:] if key[:1] == "$" else key: restored(v) for key, v in value.items()}


def frame(record: Mapping[str, Any]) -> bytes:
    """The line that stands for `record`."""
    return block((encode_json(record),))


def block(records: Sequence[bytes]) -> bytes:
    """The line that stands for records as JSON, at least a single record."""
    raw = records[0] if len(records) == 1 else b"[%b]" % b",".join(records)
    return b"%08x %b\n" % (crc32(raw), raw)


def checked(line: bytes) -> bytes:
    """The JSON inside a line (without its newline), after its checksum was compared."""
    raw = line[9:]
    if line[:9] != b"%08x " % crc32(raw):
        raise CorruptRecord("checksum differs")
    return raw


def unframe(line: bytes) -> dict[str, Any]:
    """The record that a line (without its newline) stands for, or CorruptRecord."""
    return decode_record(checked(line))


def unframe_all(line: bytes) -> list[dict[str, Any]]:
    """As `unframe`, of a line that may be a block."""
    value = _value(checked(line))
    return [_as_record(one) for one in value] if isinstance(value, list) else [_as_record(value)]


def decode_record(raw: bytes) -> dict[str, Any]:
    """As `decode_json`, of a record, or CorruptRecord."""
    return _as_record(_value(raw))


def _value(raw: bytes) -> Any:
    try:
        return decode_json(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"not JSON: {error}") from None


def _as_record(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptRecord("not a record")
    return value
