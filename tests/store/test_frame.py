"""Records survive the way through a line, and a damaged line never passes for a record."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm.store import CorruptRecord
from detslurm.store.frame import decode_json, frame, unframe

KEYS = st.text() | st.sampled_from(["$float", "$$", "t", "null"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("$float"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
RECORDS = st.dictionaries(KEYS, VALUES, max_size=5)


def same(one: Any, other: Any) -> bool:
    """Equality with the same types, in which NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@given(RECORDS)
def test_what_was_recorded_is_what_is_read(record: dict[str, Any]) -> None:
    """NaN, infinities, big integers, odd keys and any text come back as they were."""
    line = frame(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert same(unframe(line[:-1]), record)


@given(RECORDS, st.data())
def test_one_changed_byte_is_noticed(record: dict[str, Any], data: st.DataObject) -> None:
    """A line with any byte changed is refused."""
    line = bytearray(frame(record)[:-1])
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecord):
        unframe(bytes(line))


@given(st.binary(max_size=60))
def test_noise_is_no_record(noise: bytes) -> None:
    """Arbitrary bytes give CorruptRecord and nothing else."""
    with pytest.raises(CorruptRecord):
        unframe(noise)


class _Scalar:
    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value


def test_arrays_and_scalars_of_numpys_kind_become_plain() -> None:
    """What offers `tolist` is recorded by its plain value, NaN included."""
    record = {"loss": _Scalar(math.nan), "row": _Scalar([1.0, math.inf]), "n": _Scalar(3)}
    assert same(unframe(frame(record)[:-1]), {"loss": math.nan, "row": [1.0, math.inf], "n": 3})


def test_broken_text_is_kept_readable() -> None:
    """A file name that is no UTF-8 does not stop a record."""
    assert unframe(frame({"name": "a\udcffb"})[:-1]) == {"name": "a\\udcffb"}


def test_what_cannot_be_recorded_is_named() -> None:
    """The error shows the value."""
    with pytest.raises(TypeError, match="object"):
        frame({"x": object()})


def test_a_mark_with_anything_else_is_no_number() -> None:
    """Of a line that somebody else has written."""
    assert math.isnan(decode_json(b'{"$float": []}'))
