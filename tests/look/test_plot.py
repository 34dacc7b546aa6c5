"""Curves as text: every cell is where it belongs."""

from __future__ import annotations

import math

import pytest

from detslurm.look.axes import Scale, tick_labels
from detslurm.look.canvas import TextSpan
from detslurm.look.plot import Line, PlotFormat, draw, progress_bar, sparkline
from detslurm.look.trial_curves import legend
from detslurm.store import TrialRow, ValidationView


def text(rows: list[list[TextSpan]]) -> list[str]:
    return ["".join(span.text for span in row).rstrip() for row in rows]


def test_a_plot_in_ascii() -> None:
    """Axes with round numbers; the first curve covers the others; each is drawn by its letter."""
    rising = Line(range(11), [n / 10 for n in range(11)])
    falling = Line(range(11), [1 - n / 10 for n in range(11)])
    assert text(draw([rising, falling], PlotFormat(40, 9, braille=False))) == [
        "1.0 +bb                               aa",
        "    |  bbbbbbb                 aaaaaaa",
        "    |         bbbbbbb   aaaaaaa",
        "0.5 +                aaa",
        "    |         aaaaaaa   bbbbbbb",
        "    |  aaaaaaa                 bbbbbbb",
        "  0 +aa                               bb",
        "    ++----------------+----------------+",
        "     0                5               10",
    ]


def test_peaks_are_kept_however_many_points_there_are() -> None:
    """A single spike among 100,000 points reaches the top of the plot."""
    values = [0.0] * 100_000
    values[50_000] = 1.0
    rows = text(draw([Line(range(100_000), values)], PlotFormat(40, 12)))
    assert [row[5:].strip() for row in rows[:9]] == ["⢸"] * 5 + ["⣿"] * 4


def test_gaps_stay_gaps() -> None:
    """NaN and infinities break a curve and never stretch the axes."""
    values = [1.0, 1.0, math.nan, math.inf, 2.0, 2.0]
    rows = text(draw([Line([0, 10, 20, 30, 90, 100], values)], PlotFormat(50, 10, braille=False)))
    assert rows[0].endswith("aaaaa")
    assert all("a" not in row for row in rows[1:7]), "no line joins the two parts"
    assert "aaaaa" in rows[7] and "inf" not in "".join(rows)
    assert draw([Line([1], [math.nan])], PlotFormat()) == []
    assert draw([], PlotFormat()) == []


def test_a_logarithmic_axis_shows_what_is_positive() -> None:
    rows = text(draw([Line([1, 2, 3, 4], [1000.0, 10.0, 0.0, 0.1])], PlotFormat(40, 12, log=True)))
    labels = [row.partition("┤")[0].strip() for row in rows if "┤" in row]
    assert labels == ["1e+03", "10", "0.1"]
    assert draw([Line([1, 2], [-1.0, 0.0])], PlotFormat(log=True)) == []


def test_a_resumed_trial_is_marked_where_it_went_on() -> None:
    line = Line(range(11), [float(10 - n) for n in range(11)], marks=[5])
    assert sum(row.count("◆") for row in text(draw([line], PlotFormat(60, 12)))) == 1
    rows = text(draw([line], PlotFormat(60, 12, braille=False)))
    (marked,) = [row for row in rows if "^" in row]
    assert abs(marked.index("^") - 32) <= 2, "in the middle"


@pytest.mark.parametrize("width", [40, 41, 57, 80, 200])
@pytest.mark.parametrize("braille", [True, False])
def test_no_line_is_wider_than_asked_for(width: int, braille: bool) -> None:
    lines = [Line([10**n for n in range(8)], [-(3.0**n) for n in range(8)]), Line([5e6], [1e9])]
    for form in (PlotFormat(width, 6, braille=braille), PlotFormat(width, 30, braille=braille)):
        rows = text(draw(lines, form))
        assert len(rows) == form.height
        assert max(map(len, rows)) <= width
        assert any("a" in row for row in rows)
    assert braille or "".join(map(str, text(draw(lines, form)))).isascii()


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 6000, ["0", "2000", "4000", "6000"]),
        (0, 60_000, ["0", "20k", "40k", "60k"]),
        (0, 1_000_000, ["0", "0.5M", "1.0M"]),
        (0.91, 0.97, ["0.92", "0.94", "0.96"]),
        (-1.5, 1.5, ["-1", "0", "1"]),
        (1e-6, 5e-6, [f"{n}e-06" for n in range(1, 6)]),
        (2.0, 3.0, ["2.0", "2.5", "3.0"]),
        (1e-4, 1.004e-4, ["0.0001", "0.0001002", "0.0001004"]),
        (2.5e-5, 2.5001e-5, ["2.5e-05", "2.50005e-05", "2.5001e-05"]),
        (1.7e15, 1.7e15 + 1e4, ["1.7e+15", "1.700000000005e+15", "1.70000000001e+15"]),
        (1.7e9, 1.7e9 + 10, ["1.700000000G", "1.700000005G", "1.700000010G"]),
        (0.25, 0.2500001, ["0.25000000", "0.25000005", "0.25000010"]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, labels: list[str]) -> None:
    assert tick_labels(Scale(low, high).ticks(3)) == labels


def test_scales_of_every_size() -> None:
    """One value, the largest ones, and none."""
    one = Scale.over([5.0])
    assert one is not None and 0.4 < one.share(5.0) < 0.6
    huge = Scale.over([-1e300, 1e300])
    assert huge is not None and huge.share(0) == pytest.approx(0.5)
    assert len(huge.ticks(3)) >= 2
    assert Scale.over([math.nan, math.inf, 1e301]) is None
    log = Scale.over([1e-3, 1e3], log=True)
    assert log is not None and log.share(1.0) == pytest.approx(0.5)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("value", [1e-299, 1e-5, 1000.0, 1e16, 1e300])
def test_values_that_hardly_differ(value: float, log: bool) -> None:
    """A constant that was computed, at either end of what an axis can show."""
    for values in ([value, value], [value, math.nextafter(value, 0)], [value, 1e-299]):
        axis = Scale.over(values, log=log)
        assert axis is not None
        assert all(0 <= axis.share(one) <= 1 for one in values)
        assert all(math.isfinite(tick) for tick in axis.ticks(4))
        assert len(tick_labels(axis.ticks(4))) == len(axis.ticks(4))


def test_sparklines_and_bars() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, math.nan, 1.0]) == "█ ▁"
    assert len(sparkline(list(range(1000)), width=20)) == 20
    assert sparkline([]) == sparkline([math.nan]) == ""
    assert [progress_bar(share, 4) for share in (0, 0.5, 1, 7)] == ["····", "██··", "████", "████"]


def test_a_legend_has_the_last_value_and_the_best_one() -> None:
    """`plot` and `top` have the same: what the trials have in common is left out."""
    best = ValidationView(steps=2, value=0.25, metrics={"loss": 0.25})
    first, second = {"lr": 0.1, "seed": 7, "net": [8]}, {"lr": 0.2, "seed": 7, "net": [8, 9]}
    rows = [
        TrialRow(id=1, experiment_id=1, state="RUNNING", hparams=first),
        TrialRow(id=2, experiment_id=1, state="ERROR", hparams=second, best_validation=best),
    ]
    lines = [Line([1, 2], [0.5, math.nan], []), Line([1, 2, 3], [0.5, 0.25, 0.75], [])]
    assert legend(rows, lines, searched=True) == [
        "trial 1  RUNNING  0.5 @ 1  lr=0.1, net=[8]",
        "trial 2  ERROR  0.75 @ 3, best 0.25 @ 2  lr=0.2, net=[8,9]",
    ]
    assert legend(rows[1:], lines[1:], searched=False) == [
        "trial 2  ERROR  0.75 @ 3  lr=0.2, seed=7, net=[8,9]"
    ]
