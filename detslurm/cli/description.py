"""The output of `describe` for experiments and trials, as text and as data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from detslurm.cli.diagnostics import diagnostics, reported_metrics
from detslurm.cli.output import local_time, number, plain, table
from detslurm.store import StoreError

if TYPE_CHECKING:
    from detslurm.sdk.experiment import Experiment
    from detslurm.sdk.search_view import SearchView
    from detslurm.sdk.trial import Trial
    from detslurm.store import TrialView, ValidationView

# The tracebacks of a few trials explain a failure; those of hundreds hide it.
_TRACEBACKS = 3
_NO_SUCH_RELATIVE = re.compile(r"^FileNotFoundError: .*'[^/'][^']*'")


def experiment_text(experiment: Experiment) -> str:
    """An experiment on a screen or two."""
    parts = [properties(_experiment_rows(experiment))]
    if experiment.search is not None and (rungs := rungs_table(experiment.search)):
        parts.append("Search:\n" + rungs)
    parts.append("Trials:\n" + trials_table(experiment))
    parts += diagnostics(experiment)
    failed = [trial for trial in experiment.trials() if trial.state == "ERROR"]
    parts += [failure_text(trial) for trial in failed[:_TRACEBACKS]]
    if len(failed) > _TRACEBACKS:
        more = len(failed) - _TRACEBACKS
        parts.append(f"{more} more failed trials: `detslurm t describe ID` shows why.")
    return "\n\n".join(parts)


def _experiment_rows(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    view = experiment.view
    yield "Experiment", view.id
    yield "Name", view.name
    yield "State", view.state
    yield "Progress", f"{100 * view.progress:.0f}%"
    yield "Owner", view.owner
    yield "Description", view.description
    yield "Labels", ", ".join(view.labels)
    yield "Notes", view.notes
    yield "Created", local_time(view.created)
    yield "Started", local_time(view.started)
    yield "Ended", local_time(view.ended)
    yield "Archived", "yes" if view.archived else ""
    yield "Cluster", " ".join(word for word in (view.cluster, view.pool) if word)
    yield "Jobs", ", ".join(dict.fromkeys(job.job_id.partition("_")[0] for job in view.jobs))
    yield from _config_rows(experiment)
    if experiment.search is not None:
        yield "Search", search_text(experiment.search, ended=view.finished)
    if view.best_trial is not None:
        value = number(view.best_value)
        yield "Best", f"{view.metric} {value} (trial {view.best_trial})"
    yield "Directory", experiment.path


def _config_rows(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    try:
        config = experiment.config
    except StoreError as error:  # a broken submission must not hide what else is known
        yield "Config", f"can't be read: {error}"
        return
    searcher, resources = config.get("searcher") or {}, config.get("resources") or {}
    entrypoint = config.get("entrypoint")
    yield "Entrypoint", entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
    if experiment.managed:
        order = "smaller" if searcher.get("smaller_is_better", True) else "larger"
        yield "Searcher", f"{searcher.get('name')} on {searcher.get('metric')} ({order} is better)"
    yield "Slots per trial", resources.get("slots_per_trial")
    for name, value in _limits(experiment, resources):
        yield name.replace("_", " ").capitalize(), value
    yield "Max restarts", config.get("max_restarts")


def _limits(experiment: Experiment, resources: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The resources that can be changed later, as they are now."""
    for name in ("max_slots", "priority"):
        yield name, experiment.view.fields.get(name, resources.get(name))


def search_text(search: SearchView, *, ended: bool) -> str:
    """How many of a search's trials there are of each kind."""
    counts = search.counts()
    invalid = f" ({counts['invalid']} with invalid hyperparameters)" if counts["invalid"] else ""
    if ended:  # the log of a canceled search stops in the middle: nothing of it runs any more
        return f"{counts['created']} trials created{invalid}"
    kinds = ", ".join(f"{counts[kind]} {kind}" for kind in ("waiting", "running", "paused"))
    return f"{counts['created']} trials created: {kinds}, {counts['closed']} over{invalid}"


def rungs_table(search: SearchView) -> str:
    """A search's brackets and rungs; empty where it has none."""
    units = search.unit.capitalize()
    headers = ["Bracket", "Rung", units, "Results", "Outstanding", "Best", "Trial ID"]
    rows = [
        [r.bracket, r.rung, r.units, r.trials, r.outstanding, number(r.best), r.best_trial]
        for r in search.rungs()
    ]
    return table(headers, rows) if rows else ""


def properties(rows: Iterable[tuple[str, Any]]) -> str:
    """Names and values below one another; what is empty is left out."""
    shown = [(name, str(value)) for name, value in rows if value not in (None, "")]
    width = max(len(name) for name, _ in shown)
    indent = "\n" + " " * (width + 3)
    lines = [f"{name.rjust(width)} : {indent.join(value.splitlines())}" for name, value in shown]
    return "\n".join(lines)


def trials_table(experiment: Experiment) -> str:
    """An experiment's trials."""
    headers = [
        "Trial ID",
        "State",
        "H-Params",
        "# of Batches",
        "Restarts",
        "Best Validation",
        "Last Checkpoint",
        "Started",
        "Ended",
        "Job",
    ]
    rows = [_trial_cells(trial) for trial in experiment.trials()]
    return table(headers, rows)


def _trial_cells(trial: Trial) -> list[Any]:
    view = trial.row
    checkpoint = view.latest_checkpoint
    return [
        view.id,
        f"{view.state} (invalid)" if view.invalid else view.state,
        compact(view.hparams),
        view.steps,
        view.restarts,
        validation_text(trial.experiment.view.metric, view.best_validation),
        f"{checkpoint.uuid} @ {checkpoint.steps}" if checkpoint else "",
        local_time(view.started),
        local_time(view.ended),
        job_text(trial),
    ]


def compact(hparams: dict[str, Any] | None) -> str:
    """Hyperparameters on one line."""
    return ", ".join(f"{k}={_value(v)}" for k, v in (hparams or {}).items())


def _value(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(plain(value), separators=(",", ":"))
    return number(value)


def validation_text(metric: str | None, validation: ValidationView | None) -> str:
    """The searcher's metric where it has its best, and at which step."""
    if validation is None or validation.value is None:
        return ""
    return f"{metric} {number(validation.value)} @ {validation.steps}"


def metrics_text(validation: ValidationView | None) -> str:
    """All metrics of a validation, and at which step."""
    return f"{compact(reported_metrics(validation))} @ {validation.steps}" if validation else ""


def job_text(trial: Trial) -> str:
    """The job of an unfinished trial, with its state in the queue."""
    status = trial.job_status
    if status is None or status.job_ref is None:
        return ""
    if status.job is None:
        return f"{status.job_ref.ref} (unknown)"
    reason = f" ({status.job.reason})" if status.job.reason else ""
    return f"{status.job_ref.ref} {status.job.state}{reason}"


def failure_text(trial: Trial) -> str:
    """Why a trial failed: the reason, then the end of its output."""
    lines = [f"Trial {trial.id} failed: {trial.row.end_reason or 'no reason is known'}"]
    words = failure_excerpt(trial)
    lines += [f"  {line}" for line in words]
    if words and _NO_SUCH_RELATIVE.search(words[-1]):
        lines.append(
            "A job runs in a copy of the directory that was submitted, without what .detignore"
            " names: give data by absolute paths."
        )
    return "\n".join(lines)


def failure_excerpt(trial: Trial) -> list[str]:
    """The traceback at the end of a trial's log, or what its job printed before any run."""
    from detslurm.sdk.logs import failure_excerpt, job_output

    return failure_excerpt(trial.directory) if trial.row.run_count else job_output(trial)


# -- data ----------------------------------------------------------------------------------------


def experiment_data(experiment: Experiment) -> dict[str, Any]:
    """An experiment for JSON."""
    view = experiment.view
    data = {name: getattr(view, name) for name in view.row().__struct_fields__}
    try:
        data["config"] = experiment.config
    except StoreError:
        data["config"] = None
    resources = (data["config"] or {}).get("resources") or {}
    return {
        **data,
        **dict(_limits(experiment, resources)),
        "path": str(experiment.path),
        "search": experiment.search.data() if experiment.search is not None else None,
        "message": experiment.message,
        "jobs": list(view.jobs),
        "trials": [trial_row(trial) for trial in experiment.trials()],
        "problems": list(view.problems),
    }


def trial_row(trial: Trial) -> dict[str, Any]:
    """A trial as a row of JSON."""
    view, status = trial.row, trial.job_status
    data = {name: getattr(view, name) for name in view.__struct_fields__}
    job = status.job if status else None
    data["job"] = None
    if status and status.job_ref:
        data["job"] = {
            "cluster": status.job_ref.cluster,
            "ref": status.job_ref.ref,
            "state": job.state if job else None,
            "reason": job.reason if job else None,
            "nodes": list(job.nodes) if job else [],
        }
    data["message"] = status.message if status else None
    search = trial.experiment.search
    data["search"] = search.trial_data(trial.id) if search is not None else None
    if view.state == "ERROR":
        data["failure_excerpt"] = failure_excerpt(trial)
    return data


def trial_search_text(trial: Trial) -> str:
    """The state of a trial in its search; empty if there is no search."""
    search = trial.experiment.search
    found = search.trial_data(trial.id) if search is not None else None
    if search is None or found is None:
        return ""
    parts = [found["status"], f"reached {found['reached']}"]
    if found["target_length"] is not None:
        parts.append(f"asked for {found['target_length']} {search.unit}")
    if found["rung"] is not None:
        parts.append(f"rung {found['rung']} of bracket {found['bracket']}")
    if found["stop"]:
        parts.append("asked to stop")
    return ", ".join(parts)


def trial_data(trial: Trial, *, metrics: bool) -> dict[str, Any]:
    """A trial for JSON, with all its runs and checkpoints."""
    view: TrialView = trial.view
    data = {
        **trial_row(trial),
        "seed": view.seed,
        "runs": list(view.runs),
        "checkpoints": trial.experiment.as_stored(view.checkpoints),
        "metadata": view.metadata,
        "alerts": list(view.alerts),
        "problems": list(view.problems),
    }
    if metrics:
        data["metrics"] = list(trial.iter_metrics())
    return data
