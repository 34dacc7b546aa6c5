"""A trial of the document, all but its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm.look.document import CheckpointPart, Number, RunPart, TrialPart
from detslurm.look.plain import chosen, finite, plain
from detslurm.look.problems import Problems
from detslurm.sdk.costs.efficiency import efficiency, queued_times, submission_times
from detslurm.store import flat

if TYPE_CHECKING:
    from detslurm.sdk import Checkpoint, Trial
    from detslurm.store import RunView, TrialView, ValidationView


def trial_part(trial: Trial, view: TrialView, problems: Problems) -> TrialPart:
    """The part of the document about one trial, as far as its view knows."""
    rung, bracket = _place_in_search(trial)
    best, latest = view.best_validation, view.last_validation
    used: dict[str, Any] = {}
    if view.runs:
        what = f"what trial {trial.id} used"
        used = problems.read(what, lambda: _efficiency(trial, view)) or {}
    return TrialPart(
        id=view.id,
        state=view.state,
        hparams={name: chosen(value) for name, value in flat(view.hparams or {})},
        steps=view.steps,
        progress=view.progress,
        restarts=view.restarts,
        started=view.started,
        ended=view.ended,
        end_reason=plain(view.end_reason),
        best=_value(best),
        best_steps=best.steps if best is not None else None,
        latest=_value(latest),
        rung=rung,
        bracket=bracket,
        runs=_runs(trial, view, problems),
        efficiency=used,
    )


def _value(validation: ValidationView | None) -> Number:
    return None if validation is None or validation.value is None else finite(validation.value)


def _place_in_search(trial: Trial) -> tuple[int | None, int | None]:
    """The highest rung at which it has a result, and the bracket of it."""
    search = trial.experiment.search
    known = search.trial(trial.id) if search is not None and search.state.brackets else None
    if known is None:
        return None, None
    return len(known.rung_results) - 1 if known.rung_results else None, known.bracket


def _runs(trial: Trial, view: TrialView, problems: Problems) -> list[RunPart]:
    queued: Sequence[float | None] | None = problems.read(
        f"when the runs of trial {trial.id} began to wait",
        lambda: queued_times(view.runs, submission_times(trial.experiment._snapshot.facts)),
    )
    queued = queued or [None] * len(view.runs)
    return [_run(run, since) for run, since in zip(view.runs, queued, strict=True)]


def _run(run: RunView, queued: float | None) -> RunPart:
    nodes = run.job.nodes or ([run.host] if run.host else [])
    return RunPart(
        number=run.number,
        queued=queued,
        started=run.started,
        ended=run.ended,
        outcome=run.outcome,
        reason=plain(run.reason),
        nodes=[plain(str(node)) for node in nodes],
        job=plain(run.job.ref),
        resumed_steps=run.resumed_steps,
        steps=run.steps,
    )


def _efficiency(trial: Trial, view: TrialView) -> dict[str, Any]:
    found = efficiency(trial.directory, view, trial.experiment._snapshot.facts)
    known = msgspec.structs.asdict(found)
    time = found.training_time
    known["training_time"] = None if time is None else time.to_dict()
    known["energy"] = msgspec.to_builtins(found.energy)
    about = ("trial", "state")
    return {n: plain(v) for n, v in known.items() if v is not None and n not in about}


def checkpoint_part(checkpoint: Checkpoint) -> CheckpointPart:
    """The part of the document about one checkpoint."""
    return CheckpointPart(
        uuid=checkpoint.uuid,
        steps=checkpoint.steps_completed,
        time=checkpoint.report_time,
        state=str(checkpoint.state),
        size=checkpoint.size,
        path=plain(checkpoint.location),
        metrics=_metrics(checkpoint.validation_metrics),
    )


def _metrics(metrics: Mapping[str, float]) -> dict[str, Number]:
    return {plain(name): finite(value) for name, value in metrics.items()}
