"""Changes of queued jobs as they are written on a command line: `4711.priority=10`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from detslurm.slurm.priority import FIRST, LAST

Value = int | float | str | None
_ARRAY = re.compile(r"(\d{1,15})(?:_\[[\d,%-]+\])?")
_ELEMENT = re.compile(r"(\d{1,15})_\d+")
_WRITTEN = re.compile(r"([^.=]+)\.([\w-]+)=(.*)", re.DOTALL)
_WORD = re.compile(r"[\w.,:@+-]+")


@dataclass(frozen=True, slots=True)
class JobChange:
    """One change of one job.

    Attributes:
        job_id: The id of the job, or of the array whose waiting elements are meant.
        name: The setting to change, such as "priority" or "ahead-of".
        value: Its new value; for "max-slots" None is no limit.
    """

    job_id: str
    name: str
    value: Value

    @property
    def anchor(self) -> str | None:
        """The job that this job is to be put ahead of or behind; None for other changes."""
        return str(self.value) if self.name in ("ahead-of", "behind-of") else None


def job_number(text: str) -> str:
    """The id of a job or an array, also as a list shows it: `4711_[3-9]`. Raises ValueError."""
    if match := _ARRAY.fullmatch(text.strip()):
        return str(int(match[1]))
    if match := _ELEMENT.fullmatch(text.strip()):
        raise ValueError(
            f"{text} is one element of an array, whose elements wait as one job: change {match[1]}"
        )
    raise ValueError(f"{text!r} is not the id of a job, such as 4711")


def job_change(job_id: str, name: str, value: str) -> JobChange:
    """The change of one job. Raises ValueError with the fault."""
    name = name.lower().replace("_", "-")
    if name not in _VALUES:
        raise ValueError(f"{name!r} can't be changed of a job; there are {', '.join(_VALUES)}")
    return JobChange(job_number(job_id), name, _VALUES[name](value.strip()))


def parse(texts: Iterable[str]) -> list[JobChange]:
    """The changes written as `ID.NAME=VALUE`. Raises ValueError with all that is wrong in them."""
    found: list[JobChange] = []
    wrong: list[str] = []
    for text in texts:
        try:
            found.append(_parsed(text))
        except ValueError as error:
            wrong.append(f"{text}: {error}")
    wrong += conflicts(found)
    if wrong:
        raise ValueError("\n".join(wrong))
    return found


def _parsed(text: str) -> JobChange:
    match = _WRITTEN.fullmatch(text.strip())
    if not match:
        raise ValueError("a change is written ID.NAME=VALUE, such as 4711.priority=10")
    return job_change(*match.groups())


def conflicts(changes: Iterable[JobChange]) -> list[str]:
    """The conflicts of some changes."""
    seen: dict[tuple[str, str], JobChange] = {}
    wrong = []
    for one in changes:
        other = seen.setdefault((one.job_id, _KINDS.get(one.name, one.name)), one)
        if other is not one:
            both = f"{other.name} and {one.name} are mutually exclusive"
            same = f"{one.name} is given twice"
            wrong.append(f"job {one.job_id}: {same if other.name == one.name else both}")
    return wrong


_KINDS = {"priority": "rank", "weight": "rank", "ahead-of": "order", "behind-of": "order"}


def _priority(text: str) -> int:
    if not text.isdecimal() or not FIRST <= int(text) <= LAST:
        raise ValueError(f"priority is {FIRST} (first) to {LAST} (last), not {text!r}")
    return int(text)


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"weight is a positive number, not {text!r}")
    return weight


def _slots(text: str) -> int | None:
    if text.lower() in ("none", "null"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"max-slots is a whole number from 1, or none, not {text!r}")
    return int(text)


def _name(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"{text!r} is not a name")
    return text


_VALUES: dict[str, Callable[[str], Value]] = {
    "priority": _priority,
    "weight": _weight,
    "resource-pool": _name,
    "qos": _name,
    "max-slots": _slots,
    "ahead-of": job_number,
    "behind-of": job_number,
}
