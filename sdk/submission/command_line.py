"""The configuration that stands for a command line. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from detslurm.sdk.parts import ConfigErrors, parse, sweep

DEFAULT_METRIC = "loss"
_NEEDS_SHELL = re.compile(r"[\s|&;<>()$`*?]")
_RANGE = re.compile(r"(log|int|double):([^:,]+):([^:,]+)")
_LIKE_RANGE = re.compile(r"(?:log|int|double):")
# YAML would take subject 001 for the number 1.
_ZEROS = re.compile(r"(?<![^\s,\[])-?0\d+(?=\s*(?:[,\]]|$))")
_MULTIRUN = ("-m", "--multirun")
_COUNTED = ("random", "async_halving", "adaptive_asha", "optuna")
_OURS = frozenset(["--grid", "--random", "--print-config", "--no-follow", "--pool", "--trials"])
_FORMS = "log:LOW:HIGH, int:LOW:HIGH, double:LOW:HIGH, or choices A,B,C"

Space = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Command:
    """A command without the values that a search gives it, and messages about these."""

    entrypoint: str | list[str]
    messages: tuple[str, ...] = ()


# -- spaces --------------------------------------------------------------------------------------


def grid_space(texts: Iterable[str]) -> Space:
    """Return the hyperparameters of `NAME=A,B,C` texts. Raises `ValueError`."""
    named = dict(_named(texts))
    for name, spec in named.items():
        if _LIKE_RANGE.match(spec):
            raise ValueError(
                f"{name}={spec}: a grid takes values A,B,C; --random draws from ranges"
            )
    return {name: _choices(spec) for name, spec in named.items()}


def random_space(texts: Iterable[str]) -> Space:
    """Return the hyperparameters of `NAME=SPEC` texts. Raises `ValueError`."""
    return {name: _range_or_choices(name, spec) for name, spec in _named(texts)}


def _named(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    seen = set()
    for text in texts:
        name, equals, spec = text.partition("=")
        name = name.strip().removeprefix("--")
        if not equals or not name or not spec.strip():
            raise ValueError(f"{text!r} is not of the form NAME=VALUES")
        if name in seen:
            raise ValueError(f"{name} is given twice")
        seen.add(name)
        yield name, spec.strip()


def _choices(spec: str) -> dict[str, Any]:
    text = spec if set("'\"") & set(spec) else _ZEROS.sub(r"'\g<0>'", spec)
    try:
        values = parse(f"[{text}]", spec).plain()
    except ConfigErrors:
        raise ValueError(f"{spec!r} is not a list of YAML values: A,B,C") from None
    return {"type": "categorical", "vals": values}


def _range_or_choices(name: str, spec: str) -> dict[str, Any]:
    found = _RANGE.fullmatch(spec)
    if found is None:
        if _LIKE_RANGE.match(spec) or (":" in spec and "," not in spec):
            raise ValueError(f"{name}={spec}: {_FORMS} are expected")
        return _choices(spec)
    kind, low, high = found.groups()
    try:
        if kind == "int":
            return {"type": kind, "minval": int(low), "maxval": int(high)}
        bounds = [float(low), float(high)]
        if kind == "log":
            bounds = [math.log10(bound) for bound in bounds]
    except ValueError:
        raise ValueError(
            f"{name}={spec}: {_FORMS} are expected; log takes values above 0"
        ) from None
    base = {"base": 10} if kind == "log" else {}
    return {"type": kind, **base, "minval": bounds[0], "maxval": bounds[1]}


# -- commands ------------------------------------------------------------------------------------


def entrypoint_of(words: Sequence[str]) -> str | list[str]:
    """Return the words of a command; a single word that only a shell can run is text for it."""
    return words[0] if len(words) == 1 and _NEEDS_SHELL.search(words[0]) else list(words)


def without_flags(words: Sequence[str], names: Iterable[str]) -> Command:
    """Return the command without the flags that a search gives to each trial. Raises `ValueError`
    for a text for a shell that has such a flag."""
    entrypoint, messages = entrypoint_of(words), _misplaced(words)
    for name in names:
        if isinstance(entrypoint, str):
            if found := re.search(rf"(?<!\S)--{re.escape(name)}(?:[= ]\S*)?", entrypoint):
                raise ValueError(f"the command has {found[0]} already: leave it out of the text")
            continue
        entrypoint, left_out = _without_flag(entrypoint, name)
        if left_out:
            messages.append(f"{' '.join(left_out)} is left out: each trial gets its own {name}")
    return Command(entrypoint, tuple(messages))


def _misplaced(words: Sequence[str]) -> list[str]:
    found = [word for word in words[1:] if word.partition("=")[0] in _OURS]
    if not found:
        return []
    return [f"{words[0]} gets {' '.join(found)}: options of detslurm stand before the command"]


def _without_flag(words: list[str], name: str) -> tuple[list[str], list[str]]:
    flags = {f"--{name}", f"--{name.replace('_', '-')}", f"--{name.replace('-', '_')}"}
    kept: list[str] = []
    left_out: list[str] = []
    at = 0
    while at < len(words):
        flag, equals, _ = words[at].partition("=")
        # The next word is the flag's value, unless it is a flag itself; -1 is a value.
        has_value = not equals and at + 1 < len(words) and not re.match("-[^.0-9]", words[at + 1])
        count = (2 if has_value else 1) if flag in flags else 0
        left_out += words[at : at + count]
        kept += words[at : at + (0 if count else 1)]
        at += max(count, 1)
    return kept, left_out


def hydra_command(words: Sequence[str]) -> tuple[Command, Space]:
    """Return a Hydra command without its sweeps, and these as choices. Raises `ValueError`."""
    start = _after_program(words)
    kept, space, fixed = list(words[:start]), Space(), []
    for word in words[start:]:
        key, equals, text = word.partition("=")
        is_override = bool(equals) and not word.startswith("-")
        if is_override and (values := sweep(key, text)) is not None:
            space[key] = {"type": "categorical", "vals": values}
        elif is_override:
            fixed.append(word)
        elif word not in _MULTIRUN:
            kept.append(word)
    left_out = [word for word in fixed if word.partition("=")[0] in space]
    messages = _misplaced(words)
    messages += [f"{word} is left out: each run gets its own" for word in left_out]
    kept += [word for word in fixed if word not in left_out]
    return Command(kept, tuple(messages)), space


def _after_program(words: Sequence[str]) -> int:
    for index, word in enumerate(words):
        if word.endswith(".py"):
            return index + 1
    return words.index("-m") + 2 if "-m" in words[:-1] else 1


# -- configurations ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search."""

    name: str | None = None
    metric: str | None = None
    maximize: bool = False
    trials: int | None = None
    time_metric: str | None = None
    max_time: int | None = None


def searcher_section(search: SearchOptions, default: str) -> dict[str, Any]:
    """Return the section `searcher`. Raises `ValueError` where a search lacks its metric."""
    name = search.name or default
    if search.metric is None and name not in ("single", "grid", "random"):
        raise ValueError(f"--search {name} compares trials: name their metric with --metric")
    if search.trials is None and name in _COUNTED:
        raise ValueError("a search that draws values needs their number: add --trials N")
    if search.trials is not None and name in ("single", "grid"):
        raise ValueError("--trials counts drawn trials: give values with --random NAME=SPEC")
    section = {
        "name": name,
        "metric": search.metric or DEFAULT_METRIC,
        "smaller_is_better": not search.maximize,
        "max_trials": search.trials,
        "time_metric": search.time_metric,
        "max_time": search.max_time,
    }
    return {key: value for key, value in section.items() if value is not None}


def name_of(entrypoint: str | Sequence[str]) -> str:
    """Return a name for the experiment: that of the script, else that of the program."""
    words = entrypoint.split() if isinstance(entrypoint, str) else entrypoint
    scripts = [word for word in words if re.search(r"\w\.(?:py|sh)$", word)]
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    return PurePosixPath((scripts or module or list(words))[0]).name[:80]
