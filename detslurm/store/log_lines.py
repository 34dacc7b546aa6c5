"""Lines of a run's log for readers of many of them: typed, and decoded only as far as they need it.
A line holds one record, or a block of records (`frame`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from sys import intern
from typing import Any, Final, NamedTuple, cast

import msgspec

from detslurm.store.curve import TRAINING, VALIDATION, MetricRow
from detslurm.store.errors import CorruptRecord
from detslurm.store.frame import checked, decode_record, has_mark, restored
from detslurm.store.run_records import MOST_STEPS, well_formed

_BLOCK: Final = b"["
_Rows = Callable[[bytes], list[MetricRow]]
_OTHER: Final = {"training": b'"validation"', "validation": b'"training"'}


class _Head(msgspec.Struct, gc=False):
    t: str = ""
    steps: int | None = None
    group: str = VALIDATION
    time: float | None = None


_head = msgspec.json.Decoder(_Head).decode
_heads = msgspec.json.Decoder(list[_Head]).decode
_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _NamedRow(MetricRow, gc=False, frozen=True):
    group: str


class _NoRow(msgspec.Struct, tag_field="t", tag=True):
    """No record has this type. Where there is a choice, msgspec wants records to have a type."""


_rows = cast(_Rows, msgspec.json.Decoder(list[MetricRow | _NoRow]).decode)
_named = cast(_Rows, msgspec.json.Decoder(list[_NamedRow | _NoRow]).decode)


class LineFacts(NamedTuple):
    """The parts of a line that folds need."""

    training: Sequence[int] = ()  # the steps of training metrics: nothing else is needed of them
    other: Sequence[int] = ()  # those of other metrics of which nothing else is needed
    records: Sequence[dict[str, Any]] = ()  # all other records
    malformed: bool = False  # whether there are more, which lack what folds rely on
    # When the last record was made, in seconds since 1970; None where it is unknown.
    time: float | None = None


def line_facts(line: bytes) -> LineFacts:
    """The parts of a line that folds need, or CorruptRecord."""
    raw = checked(line)
    is_block = raw[:1] == _BLOCK
    time = None
    try:
        heads = _heads(raw) if is_block else [_head(raw)]
        time = heads[-1].time if heads else None
    except msgspec.DecodeError:  # a line of another shape
        heads = list(map(_head_of, _split(raw)))
    found = list(map(_needed_alone, heads))
    steps = [(h.group, s) for h, s in zip(heads, found, strict=True) if s is not None]
    training = [step for group, step in steps if group == TRAINING]
    other = [step for group, step in steps if group != TRAINING]
    if len(steps) == len(found):
        return LineFacts(training, other, time=time)
    rest = (part for part, step in zip(_split(raw), found, strict=True) if step is None)
    records = list(map(decode_record, rest))
    sound = list(filter(well_formed, records))
    return LineFacts(training, other, sound, len(sound) < len(records), time)


def _head_of(raw: bytes) -> _Head:
    try:
        return _head(raw)
    except msgspec.DecodeError:
        return _Head()  # decoding all of it decides


def _needed_alone(head: _Head) -> int | None:
    """The step of metrics outside validations: folds need nothing else of the record."""
    alone = head.t == "metrics" and head.group != VALIDATION
    return head.steps if alone and abs(head.steps or 0) <= MOST_STEPS else None


def _split(raw: bytes) -> list[bytes]:
    """The JSON of each record of a line."""
    if raw[:1] != _BLOCK:
        return [raw]
    try:
        return list(map(bytes, _parts(raw)))
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"not JSON: {error}") from None


def line_rows(line: bytes, run: int = 1, group: str | None = None) -> list[MetricRow]:
    """The metrics in a line of a run's log, of all groups or of one, or CorruptRecord; other
    records are left out."""
    raw = checked(line)
    try:
        rows = _rows_of(raw if raw[:1] == _BLOCK else b"[%b]" % raw, group)
        if has_mark(raw):
            rows = list(map(_restored, rows))
    except RecursionError:
        raise CorruptRecord("it is nested too deeply") from None
    if run != 1:  # each was made here: no reader has seen it with another number
        for row in rows:
            msgspec.structs.force_setattr(row, "run", run)
    return rows


def _rows_of(block: bytes, group: str | None) -> list[MetricRow]:
    with suppress(msgspec.DecodeError):
        rows = _rows(block)
        # Most blocks are of one group, which takes no line of Python for each record.
        if group is None or (group in _OTHER and _OTHER[group] not in block):
            return rows
        return _of_group(rows, group)
    with suppress(msgspec.DecodeError):
        return _of_group(_named_rows(block), group)
    rows = []  # other records are among them
    for part in _split(block):
        with suppress(msgspec.DecodeError):
            rows += _named_rows(b"[%b]" % part)
    return _of_group(rows, group)


def _named_rows(block: bytes) -> list[MetricRow]:
    """Rows of groups that a user has named, too."""
    return [
        MetricRow(intern(row.group), row.steps, row.metrics, row.run, row.time, row.batch, row.rank)
        for row in _named(block)
    ]


def _of_group(rows: list[MetricRow], group: str | None) -> list[MetricRow]:
    return rows if group is None else [row for row in rows if row.group == group]


def _restored(row: MetricRow) -> MetricRow:
    return msgspec.structs.replace(row, metrics=restored(row.metrics), batch=restored(row.batch))
