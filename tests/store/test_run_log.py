"""A run's log: nothing is lost to a full disk, and a torn tail costs only itself."""

from __future__ import annotations

import errno
from pathlib import Path
from zlib import crc32

import pytest

from detslurm.store import RunLog, StoreFault, StoreFull, fs, read_records
from detslurm.store.errors import CorruptRecord, Problem
from detslurm.store.frame import frame, unframe_all
from detslurm.store.run_log import BLOCK_BYTES, LARGEST_LINE, lines_of
from tests.store import scenes
from tests.store.faults import FULL_DISK, failing

RECORDS = [scenes.metrics(step, loss=1 / step) for step in range(1, 8)]


def _written(path: Path) -> list[dict[str, object]]:
    content = read_records(path)
    assert not content.problems
    return content.records


def test_records_are_buffered_until_they_are_flushed(place: Path) -> None:
    """Appending touches no file; flushing shows the records to readers."""
    log = RunLog.open(place / "log")
    log.append(RECORDS[0])
    assert log.pending
    assert _written(place / "log") == []
    log.flush()
    assert log.pending == 0
    assert _written(place / "log") == RECORDS[:1]
    log.close()
    log.close()


def test_closing_writes_what_is_pending(place: Path) -> None:
    """Nothing that was appended before the end is forgotten."""
    with RunLog.open(place / "log") as log:
        for record in RECORDS:
            log.append(record)
    assert _written(place / "log") == RECORDS


def test_a_caller_that_never_flushes_keeps_its_memory(place: Path) -> None:
    """A large buffer is written by itself."""
    with RunLog.open(place / "log") as log:
        for _ in range(3000):
            log.append({"t": "status", "text": "x" * 1000})
            assert log.pending < 2_000_000
        assert len(read_records(place / "log").records) > 1000


def test_a_refused_record_leaves_the_log_usable(place: Path) -> None:
    """What cannot be encoded is the caller's error and not in the log."""
    with RunLog.open(place / "log") as log:
        with pytest.raises(TypeError):
            log.append({"t": "status", "text": object()})
        with pytest.raises(ValueError, match="too long"):  # nothing after it would be read
            log.append({"t": "status", "text": "x" * LARGEST_LINE})
        log.append(RECORDS[0])
    assert _written(place / "log") == RECORDS[:1]


@pytest.mark.parametrize("code", FULL_DISK)
@pytest.mark.parametrize("part", [-1, 0, 1, 20, 70])
def test_a_full_disk_loses_nothing_once_there_is_space_again(
    place: Path, code: int, part: int
) -> None:
    """Whatever part of the data the disk took before: later everything is there, untorn."""
    log = RunLog.open(place / "log")
    log.commit(RECORDS[0])
    for record in RECORDS[1:3]:
        log.append(record)
    with failing("pwrite", code, times=3, part=part):
        for _ in range(2):
            with pytest.raises(StoreFull, match="log"):
                log.flush()
        assert log.pending
        log.append(RECORDS[3])
    log.commit(RECORDS[4])
    log.close()
    assert _written(place / "log") == RECORDS[:5]


@pytest.mark.parametrize("code", [*FULL_DISK, errno.EIO])
def test_an_fsync_that_fails_is_made_good(place: Path, code: int) -> None:
    """After a failed fsync everything unsure is written again at its place, not after it."""
    with RunLog.open(place / "log") as log:
        log.commit(RECORDS[0])
        log.append(RECORDS[1])
        log.flush()
        with failing("fsync", code), pytest.raises(StoreFault):
            log.commit(RECORDS[2])
        (place / "log").write_bytes(frame(RECORDS[0]))  # the cache lost what it had not written
        log.commit(RECORDS[3])
    assert _written(place / "log") == RECORDS[:4]


def test_appending_never_raises_for_want_of_space(place: Path) -> None:
    """Training goes on: the records wait, and the disk is not asked for each of them."""
    with RunLog.open(place / "log") as log:
        with failing("pwrite", errno.ENOSPC, times=10**6) as calls:
            for _ in range(5000):
                log.append({"t": "status", "text": "x" * 1000})
            assert 0 < calls.call_count < 10
        log.flush()
    assert len(_written(place / "log")) == 5000


def test_closing_on_a_full_disk_can_be_tried_again(place: Path) -> None:
    """The error surfaces, and what is pending waits for the next attempt."""
    log = RunLog.open(place / "log")
    log.append(RECORDS[0])
    with failing("pwrite", errno.ENOSPC), pytest.raises(StoreFull):
        log.close()
    log.close()
    assert _written(place / "log") == RECORDS[:1]


def test_a_stale_handle_is_replaced(place: Path) -> None:
    """ESTALE while writing: the file is opened again by name and nothing is lost."""
    with RunLog.open(place / "log") as log:
        log.commit(RECORDS[0])
        log.append(RECORDS[1])
        log.flush()
        log.append(RECORDS[2])
        with failing("pwrite", errno.ESTALE):
            log.flush()
    assert _written(place / "log") == RECORDS[:3]


def test_a_log_cut_at_any_byte_gives_the_whole_records_before(place: Path) -> None:
    """However much of it reached the disk, each whole record is read, and the tear is reported."""
    lines = [frame(record) for record in RECORDS]
    data = b"".join(lines)
    ends = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
    for size in range(len(data) + 1):
        (place / "log").write_bytes(data[:size])
        fs.refresh(place)
        whole = max(n for n, end in enumerate(ends) if end <= size)
        content = read_records(place / "log")
        assert content.records == RECORDS[:whole]
        assert content.bytes_seen == ends[whole]
        assert [p.reason for p in content.problems] == ["torn tail"] * (size not in ends)


def test_after_a_tear_at_any_byte_the_next_record_is_read(place: Path) -> None:
    """A log that is opened again goes on in a fresh line; at most the torn record is lost."""
    first, torn, last = RECORDS[:3]
    for size in range(len(frame(torn)) + 1):
        (place / "log").write_bytes(frame(first) + frame(torn)[:size])
        with RunLog.open(place / "log") as log:
            log.commit(last)
        records = read_records(place / "log").records
        whole = size >= len(frame(torn)) - 1  # only the newline was missing
        assert records == [first, *([torn] if whole else []), last]


def test_a_limit_hides_what_came_later(place: Path) -> None:
    """Records past the limit, and one that the limit cuts, do not exist; that is no problem."""
    with RunLog.open(place / "log") as log:
        for record in RECORDS:
            log.commit(record)
    size = len(frame(RECORDS[0]))
    assert read_records(place / "log", limit=size).records == RECORDS[:1]
    half = read_records(place / "log", limit=size + 5)
    assert half.records == RECORDS[:1]
    assert not half.problems


@pytest.mark.parametrize("limited", [False, True])
def test_a_log_is_the_same_in_pieces_of_any_size(
    place: Path, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    """Lines, their places and the torn tail, wherever a piece ends or the limit cuts."""
    data = b"".join(map(frame, RECORDS[:2])) + b"\n" + frame(RECORDS[2])[:-4]
    (place / "log").write_bytes(data)
    fs.refresh(place)
    lines = [data[:-1].split(b"\n")[n] for n in range(2)]
    wanted = [(0, lines[0]), (len(lines[0]) + 1, lines[1])]
    torn = data.rindex(b"\n") + 1
    for size in range(1, len(data) + 2):
        monkeypatch.setattr(fs, "PIECE", size)
        for limit in range(len(data) + 2) if limited else [None]:
            problems: list[Problem] = []
            end = len(data) if limit is None else limit
            found = list(lines_of(str(place / "log"), limit, 0, problems))
            assert found == [(at, line) for at, line in wanted if at + len(line) < end]
            assert [p.offset for p in problems] == ([torn] if end >= len(data) else [])


def test_reading_goes_on_where_it_stopped(place: Path) -> None:
    """A follower reads only what is new."""
    with RunLog.open(place / "log") as log:
        log.append(RECORDS[0])
        log.flush()
        seen = read_records(place / "log").bytes_seen
        log.append(RECORDS[1])
        log.flush()
        assert read_records(place / "log", start=seen).records == RECORDS[1:2]


def test_records_that_wait_together_share_a_line_and_its_checksum(place: Path) -> None:
    """A flush ends a line; one record alone stands as it always did."""
    with RunLog.open(place / "log") as log:
        for record in RECORDS[:3]:
            log.append(record)
        log.flush()
        log.commit(RECORDS[3])
    several, alone = (place / "log").read_bytes().splitlines(keepends=True)
    assert unframe_all(several[:-1]) == RECORDS[:3]
    assert alone == frame(RECORDS[3])
    assert _written(place / "log") == RECORDS[:4]


def test_a_line_stays_small(place: Path) -> None:
    """So that little is lost where a crash tears it."""
    with RunLog.open(place / "log") as log:
        for step in range(5000):
            log.append(scenes.metrics(step, loss=1.0))
    lines = (place / "log").read_bytes().splitlines()
    assert 10 < len(lines) < 100
    assert max(map(len, lines)) < 2 * BLOCK_BYTES
    assert len(_written(place / "log")) == 5000


def test_a_block_cut_at_any_byte_leaves_the_lines_before(place: Path) -> None:
    """A block is there as a whole or not at all, and the next writer starts a fresh line."""
    first, *several = RECORDS[:4]
    with RunLog.open(place / "log") as log:
        log.commit(first)
        for record in several:
            log.append(record)
    data = (place / "log").read_bytes()
    for size in range(len(frame(first)), len(data)):
        (place / "log").write_bytes(data[:size])
        fs.refresh(place)
        content = read_records(place / "log")
        assert content.records == [first]
        assert content.bytes_seen == len(frame(first))
        with RunLog.open(place / "log") as log:
            log.commit(RECORDS[5])
        whole = several if size == len(data) - 1 else []
        assert read_records(place / "log").records == [first, *whole, RECORDS[5]]


@pytest.mark.parametrize("text", [b"[]", b"[1]", b'[{"t":"status"},2]', b"3"])
def test_a_line_of_anything_else_is_no_record(text: bytes) -> None:
    """A sound checksum does not make it one."""
    line = b"%08x %b" % (crc32(text), text)
    if text == b"[]":
        assert unframe_all(line) == []
        return
    with pytest.raises(CorruptRecord):
        unframe_all(line)


def test_damage_in_the_middle_costs_one_record(place: Path) -> None:
    """Noise, zeros of a lost page and foreign lines are reported and skipped."""
    lines = [frame(record) for record in RECORDS[:3]]
    for damage in (b"\0" * 40, b"hello", lines[1][:-9] + b"?" * 8, b"00000000 "):
        (place / "log").write_bytes(lines[0] + damage + b"\n" + lines[2])
        fs.refresh(place)
        content = read_records(place / "log")
        assert content.records == [RECORDS[0], RECORDS[2]]
        assert [problem.offset for problem in content.problems] == [len(lines[0])]


def test_a_missing_log_is_empty(place: Path) -> None:
    """A run whose chief wrote nothing has no records."""
    assert read_records(place / "nothing") == ([], 0, [])
