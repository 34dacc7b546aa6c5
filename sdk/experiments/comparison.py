"""Experiments or trials side by side: configuration, code and results, as far as they differ."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base.display import Displayed, html_head, html_table
from detslurm.config.secret_texts import PROGRAMS, masked_code
from detslurm.sdk.provenance.differences import values_of
from detslurm.storage.files import raise_unless_gone
from detslurm.store import CorruptRecord, flat, open_shown

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.trials.trial import Trial
    from detslurm.store import TrialRow

_LARGEST_DIFF = 1 << 20  # bytes of a file of which lines are compared
_PARTS = {
    "results": "Result",
    "config": "Configuration",
    "environment": "Environment",
    "code": "File",
}
"""The parts of a comparison, each with the title of its first column."""


@dataclass(frozen=True)
class Difference:
    """A value that differs.

    Attributes:
        name: The key of the configuration, the path of the file, or the name of the result.
        values: Each one's value, in the order of the ids; None without a value.
    """

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Experiments or trials side by side, without equal values.

    Attributes:
        ids: The ids of the experiments or trials.
        config: Keys of the configuration, dotted; of trials with their hyperparameters. A secret
            that differs shows as asterisks.
        environment: Versions of code and software, and hardware.
        code: Files of the code but configurations, each with the beginning of its SHA-256 checksum.
        results: States, steps, times and metrics of the best validation.
        diffs: For each text file that differs, by its path: its lines in each further one against
            the first, as a unified diff. Empty unless requested.
    """

    ids: tuple[int, ...]
    config: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    code: tuple[Difference, ...]
    results: tuple[Difference, ...]
    diffs: Mapping[str, str]

    def _facts(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in _PARTS}
        return {
            "ids": self.ids,
            **{name: [row.name for row in rows] for name, rows in parts.items()},
        }

    def _repr_html_(self) -> str:
        tables = (
            html_table(
                [head, *map(str, self.ids)],
                ([row.name, *row.values] for row in getattr(self, name)),
            )
            for name, head in _PARTS.items()
        )
        return html_head("Comparison", {}) + ("".join(tables) or "<p>They don't differ.</p>")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for scripts: each difference as a mapping from ids to values."""
        plain = asdict(self)
        for part in _PARTS:
            rows = getattr(self, part)
            plain[part] = {row.name: _by_id(self.ids, row.values) for row in rows}
        return plain


def _by_id(ids: Sequence[int], values: Sequence[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in zip(ids, values, strict=True)}


def compare_experiments(
    experiments: Sequence[Experiment], *, diff: bool, warn: Callable[[str], None]
) -> Comparison:
    """Experiments side by side."""
    configs = [dict(_config(one)) for one in experiments]
    results = [dict(_experiment_results(one)) for one in experiments]
    ids = [one.id for one in experiments]
    return _comparison(ids, experiments, configs, results, diff, warn)


def compare_trials(
    trials: Sequence[Trial], *, diff: bool, warn: Callable[[str], None]
) -> Comparison:
    """Trials side by side, each with its own hyperparameters."""
    configs = [dict(_trial_config(one)) for one in trials]
    results = [dict(_trial_results(one.row)) for one in trials]
    experiments = [one.experiment for one in trials]
    return _comparison([one.id for one in trials], experiments, configs, results, diff, warn)


def _comparison(
    ids: Sequence[int],
    experiments: Sequence[Experiment],
    configs: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    diff: bool,
    warn: Callable[[str], None],
) -> Comparison:
    folders = [one.path / "code" for one in experiments]
    try:
        files = {folder: _files(folder) for folder in dict.fromkeys(folders)}
    except OSError as error:  # of another user, who lets others read the records alone
        warn(f"the code is not compared: {error.filename} can't be read: {error.strerror}")
        files = {folder: {} for folder in folders}
    code = tuple(_differences([files[folder] for folder in folders]))
    compared = [row.name for row in code] if diff else []
    return Comparison(
        ids=tuple(ids),
        config=tuple(_differences(configs)),
        environment=tuple(_differences([dict(values_of(one.provenance())) for one in experiments])),
        code=code,
        results=tuple(_differences(results)),
        diffs={name: text for name in compared if (text := _diff(ids, folders, name))},
    )


def _differences(columns: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    names = dict.fromkeys(name for column in columns for name in column)
    for name in names:
        values = [column.get(name) for column in columns]
        shown = [getattr(value, "shown", value) for value in values]
        if any(_told(value) != _told(values[0]) for value in values):
            yield Difference(name, tuple(shown))


def _told(value: Any) -> str:
    """The identity of a value: 1 and 1.0 are the same number, which files change into each
    other; True is another thing, and NaN is NaN."""
    is_whole = isinstance(value, float) and value.is_integer()
    return repr(int(value) if is_whole else value)


# -- configuration ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Secret:
    """A value that may be compared and not shown."""

    value: Any
    shown: str


def _config(one: Experiment) -> Iterator[tuple[str, Any]]:
    config = one.config
    masked = dict(flat(config))
    whole = dict(flat(one._snapshot.directory.config()))
    for name, value in masked.items():
        if name == "hyperparameters" or name.startswith("hyperparameters."):
            continue
        hidden = name in whole and repr(whole[name]) != repr(value)
        yield name, _Secret(whole[name], value) if hidden else value
    yield from _space(config.get("hyperparameters") or {}, "hyperparameters")


def _space(hyperparameters: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Hyperparameters by name: constants as their values, ranges whole."""
    for name, value in hyperparameters.items():
        if isinstance(value, Mapping) and "type" not in value:
            yield from _space(value, f"{above}.{name}")
        else:
            const = isinstance(value, Mapping) and value.get("type") == "const"
            yield f"{above}.{name}", value["val"] if const else value


def _trial_config(one: Trial) -> Iterator[tuple[str, Any]]:
    of_space = "hyperparameters."
    yield from ((k, v) for k, v in _config(one.experiment) if not k.startswith(of_space))
    for name, value in flat(one.row.hparams or {}):
        yield f"{of_space}{name}", value


# -- results ---------------------------------------------------------------------------------------


def _experiment_results(one: Experiment) -> Iterator[tuple[str, Any]]:
    view = one.view
    yield "state", view.state
    yield "trials", view.trial_count
    yield "seconds", _seconds(view.started, view.ended)
    yield "best trial", view.best_trial
    best = next((row for row in view.trials if row.id == view.best_trial), None)
    if best is not None:
        yield from _best(best)


def _trial_results(row: TrialRow) -> Iterator[tuple[str, Any]]:
    yield "state", row.state
    yield "steps", row.steps
    yield "restarts", row.restarts
    yield "seconds", _seconds(row.started, row.ended)
    yield from _best(row)


def _best(row: TrialRow) -> Iterator[tuple[str, Any]]:
    if row.best_validation is not None:
        yield "best at step", row.best_validation.steps
        for name, value in flat(row.best_validation.metrics):
            yield f"best {name}", value


def _seconds(started: float | None, ended: float | None) -> int | None:
    return None if started is None or ended is None else round(max(ended - started, 0.0))


# -- code ------------------------------------------------------------------------------------------


def _files(folder: Path) -> dict[str, str]:
    """The checksums of the files by their paths; others may not read them."""
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder, onerror=raise_unless_gone):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = Path(place, name)
            if _is_configuration(path, folder.parent):
                continue  # what it set is compared key by key
            found[path.relative_to(folder).as_posix()] = _checksum(path, folder.parent)
    return found


def _is_configuration(path: Path, experiment: Path) -> bool:
    if path.suffix not in (".yaml", ".yml"):
        return False
    try:
        with open_shown(path, experiment) as file:
            return re.search(rb"^searcher:", file.read(_LARGEST_DIFF), re.MULTILINE) is not None
    except CorruptRecord:
        return False


def _checksum(path: Path, experiment: Path) -> str:
    """That of the content; of a link, that of where it leads: only its maker follows it."""
    try:
        with open_shown(path, experiment) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    except CorruptRecord:
        target = os.fsencode(path.readlink()) if path.is_symlink() else b""
        return hashlib.sha256(target).hexdigest()[:12]


def _diff(ids: Sequence[int], folders: Sequence[Path], name: str) -> str:
    first = _lines(folders[0], name)
    parts: list[str] = []
    for number, folder in zip(ids[1:], folders[1:], strict=True):
        other = _lines(folder, name)
        if first is None or other is None or first == other:
            continue
        names = (f"{ids[0]}/{name}", f"{number}/{name}")
        parts += difflib.unified_diff(first, other, *names, lineterm="")
    return "\n".join(parts)


def _lines(folder: Path, name: str) -> list[str] | None:
    """The lines of a text; empty if the file is missing, None if it is no text, or too long."""
    try:
        with open_shown(folder / name, folder.parent) as file:
            data = file.read(_LARGEST_DIFF + 1)
        if len(data) > _LARGEST_DIFF:
            return None
        text = data.decode()
        return masked_code(text, program=Path(name).suffix in PROGRAMS).splitlines()
    except FileNotFoundError:
        return []
    except (UnicodeDecodeError, OSError, CorruptRecord):
        return None
