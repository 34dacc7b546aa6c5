"""Lines on their way from a rank to the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detslurm.exec.control import Reassembler, defused, log_line, parse_report, report_line
from detslurm.exec.lines import LineSplitter


@given(st.lists(st.binary(max_size=40)), st.integers(1, 7))
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks: list[bytes], size: int) -> None:
    """Any cutting of the stream gives the same lines."""
    data = b"".join(chunks).replace(b"\r", b"")
    whole, pieces = LineSplitter(), LineSplitter()
    expected = [*whole.feed(data), *whole.close()]
    got = [
        line for i in range(0, len(data), size) for line in pieces.feed(data[i : i + size])
    ] + list(pieces.close())
    assert got == expected


def test_a_progress_bar_is_many_lines() -> None:
    """A carriage return ends a line, with or without a newline after it."""
    splitter = LineSplitter()
    assert list(splitter.feed(b"10%\r20%\r\ndone\nrest")) == [b"10%", b"20%", b"done"]
    assert list(splitter.close()) == [b"rest"]


def test_a_line_without_end_does_not_pile_up() -> None:
    """Memory stays bounded."""
    splitter = LineSplitter()
    assert sum(len(line) for line in splitter.feed(b"x" * 200_000)) == 200_000


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=5000)), max_size=6), st.randoms())
def test_long_lines_of_several_nodes_are_put_together_again(
    lines: list[tuple[int, str]], random: object
) -> None:
    """Parts of at most 1 KB, interleaved between nodes at will, give every line whole."""
    lines = [(node, defused(text.replace("\n", " "))) for node, text in lines]
    queues: dict[int, list[bytes]] = {}
    for node, text in lines:
        parts = log_line(node, text).removesuffix(b"\n").split(b"\n")
        assert all(len(part) < 1024 for part in parts)
        queues.setdefault(node, []).extend(parts)
    assembler, got = Reassembler(), []
    while queues:
        node = random.choice(sorted(queues))  # type: ignore[attr-defined]
        line = assembler.line(queues[node].pop(0))
        got += [] if line is None else [line]
        queues = {n: parts for n, parts in queues.items() if parts}
    assert sorted(got) == sorted(
        text.encode("utf-8", "replace").decode("utf-8", "replace") for _, text in lines
    )


def test_a_lost_last_part_does_not_pile_up() -> None:
    """Memory stays bounded in the runner, too."""
    assembler = Reassembler()
    part = log_line(0, "x" * 2000).split(b"\n")[0]
    pieces = [assembler.line(part) for _ in range(5000)]
    assert sum(len(piece) for piece in pieces if piece) > 2_000_000


def test_reports_are_told_from_what_the_code_prints() -> None:
    """A report survives the way; a line of the user's can't pose as one."""
    report = {"event": "ended", "node": 3, "exit_code": 1}
    line = report_line(report).decode().removesuffix("\n")
    assert parse_report(line) == report
    assert parse_report(defused(line)) is None
    assert parse_report("\x1enot json") is None
    assert parse_report("plain text") is None
