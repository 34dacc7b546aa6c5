"""From files to views: gather an experiment's or a trial's facts, then fold them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from detslurm.store.curve import MetricRow, clean_rows, last_valid_steps
from detslurm.store.errors import CorruptRecord, Problem
from detslurm.store.experiment import ExperimentDir
from detslurm.store.experimentfold import ExperimentFacts, experiment_facts, experiment_view
from detslurm.store.frame import checked, unframe
from detslurm.store.runlog import lines_of
from detslurm.store.trial import Run, TrialDir
from detslurm.store.trialfold import (
    VALIDATION,
    RunFacts,
    TrialContext,
    metric_row,
    trial_view,
)
from detslurm.store.views import ExperimentView, TrialRow, TrialView


class _Head(msgspec.Struct):
    t: str = ""
    group: str = ""
    steps: int = 0


_head = msgspec.json.Decoder(_Head).decode


def cuts(runs: Sequence[Run]) -> dict[int, int]:
    """How many bytes of each run's log count: as many as every later run saw when it began."""
    bounds: dict[int, int] = {}
    for run in runs:
        for number, seen in (run.start.get("cut") or {}).items():
            earlier = int(number)
            if earlier < run.number:
                bounds[earlier] = min(seen, bounds.get(earlier, seen))
    return bounds


def run_facts(trial: TrialDir, run: Run, limit: int | None) -> RunFacts:
    """Read one run, keeping only the steps of metrics outside the validation group."""
    name = str(trial.records_path(run.number))
    records: list[dict[str, Any]] = []
    steps = array("q")
    problems: list[Problem] = []
    for offset, line in lines_of(name, limit, 0, problems):
        try:
            raw = checked(line)
            head = _head(raw)
            if head.t == "metrics" and head.group != VALIDATION:
                steps.append(head.steps)
            else:
                records.append(unframe(line))
        except (CorruptRecord, msgspec.DecodeError, OverflowError) as error:
            problems.append(Problem(name, offset, str(error)))
    return RunFacts(
        number=run.number,
        start=run.start,
        end=run.end,
        records=records,
        other_steps=steps,
        problems=problems,
    )


def fold_trial(
    trial: TrialDir, context: TrialContext | None = None, *, fresh: bool = False
) -> TrialView:
    """A trial as its files tell; without a context neither wishes nor the metric are known."""
    runs = trial.runs(fresh=fresh)
    bounds = cuts(runs)
    read = [run_facts(trial, run, bounds.get(run.number)) for run in runs]
    return trial_view(trial.id, trial.experiment_id, read, context or TrialContext())


def trial_metrics(trial: TrialDir, group: str | None = None) -> list[MetricRow]:
    """The trial's metrics on the clean curve, by step; one group's, or all."""
    runs = trial.runs()
    bounds = cuts(runs)
    rows: list[MetricRow] = []
    spans = []
    for run in runs:
        content = trial.records(run.number, bounds.get(run.number))
        facts = RunFacts(number=run.number, start=run.start, records=content.records)
        spans.append(facts.span)
        for record in content.records:
            if record.get("t") == "metrics" and group in (None, record["group"]):
                rows.append(metric_row(record, run.number))
    return clean_rows(rows, last_valid_steps(spans))


def fold_facts(experiment: ExperimentDir, *, fresh: bool = False) -> ExperimentFacts:
    """The experiment's own facts folded, its trials unread; NotFound where it does not exist."""
    experiment.created()
    return experiment_facts(experiment.facts(fresh=fresh))


def fold_experiment(
    experiment: ExperimentDir, alive: Mapping[int, bool | None] | None = None
) -> ExperimentView:
    """An experiment as its files tell; `alive` is what the queue says about trials' jobs."""
    facts = fold_facts(experiment)
    trials: list[TrialRow] = []
    problems = list(facts.problems)
    for trial_id in facts.trial_ids:
        context = facts.context(trial_id, (alive or {}).get(trial_id))
        view = fold_trial(experiment.trial(trial_id), context)
        trials.append(view.row())
        problems += view.problems
    facts.problems = tuple(problems)
    return experiment_view(experiment.id, facts, trials)
