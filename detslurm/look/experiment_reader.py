"""Reading one experiment of a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detslurm._base.states import UNKNOWN
from detslurm.look.artifact_parts import artifact_parts
from detslurm.look.code_listing import code_listing
from detslurm.look.document import (
    ArtifactPart,
    CheckpointPart,
    ExperimentPart,
    ObjectivePart,
    RungPart,
    TrialPart,
)
from detslurm.look.log_tails import log_tails
from detslurm.look.plain import chosen, plain
from detslurm.look.problems import Problems
from detslurm.look.trial_parts import checkpoint_part, trial_part
from detslurm.sdk.checkpoints.catalog import saved_by
from detslurm.sdk.checkpoints.choosing import objects
from detslurm.sdk.experiments.pareto import ParetoStatus, pareto_statuses
from detslurm.sdk.hiding import secrets_in
from detslurm.sdk.provenance.view import code_text, kept_versions, software_text
from detslurm.store.saved_views import SavedView, saved_views

if TYPE_CHECKING:
    from detslurm.look.curve_reader import CurveReader
    from detslurm.sdk import Experiment, Trial
    from detslurm.store import SeveralObjectives, TrialView

CHECKPOINTS: Final = 10_000
"""The most checkpoints of an experiment, shared by its trials: of each the newest."""


@dataclass(frozen=True)
class Wanted:
    """The parts of each experiment that the document is to have."""

    trials: Collection[int] | None
    code: bool
    log_lines: int
    artifacts: int  # bytes


class ExperimentReader:
    """One experiment of the document: first all trials are read, then it is put together."""

    def __init__(self, experiment: Experiment, wanted: Wanted) -> None:
        self._experiment = experiment
        self._known = experiment._snapshot
        self._wanted = wanted
        self._problems = Problems()
        self._views: dict[int, TrialView] = {}
        every = self._problems.read("its list of trials", experiment.trials) or []
        self.trials = [t for t in every if wanted.trials is None or t.id in wanted.trials]

    def read(self, curves: CurveReader | None) -> Iterable[int]:
        """Read trial after trial, and give its id."""
        tried, known = self._problems.read, self._known
        saved = tried("its saved trials", lambda: saved_views(known.directory, known.facts)) or {}
        waiting = tried("its trials that wait", known.waiting_views) or {}
        if curves is not None:
            tried("its compacted metrics", partial(curves.prepare, self.trials))
        for trial in self.trials:
            if trial.id in waiting:
                self._views[trial.id] = waiting[trial.id]
            else:
                self._read_trial(trial, saved.get(trial.id), curves)
            yield trial.id

    def _read_trial(
        self, trial: Trial, known: SavedView | None, curves: CurveReader | None
    ) -> None:
        tried, name = self._problems.read, f"trial {trial.id}"
        view = known.view if known is not None else tried(name, lambda: trial.view)
        if view is None:
            return
        self._views[trial.id] = view
        self._problems += [
            f"{p.path}, byte {p.offset}: {p.reason} (skipped)" for p in view.problems
        ]
        if curves is not None:
            profiled = None if known is None else known.profiled
            tried(f"the metrics of {name}", partial(curves.read, trial, profiled))

    def part(self, curves: CurveReader | None) -> ExperimentPart:
        """The experiment without its curves, once its trials were read."""
        experiment, tried = self._experiment, self._problems.read
        about: dict[str, Any] = {"id": experiment.id}
        about |= tried("the experiment", lambda: _about(experiment)) or {}
        about |= tried("its configuration", lambda: _by_config(chosen(experiment.config))) or {}
        about |= tried("the record of what it ran", lambda: _by_provenance(experiment)) or {}
        about |= tried("its search", lambda: _by_search(experiment)) or {}
        if self._wanted.code:
            about["code"] = tried("its code", lambda: plain(self._code())) or {}
        about["trials"] = self._trial_parts(curves, about.get("config", {}))
        return ExperimentPart(**about, problems=plain(self._problems))

    def _code(self) -> dict[str, str]:
        """Nothing for readers who can't know its secrets."""
        secrets = secrets_in(self._known.directory)
        if secrets is None:
            self._problems.append("code is left out: only its owner knows its secrets")
            return {}
        return code_listing(self._experiment.path / "code", secrets)

    def _trial_parts(
        self, curves: CurveReader | None, config: Mapping[str, Any]
    ) -> list[TrialPart]:
        tried = self._problems.read
        saved = tried("its checkpoints", self._checkpoints) or {}
        tails = tried("its logs", self._log_tails) or {}
        artifacts: Mapping[int, list[ArtifactPart]] = {}
        if curves is not None:
            size = self._wanted.artifacts
            artifacts = artifact_parts(self._experiment, self._views, size, self._problems)
        statuses = tried("its Pareto front", self._pareto_statuses) or {}
        parts = []
        for trial in self.trials:
            part = tried(f"trial {trial.id}", partial(self._trial_part, trial))
            part = part or TrialPart(id=trial.id, state=UNKNOWN)
            more: dict[str, Any] = {
                "checkpoints": saved.get(trial.id, []),
                "log_tail": tails.get(trial.id, []),
                "artifacts": artifacts.get(trial.id, []),
                **_pareto_status(statuses.get(trial.id)),
                "batches_per_epoch": _batches_per_epoch(config, part.hparams),
            }
            if curves is not None:
                more["summary"] = curves.summary(trial.id)
            parts.append(msgspec.structs.replace(part, **more))
        return parts

    def _trial_part(self, trial: Trial) -> TrialPart | None:
        view = self._views.get(trial.id)
        return None if view is None else trial_part(trial, view, self._problems)

    def _checkpoints(self) -> Mapping[int, list[CheckpointPart]]:
        found: dict[int, list[CheckpointPart]] = {}
        saved = saved_by(self._known, self._views.values())
        for one in objects(self._known.directory.store, [saved]):
            found.setdefault(one.trial_id, []).append(checkpoint_part(one))
        most = max(CHECKPOINTS // max(len(found), 1), 1)
        return {trial: parts[-most:] for trial, parts in found.items()}

    def _pareto_statuses(self) -> Mapping[int, ParetoStatus]:
        return pareto_statuses(self._experiment.row, self._experiment.trial_rows)

    def _log_tails(self) -> Mapping[int, list[str]]:
        chosen = self._wanted.trials is not None
        shown = [trial for trial in self.trials if chosen or self._has_failed(trial.id)]
        return log_tails(self._known.directory, shown, self._wanted.log_lines, self._problems)

    def _has_failed(self, trial_id: int) -> bool:
        return trial_id in self._views and self._views[trial_id].state == "ERROR"


def _pareto_status(found: ParetoStatus | None) -> dict[str, Any]:
    if found is None:
        return {}
    numbers = {k: v if isinstance(v, int | float) else None for k, v in found.values.items()}
    return {"objectives": plain(numbers), "front": found.front, "feasible": found.feasible}


def _about(experiment: Experiment) -> dict[str, Any]:
    row = experiment.row
    return {
        "name": plain(row.name),
        "owner": plain(row.owner),
        "state": row.state,
        "message": plain(experiment.message),
        "description": plain(row.description),
        "notes": plain(row.notes),
        "labels": plain(row.labels),
        "progress": row.progress,
        "created": row.created,
        "started": row.started,
        "ended": row.ended,
        "metric": plain(row.metric),
        "smaller_is_better": row.smaller_is_better,
        "objectives": _objectives(row.objectives),
        "trial_count": row.trial_count,
    }


def _objectives(several: SeveralObjectives | None) -> list[ObjectivePart]:
    if several is None:
        return []
    orders = {one.name: one.smaller_is_better for one in several.metrics}
    return [
        ObjectivePart(
            name=plain(name),
            smaller_is_better=orders.get(name),
            bound=several.constraints.get(name),
        )
        for name in several.names
    ]


def _by_config(config: dict[str, Any]) -> dict[str, Any]:
    searcher = config["searcher"]
    length = searcher.get("max_length")
    unit = next(iter(length), None) if isinstance(length, dict) else None
    return {"config": config, "searcher": searcher["name"], "unit": unit}


def _by_provenance(experiment: Experiment) -> dict[str, Any]:
    code, software = kept_versions(experiment._snapshot)
    return {
        "code_version": None if code is None else plain(code_text(code)),
        "software": None if software is None else plain(software_text(software)),
    }


def _by_search(experiment: Experiment) -> dict[str, Any]:
    search = experiment.search
    if search is None:
        return {}
    rungs = [RungPart(**asdict(rung)) for rung in search.rungs()]
    return {"unit": plain(search.unit), "rungs": rungs}


def _batches_per_epoch(config: Mapping[str, Any], hparams: Mapping[str, Any]) -> float | None:
    records, size = config.get("records_per_epoch"), hparams.get("global_batch_size")
    counts = isinstance(records, int) and isinstance(size, int) and size > 0
    return records / size if counts and records else None
