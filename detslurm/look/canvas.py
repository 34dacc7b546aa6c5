"""Curves as characters: braille dots, eight in a cell, or letters where there is no braille."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

# The dots of a braille cell, as Unicode numbers them, by their column and row.
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE: Final = 0x2800

Dot = tuple[int, int]


class TextSpan(NamedTuple):
    """A piece of a line of text; `series` is the number of the curve that it belongs to, None if to
    no curve."""

    text: str
    series: int | None = None


class Canvas:
    """A rectangle of character cells, each of 2x4 dots of braille or a single dot; later drawings
    cover earlier ones."""

    def __init__(self, width: int, height: int, *, braille: bool) -> None:
        self.width, self.height = width, height
        self._across, self._down = (2, 4) if braille else (1, 1)
        self._braille = braille
        self._bits: dict[Dot, int] = {}
        self._owners: dict[Dot, int] = {}
        self._texts: dict[Dot, str] = {}

    @property
    def columns(self) -> int:
        """Its dots in a line."""
        return self.width * self._across

    @property
    def rows(self) -> int:
        """Its lines of dots."""
        return self.height * self._down

    def path(self, dots: Sequence[Dot], series: int) -> None:
        """Draw a curve through dots, from the top left corner; one dot is a point."""
        if len(dots) == 1:
            self._set(dots[0], series)
        for begin, end in pairwise(dots):
            for dot in _between(begin, end):
                self._set(dot, series)

    def text(self, dot: Dot, character: str, series: int) -> None:
        """Put a character into the cell of a dot."""
        cell = self._cell(dot)
        self._texts[cell], self._owners[cell] = character, series

    def text_before(self, dot: Dot, character: str, series: int) -> None:
        """Put a character into the cell of a dot, or beside those that are there already."""
        while self._cell(dot) in self._texts and dot[0] >= self._across:
            dot = dot[0] - self._across, dot[1]
        self.text(dot, character, series)

    def lines(self) -> list[list[TextSpan]]:
        """Its lines from the top; each span is as long as it can be."""
        return [list(self._spans(y)) for y in range(self.height)]

    def _spans(self, y: int) -> Iterator[TextSpan]:
        text, series = "", None
        for x in range(self.width):
            owner = self._owners.get((x, y))
            if owner != series and text:
                yield TextSpan(text, series)
                text = ""
            text, series = text + self._character((x, y)), owner
        yield TextSpan(text, series)

    def _character(self, cell: Dot) -> str:
        if cell in self._texts:
            return self._texts[cell]
        if cell not in self._bits:
            return " "
        return chr(_BRAILLE + self._bits[cell]) if self._braille else letter(self._owners[cell])

    def _set(self, dot: Dot, series: int) -> None:
        cell = self._cell(dot)
        x, y = dot
        self._bits[cell] = self._bits.get(cell, 0) | _DOTS[x % self._across][y % self._down]
        self._owners[cell] = series

    def _cell(self, dot: Dot) -> Dot:
        return dot[0] // self._across, dot[1] // self._down


def letter(series: int) -> str:
    """A curve's letter in a plot and in its legend: a, b, c ..."""
    return chr(ord("a") + series % 26)


def _between(begin: Dot, end: Dot) -> Iterator[Dot]:
    """The dots of a straight line."""
    (x, y), (to_x, to_y) = begin, end
    length = max(abs(to_x - x), abs(to_y - y), 1)
    for n in range(length + 1):
        yield x + round(n * (to_x - x) / length), y + round(n * (to_y - y) / length)
