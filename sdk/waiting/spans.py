"""Moments and spans of time in sentences: short, in the user's own time zone."""

from __future__ import annotations

import time

_DAY = 86400


def span(seconds: float) -> str:
    """A span of time by its two largest units: `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    return " ".join(f"{n} {unit}" for n, unit in ((hours, "h"), (rest, "min")) if n)


def clock(moment: float, now: float) -> str:
    """When it is: the time of a day, with the date where it is not within half a day of `now`."""
    style = "%H:%M" if abs(moment - now) < _DAY / 2 else "%Y-%m-%d %H:%M"
    return time.strftime(style, time.localtime(moment))


def clock_and_span(moment: float, now: float) -> str:
    """Both: `14:05 (in 2 h 5 min)`, `09:10 (5 min ago)`."""
    away = moment - now
    return f"{clock(moment, now)} ({f'in {span(away)}' if away >= 0 else f'{span(-away)} ago'})"
