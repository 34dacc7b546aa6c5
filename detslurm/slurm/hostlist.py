"""Slurm's compressed lists of hosts, tasks and array indices, read without asking scontrol."""

from __future__ import annotations

import re
from collections.abc import Iterable


def expand_hostlist(text: str) -> list[str]:
    """The names in a hostlist such as `n[1-3,07-09],x5`, in order."""
    return [name for part in _split_outside_brackets(text) for name in _expand_brackets(part)]


def hosts_in(text: str) -> tuple[str, ...]:
    """The same, and none where it can't be read."""
    try:
        return tuple(expand_hostlist(text))
    except ValueError:
        return ()


def _split_outside_brackets(text: str) -> list[str]:
    parts: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise ValueError(f"unbalanced brackets in host list {text!r}")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth:
        raise ValueError(f"unbalanced brackets in host list {text!r}")
    return [part for part in (*parts, text[start:]) if part]


def _expand_brackets(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [head]
    inside, _, tail = rest.partition("]")
    tails = _expand_brackets(tail)
    return [head + number + after for number in _expand_numbers(inside) for after in tails]


def _expand_numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for item in text.split(","):
        low, dash, high = item.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"not a range of numbers: {item!r}")
        if dash:
            numbers += [f"{n:0{len(low)}d}" for n in range(int(low), int(high) + 1)]
        else:
            numbers.append(low)
    return numbers


def compress_hostlist(names: Iterable[str]) -> str:
    """`n[1-3],x5` of such names: what `expand_hostlist` takes apart."""
    numbers: dict[tuple[str, int], list[int]] = {}
    for name in names:
        head = name.rstrip("0123456789")
        digits = name[len(head) :]
        numbers.setdefault((head, len(digits)), []).append(int(digits or 0))
    return ",".join(_compressed(*key, found) for key, found in numbers.items())


def _compressed(head: str, digits: int, numbers: list[int]) -> str:
    if not digits:
        return head
    text = re.sub(r"\d+", lambda number: number[0].zfill(digits), compress_indices(numbers))
    return f"{head}[{text}]" if len(numbers) > 1 else f"{head}{text}"


def expand_indices(text: str) -> list[int]:
    """Array indices as squeue shows them: `5`, `[3-9%3]`, `[1,4-8:2]`."""
    inside = text.strip().removeprefix("[").removesuffix("]").partition("%")[0]
    indices: list[int] = []
    for item in filter(None, inside.split(",")):
        span, _, step = item.partition(":")
        low, dash, high = span.partition("-")
        last = int(high) if dash else int(low)
        indices += range(int(low), last + 1, int(step or 1))
    return indices


def compress_indices(indices: Iterable[int]) -> str:
    """`0-3,7` of [0, 1, 2, 3, 7]: what sbatch --array takes."""
    ranges = contiguous_ranges(indices)
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges)


def contiguous_ranges(indices: Iterable[int]) -> list[range]:
    """Indices as ranges without gaps."""
    found: list[range] = []
    for index in sorted(set(indices)):
        if found and index == found[-1].stop:
            found[-1] = range(found[-1].start, index + 1)
        else:
            found.append(range(index, index + 1))
    return found


def counts_by_node(text: str) -> list[int]:
    """[2, 2, 2, 1] of `2(x3),1`: tasks or CPUs of each node; empty for anything else."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []  # of which nodes the others are is unknown, too
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
