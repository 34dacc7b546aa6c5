"""What the benchmarks say of their figures is true: medians, spread, and the last time."""

from __future__ import annotations

from pathlib import Path

from benchmarks.history import keep, last_figures, markdown
from benchmarks.measure import Rounds, interleaved
from benchmarks.quiet import busy_cores, wait_until_quiet
from benchmarks.report import Row, table


def test_ratios_are_taken_within_a_round() -> None:
    costs = iter([2.0, 1.0, 30.0, 10.0, 6.0, 2.0])
    ours, theirs = interleaved(lambda: next(costs), lambda: next(costs), rounds=3)
    row = Row(what="x", ours=1e3 * ours, unit="ms", anchor=1e3 * theirs, most_ratio=2.9)
    assert row.figure == 6000
    assert row.ratio == 3
    assert row.kept is False
    assert (ours - theirs).values == (1, 20, 4)


def test_the_table_shows_the_spread_and_the_last_time(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "benchmarks.jsonl"

    def row(*seconds: float) -> Row:
        return Row(what="read", ours=Rounds(seconds), unit="s", anchor=2.0, peer="json")

    assert last_figures(path) == {}
    keep(path, [row(8.0), Row(what="calls", ours=7, unit="calls")], seconds=60)
    keep(path, [row(4.0)], seconds=60)
    with path.open("a") as lines:
        lines.write('{"time": 1, "rows": [{"name": "read')  # that run was killed
    keep(path, [Row(what="fell", ours=-4.0, unit="s")], seconds=60)
    rows = [
        row(5.0, 6.0, 7.0), Row(what="calls", ours=7, unit="calls"),
        Row(what="fell", ours=-5.0, unit="s"),
    ]  # fmt: skip
    shown = table(rows, last_figures(path))
    _, _, read, calls, fell = shown.splitlines()
    assert [cell.strip() for cell in read.split("|")[1:5]] == [
        "6 [5.5, 6.5] s", "2 s (json)", "3 [2.75, 3.25]", "2 (+50 %)",
    ]  # fmt: skip
    assert calls.split("|")[4].strip() == "7 (=)"
    assert fell.split("|")[4].strip() == "-4 (-25 %)"
    kept = markdown(path)
    assert "| read, s beside json | 6 [4, 8] | 3 [2, 4] |" in kept
    assert "3 runs" in kept and "1 minutes" in kept
    assert "| read, s" not in markdown(path, 1)


def test_a_row_waits_until_the_machine_is_quiet(tmp_path: Path) -> None:
    seen = iter([1.9, 0.4, 0.05])
    assert wait_until_quiet(patience=60, busy=lambda: next(seen)) == 0.05
    assert wait_until_quiet(patience=0, busy=lambda: 1.5) == 1.5
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 0 10 100 0 0 0 0 0 0\n")
    assert busy_cores(0, stat) == 0
