"""Lines on their way from a rank to the log."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from detslurm.exec.agent_protocol import Reassembler, log_line, parse_report, report_line, sanitized
from detslurm.exec.line_splitter import LONGEST, LineSplitter


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


@given(st.lists(st.sampled_from(b"ab1 \r\n") | st.just(-1), max_size=40), st.integers(1, 7))
def test_rewritten_lines_do_not_depend_on_it_either(words: list[int], size: int) -> None:
    """Progress bars in one write or in many, with the escapes of nested ones."""
    data = b"".join(b"\x1b[A" if word < 0 else bytes([word]) for word in words)
    whole, pieces = (LineSplitter(clock=lambda: 0.0) for _ in range(2))
    expected = [*whole.feed(data), *whole.close()]
    chunks = (data[i : i + size] for i in range(0, len(data), size))
    assert [line for chunk in chunks for line in pieces.feed(chunk)] + [*pieces.close()] == expected


class Clock:
    """Time as the test likes it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_progress_bar_is_a_line_a_second() -> None:
    """However fast it is rewritten, in either style, and its last state is never lost."""
    for form in (b"\rEpoch 1: %3d%%", b"Epoch 1: %3d%%\r"):
        clock, lines = Clock(), []
        splitter = LineSplitter(clock=clock)
        for percent in range(101):  # ten seconds, ten times a second
            lines += [*splitter.feed(form % percent), *splitter.overdue()]
            clock.now += 0.1
        lines += [*splitter.feed(b"\nnext\n"), *splitter.close()]
        assert 7 <= len(lines) - 2 <= 11
        assert lines[-2:] == [b"Epoch 1: 100%", b"next"]
        assert len(set(lines)) == len(lines)


def test_a_bar_that_rests_shows_its_state() -> None:
    """What stands on the line is said within a second, and once only."""
    clock = Clock()
    splitter = LineSplitter(clock=clock)
    assert not splitter.has_pending()
    assert list(splitter.feed(b"10%\r 20%\r 30%")) == []
    assert splitter.has_pending() and not list(splitter.overdue())
    clock.now = 1.0
    assert list(splitter.overdue()) == [b" 30%"]
    clock.now = 9.0
    assert not splitter.has_pending() and not list(splitter.overdue())
    assert list(splitter.feed(b"\r 40%")) == []
    assert list(splitter.close()) == [b" 40%"]


def test_what_a_bar_leaves_on_the_screen_is_in_the_log() -> None:
    """Windows' line ends, a bar that is wiped, text over it, a line that is no bar."""
    for data, expected in (
        (b"10%\r20%\r\ndone\nrest", [b"20%", b"done", b"rest"]),
        (b"a\r\n\r\nb\r\n", [b"a", b"", b"b"]),
        (b"\r 99%\r100%\r       \r", [b"100%"]),
        (b"99%\r\x1b[2K\rdone\n", [b"99%", b"done"]),
        (b"step 1\rstep 2\rFinished\n", [b"step 2", b"Finished"]),
        (b"\rloss 1.0\rloss 0.5\n", [b"loss 0.5"]),
        (b"a 1\nb 1\n\x1b[2Aa 2\nb 2\n", [b"a 1", b"b 1", b"\x1b[2Aa 2", b"b 2"]),
    ):
        splitter = LineSplitter(clock=lambda: 0.0)
        assert [*splitter.feed(data), *splitter.close()] == expected


def test_bars_that_are_cut_off_move_no_cursor() -> None:
    """What ends on its way up to another bar would hide the lines that others write next."""
    for data in (b"\n\n\rinner: 5%\x1b[A\x1b[A", b"done\n\x1b[A\x1b[A"):
        splitter = LineSplitter()
        assert not [line for line in [*splitter.feed(data), *splitter.close()] if b"\x1b" in line]


def test_nested_bars_of_tqdm() -> None:
    """The inner bar's line feeds and ways up again make no lines; all last states are there."""
    out = io.StringIO()
    bars = {"file": out, "mininterval": 0, "miniters": 1, "ncols": 60}
    for _ in tqdm(range(3), desc="outer", **bars):
        for _ in tqdm(range(100), desc="inner", leave=False, **bars):
            pass
    splitter = LineSplitter(clock=lambda: 0.0)
    lines = [*splitter.feed(out.getvalue().encode()), *splitter.close()]
    assert len(lines) <= 5
    assert b"outer: 100%" in lines[-1]


def test_a_line_without_end_does_not_pile_up() -> None:
    """Memory stays bounded, and no character is cut in two."""
    splitter = LineSplitter()
    text = "é" * 200_001 + "\n" + "x" * 200_000
    lines = [*splitter.feed(b"!" + text.encode()), *splitter.close()]
    assert max(map(len, lines)) <= LONGEST
    assert "".join(line.decode() for line in lines) == "!" + text.replace("\n", "")


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=5000)), max_size=6), st.randoms())
def test_long_lines_of_several_nodes_are_put_together_again(
    lines: list[tuple[int, str]], random: object
) -> None:
    """Parts of at most 1 KB, interleaved between nodes at will, give every line whole."""
    lines = [(node, sanitized(text.replace("\n", " "))) for node, text in lines]
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
    assert parse_report(sanitized(line)) is None
    assert parse_report("\x1enot json") is None
    assert parse_report("plain text") is None


def test_reports_bring_any_text() -> None:
    """Paths are bytes, which may be no text in any encoding."""
    report = {"event": "arrived", "environment": "/tmp/\udcff ü \n \x1e", "slots": 2}
    line, rest = report_line(report).decode().split("\n")
    assert (parse_report(line), rest) == (report, "")
