"""Curves as text: a plot with axes, and a sparkline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from detslurm.look.axes import Scale, tick_labels
from detslurm.look.canvas import Canvas, Dot, TextSpan, letter

COLORS: Final = ("cyan", "yellow", "magenta", "green", "red", "blue")
"""Of the curves, in turn; each curve has a letter, too, for those who see no colours."""

LEAST_WIDTH: Final = 40
"""The narrowest plot, in cells."""

_BARS: Final = "▁▂▃▄▅▆▇█"


class Line(NamedTuple):
    """A curve: points in ascending order of `xs`, whose NaN and infinite values are gaps, and the
    `marks` where it was resumed."""

    xs: Sequence[float]
    ys: Sequence[float]
    marks: Sequence[float] = ()


@dataclass(frozen=True)
class PlotFormat:
    """How a plot is drawn: its cells in a line and its lines, axes included; whether values stand
    on a logarithmic axis; whether the terminal has braille and box characters."""

    width: int = 80
    height: int = 20
    log: bool = False
    braille: bool = True


def draw(lines: Sequence[Line], form: PlotFormat) -> list[list[TextSpan]]:
    """Draw curves with their axes; no line of text if no curve has a point that the axes can show.

    The first curve covers the others; each ends in its letter.
    """
    y = Scale.over((value for line in lines for value in line.ys), log=form.log)
    x = Scale.over(at for line in lines for at in line.xs)
    if x is None or y is None:
        return []
    height = max(form.height - 2, 2)
    labels = _y_labels(y, height)
    margin = max(map(len, labels.values())) + 1
    canvas = Canvas(max(form.width - margin - 1, 8), height, braille=form.braille)
    for number in reversed(range(len(lines))):
        _draw_line(canvas, lines[number], number, x, y)
    for number in reversed(range(len(lines))):
        _draw_marks(canvas, lines[number], number, x, y, form.braille)
    for number, line in enumerate(lines):
        _draw_letter(canvas, line, number, x, y)
    bar, tick = ("│", "┤") if form.braille else ("|", "+")
    body = [
        [TextSpan(f"{labels.get(n, ''):>{margin - 1}} {tick if n in labels else bar}"), *spans]
        for n, spans in enumerate(canvas.lines())
    ]
    return body + _x_axis(x, canvas.width, margin, form.braille)


def sparkline(values: Sequence[float], width: int = 20) -> str:
    """Values as a line of bars, the last `width` buckets of equal length; gaps are spaces."""
    scale = Scale.over(values)
    if scale is None:
        return ""
    length = max(1, math.ceil(len(values) / width))
    means = (_mean(values[n : n + length]) for n in range(0, len(values), length))
    top = len(_BARS) - 1
    return "".join(" " if mean is None else _BARS[round(top * scale.share(mean))] for mean in means)


def progress_bar(share: float, width: int = 10) -> str:
    """A share from 0 to 1 as a bar."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "·" * (width - full)


def _mean(values: Sequence[float]) -> float | None:
    found = [value for value in values if math.isfinite(value)]
    return math.fsum(value / len(found) for value in found) if found else None


# -- curves ------------------------------------------------------------------------------------


def _draw_line(canvas: Canvas, line: Line, number: int, x: Scale, y: Scale) -> None:
    for piece in _pieces(line, y):
        canvas.path(list(_per_column(canvas, piece, x, y)), number)


def _draw_letter(canvas: Canvas, line: Line, number: int, x: Scale, y: Scale) -> None:
    points = zip(line.xs, line.ys, strict=True)
    if shown := [(at, value) for at, value in points if y.shows(value)]:
        at, value = shown[-1]
        canvas.text_before(_dot(canvas, x.share(at), y.share(value)), letter(number), number)


def _pieces(line: Line, y: Scale) -> Iterator[Sequence[tuple[float, float]]]:
    """The parts of a curve between gaps."""
    points = zip(line.xs, line.ys, strict=True)
    for shown, piece in groupby(points, key=lambda point: y.shows(point[1])):
        if shown:
            yield list(piece)


def _per_column(
    canvas: Canvas, points: Sequence[tuple[float, float]], x: Scale, y: Scale
) -> Iterator[Dot]:
    """At most four dots in a column: the first, the extremes and the last, so that no peak is
    lost however many points there are."""
    dots = (_dot(canvas, x.share(at), y.share(value)) for at, value in points)
    for column, group in groupby(dots, key=lambda dot: dot[0]):
        rows = [row for _, row in group]
        yield column, rows[0]
        if len(rows) > 2:
            yield column, min(rows)
            yield column, max(rows)
        yield column, rows[-1]


def _dot(canvas: Canvas, x: float, y: float) -> Dot:
    return round(x * (canvas.columns - 1)), round((1 - y) * (canvas.rows - 1))


def _draw_marks(canvas: Canvas, line: Line, number: int, x: Scale, y: Scale, braille: bool) -> None:
    for mark in line.marks:
        before = [v for at, v in zip(line.xs, line.ys, strict=True) if at <= mark and y.shows(v)]
        if before:
            dot = _dot(canvas, x.share(max(mark, x.low)), y.share(before[-1]))
            canvas.text(dot, resume_mark(braille), number)


def resume_mark(braille: bool) -> str:
    """The mark on a curve where its trial was resumed."""
    return "◆" if braille else "^"


# -- axes --------------------------------------------------------------------------------------


def _y_labels(y: Scale, height: int) -> dict[int, str]:
    """Line -> label."""
    ticks = y.ticks(max(2, height // 4))
    rows = [round((1 - y.share(tick)) * (height - 1)) for tick in ticks]
    return dict(zip(rows, tick_labels(ticks), strict=True))


def _x_axis(x: Scale, width: int, margin: int, braille: bool) -> list[list[TextSpan]]:
    corner, dash, tick = ("└", "─", "┬") if braille else ("+", "-", "+")
    ticks = x.ticks(max(2, width // 12))
    ticks = [at for at in ticks if float(at).is_integer()] or ticks  # batches are whole
    places = [round(x.share(at) * (width - 1)) for at in ticks]
    axis = "".join(tick if n in places else dash for n in range(width))
    text = ""
    for place, label in zip(places, tick_labels(ticks), strict=True):
        begin = max(0, min(place - len(label) // 2, width - len(label)))
        if begin > len(text) or not text:
            text = text.ljust(begin) + label
    space = " " * margin
    return [[TextSpan(space + corner + axis)], [TextSpan(f"{space} {text}")]]
