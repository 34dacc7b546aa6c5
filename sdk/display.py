"""Experiments, trials, checkpoints and models as a notebook shows them, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from detslurm._base.display import html_head, html_table
from detslurm._base.quantities import counted, number
from detslurm.sdk.experiments.ordering import best_trials_first, differing
from detslurm.store import ExperimentRow, TrialRow, flat
from detslurm.store.models import ModelRow, VersionRow

_SHOWN = 10


class Report(Protocol):
    """A page about experiments: shown in a notebook, or saved as a file."""

    def _repr_html_(self) -> str: ...

    def save(self, path: Path | str) -> None:
        """Write the page to the file `path`, such as "experiment-7.html", whole or not at all; an
        older file is replaced, and a `LifecycleError` protects anything but a file."""


def experiment_html(row: ExperimentRow, trials: Iterable[TrialRow], path: Path) -> str:
    """Its state, and its best trials with the hyperparameters that differ."""
    facts = {"State": _state(row), "Why": row.reason, "Owner": row.owner,
             "Labels": ", ".join(row.labels), "Best": _best(row.metric, row.best_value),
             "Path": path}  # fmt: skip
    best = best_trials_first(trials, row)
    shown = best[:_SHOWN]
    names, _ = differing(trial.hparams for trial in shown)
    hparams = [dict(flat(trial.hparams or {})) for trial in shown]
    lines = [
        [trial.id, trial.state, *map(own.get, names), trial.steps, _value(trial)]
        for trial, own in zip(shown, hparams, strict=True)
    ]
    table = html_table(["Trial", "State", *names, "Batches", row.metric or "Best"], lines)
    more = f"<p>and {counted(len(best) - _SHOWN, 'more trial')}</p>" if len(best) > _SHOWN else ""
    return html_head(f"Experiment {row.id}: {row.name}", facts) + table + more


def trial_html(row: TrialRow, metric: str | None) -> str:
    """Its state, hyperparameters and best result."""
    facts = {"State": _state(row), "Why": row.end_reason, "Batches": row.steps,
             "Restarts": row.restarts, "Best": _best(metric, _value(row))}  # fmt: skip
    table = html_table(["Hyperparameter", "Value"], flat(row.hparams or {}))
    return html_head(f"Trial {row.id} of experiment {row.experiment_id}", facts) + table


def checkpoint_html(uuid: str, facts: Mapping[str, Any], metrics: Mapping[str, float]) -> str:
    """Its identity, and the metrics of its weights."""
    return html_head(f"Checkpoint {uuid}", facts) + html_table(["Metric", "Value"], metrics.items())


def model_html(row: ModelRow) -> str:
    """Its texts, and its newest versions."""
    facts = {"Description": row.description, "Labels": ", ".join(row.labels), "Owner": row.user,
             "Notes": row.notes, **row.metadata}  # fmt: skip
    newest = sorted(row.versions.values(), key=lambda one: -one.number)[:_SHOWN]
    lines = [[one.number, one.name, one.uuid, one.steps, one.notes] for one in newest]
    table = html_table(["Version", "Name", "Checkpoint", "Batches", "Notes"], lines)
    return html_head(f"Model {row.id}: {row.name}", facts) + table


def version_html(model: str, row: VersionRow) -> str:
    """Its checkpoint, and its texts."""
    facts = {"Name": row.name, "Checkpoint": row.uuid, "Experiment": row.experiment,
             "Trial": row.trial, "Batches": row.steps, "Labels": ", ".join(row.labels),
             "Notes": row.notes, **row.metadata}  # fmt: skip
    return html_head(f"Version {row.number} of model {model}", facts)


def reason_text(reason: str | None) -> str:
    """The end of a repr: why something is in its state."""
    return f", reason={reason!r}" if reason else ""


def _state(row: ExperimentRow | TrialRow) -> str:
    return f"{row.state} ({100 * row.progress:.0f}%)"


def _value(row: TrialRow) -> float | None:
    return row.best_validation.value if row.best_validation else None


def _best(metric: str | None, value: float | None) -> str:
    return "" if value is None else f"{metric} {number(value)}"
