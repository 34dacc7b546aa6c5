"""The output of `describe` for experiments and trials, as text and as data."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from detslurm._base.quantities import counted, human_size
from detslurm.cli.experiment.diagnostics import diagnostics, reported_metrics
from detslurm.cli.experiment.efficiency import as_data
from detslurm.cli.experiment.pareto import (
    best_text,
    front_text,
    objective_columns,
    objectives_text,
    row_data,
    status_data,
    statuses_of,
)
from detslurm.cli.output.energy import energy_of, energy_parts
from detslurm.cli.output.human import has_blocks, human_time, on_terminal
from detslurm.cli.output.printing import (
    Column,
    UserData,
    local_time,
    number,
    plain,
    rfc3339,
    table,
)
from detslurm.cli.output.tables import (
    cells_of,
    columns_text,
    log_line,
    printable,
    terminal_width,
)
from detslurm.sdk.costs.usage import slot_hours
from detslurm.sdk.experiments.ordering import differing, duration
from detslurm.sdk.parts import StoreError, flat, reason_of
from detslurm.sdk.provenance.view import code_text, container_of, kept_versions, software_text

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.parts import (
        ExperimentView,
        GCPolicy,
        JobInfo,
        TrialDir,
        TrialView,
        ValidationView,
    )
    from detslurm.sdk.searches.view import SearchView
    from detslurm.sdk.trials.trial import Trial

# The tracebacks of a few trials explain a failure; those of hundreds hide it.
_TRACEBACKS = 3
_STAGED = 50  # trials
_NO_SUCH_RELATIVE = re.compile(r"^FileNotFoundError: .*'[^/'][^']*'")


def experiment_text(experiment: Experiment) -> str:
    """An experiment on a screen or two."""
    parts = [properties(_experiment_rows(experiment))]
    if experiment.search is not None and (rungs := rungs_table(experiment.search)):
        parts.append("Search:\n" + rungs)
    parts.append("Trials:\n" + trials_table(experiment))
    parts += map(printable, diagnostics(experiment))
    failed = [trial for trial in experiment.trials() if trial.state == "ERROR"]
    parts += [failure_text(trial) for trial in failed[:_TRACEBACKS]]
    if len(failed) > _TRACEBACKS:
        more = len(failed) - _TRACEBACKS
        parts.append(f"{counted(more, 'more failed trial')}: `detslurm t describe ID` shows why.")
    return "\n\n".join(parts)


def _experiment_rows(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    view = experiment.view
    yield "Experiment", view.id
    yield "Name", view.name
    yield "State", view.state
    yield "Reason", experiment.reason
    yield "Progress", f"{100 * view.progress:.0f}%{_bar(view)}"
    yield "Owner", view.owner
    if view.parent is not None:
        yield "Parent", f"experiment {view.parent} ({view.origin})"
    yield "Project", f"{view.workspace}/{view.project}"
    yield "Imported", f"it was {experiment.imported}" if experiment.imported else None
    yield "Description", view.description
    yield "Labels", ", ".join(view.labels)
    yield "Notes", view.notes
    yield "Created", local_time(view.created)
    yield "Started", local_time(view.started)
    yield "Ended", local_time(view.ended)
    yield "Elapsed", _elapsed(view)
    yield from _cost_rows(view)
    yield "Archived", "yes" if view.archived else ""
    yield "Cluster", " ".join(word for word in (view.cluster, view.pool) if word)
    yield "Jobs", ", ".join(dict.fromkeys(job.job_id.partition("_")[0] for job in view.jobs))
    if _waits(view):
        yield "Waits", f"`detslurm job why {view.id}` shows why, and for how long"
    yield "Submitted", view.submission
    for node, count in view.failing_nodes.items():
        yield "Failing node", _failing_node(node, count, excluded=node in view.excluded_nodes)
    yield from _config_rows(experiment)
    if experiment.search is not None:
        yield "Search", search_text(experiment.search, ended=view.finished)
        yield "Known results", experiment.search.known
        yield "Workers", workers_text(experiment.workers.values())
    if (several := experiment.row.objectives) is not None:
        found = statuses_of(experiment)
        if view.best_trial is not None:
            best = best_text(several, found[view.best_trial])
            yield "Best", f"{best} (trial {view.best_trial})"
        yield "Pareto front", front_text(found)
    elif view.best_trial is not None:
        value = number(view.best_value)
        yield "Best", f"{view.metric} {value} (trial {view.best_trial}){_curve(experiment)}"
    first = next((trial for trial in experiment.trials() if trial.row.run_count), None)
    yield "Deleted", deleted_text(first.view) if first is not None else None
    yield "Directory", experiment.path


def _cost_rows(view: ExperimentView) -> Iterator[tuple[str, str]]:
    if (hours := slot_hours(view)) is not None:
        yield "Slot-Hours", f"{hours:.2f}"
    if (energy := energy_of(view)) is not None:
        yield "Energy", energy_parts(energy)


def deleted_text(trial: TrialView) -> str | None:
    """Name what the code wrote beside itself, and how to keep it; None where it wrote nothing."""
    gone = next((run.deleted for run in reversed(trial.runs) if run.deleted), None)
    if gone is None:
        return None
    hint = "To keep files, save them in a checkpoint or under an absolute path."
    return f"{gone}, written by trial {trial.id} beside the code and deleted with its copy\n{hint}"


def _waits(view: ExperimentView) -> bool:
    """Whether trials wait in the queue for other reasons than a pause."""
    return view.state == "ACTIVE" and bool(view.jobs) and "QUEUED" in view.trial_states


def _failing_node(node: str, count: int, *, excluded: bool) -> str:
    many = counted(count, "run or job", "runs or jobs")
    more = "; new jobs avoid it" if excluded else ""
    return f"{node}: {many} failed there at once, while other nodes worked{more}"


def _bar(view: ExperimentView) -> str:
    """How far it is, where a person sees it."""
    if view.finished or not (on_terminal() and has_blocks()):
        return ""
    from detslurm.look.plot import progress_bar

    return f" {progress_bar(view.progress, 20)}"


def _curve(experiment: Experiment) -> str:
    """The searcher's metric of the best trial in a line, where a person sees it."""
    view = experiment.view
    if view.metric is None or not (on_terminal() and has_blocks()):
        return ""
    from detslurm.look.plot import sparkline

    best = next((trial for trial in experiment.trials() if trial.id == view.best_trial), None)
    if best is None:
        return ""
    try:
        values = best.metrics("validation", [view.metric]).metrics.get(view.metric, ())
    except StoreError:
        return ""  # its reader reports an unreadable record
    return f"  {sparkline(values)}" if len(values) > 1 else ""


def _elapsed(view: ExperimentView) -> str:
    seconds = duration(view.started, view.ended)
    return "" if seconds is None else human_time(seconds)


def _config_rows(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    try:
        config = experiment.config
    except StoreError as error:  # a broken submission must not hide what else is known
        yield "Config", f"can't be read: {error}"
        return
    searcher, resources = config.get("searcher") or {}, config.get("resources") or {}
    entrypoint = config.get("entrypoint")
    yield "Entrypoint", entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
    if arguments := config.get("arguments"):
        forms = ("flags", "file")
        yield (
            "Arguments",
            arguments
            if isinstance(arguments, str)
            else next(form for form in forms if arguments.get(form)),
        )
    if (several := experiment.row.objectives) is not None:
        yield "Searcher", f"{searcher.get('name')} on {objectives_text(several)}"
    elif experiment.managed:
        order = "smaller" if searcher.get("smaller_is_better", True) else "larger"
        yield "Searcher", f"{searcher.get('name')} on {searcher.get('metric')} ({order} is better)"
    yield "Environment", _environment_text(experiment)
    yield from _version_rows(experiment)
    yield "Slots per trial", resources.get("slots_per_trial")
    for name, value in _limits(experiment, resources):
        if (name, value) != ("weight", 1):
            yield name.replace("_", " ").capitalize(), value
    yield "Budget", experiment.budget
    yield "Max restarts", config.get("max_restarts")
    front = ["the Pareto front"] if experiment.row.objectives is not None else []
    yield "Checkpoints kept", "; ".join([*_kept(experiment.gc_policy), *front]) or "none"


def _version_rows(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    yield "Container", " ".join(container_of(experiment.config))
    try:
        code, software = kept_versions(experiment._snapshot)
    except StoreError as error:  # it must not hide what else is known
        yield "Code", f"can't be read: {error}"
        return
    yield "Code", None if code is None else code_text(code)
    yield "Software", None if software is None else software_text(software)


def _environment_text(experiment: Experiment) -> str:
    """The environment that the nodes stage, and whether they could."""
    environment = experiment.environment
    if environment is None:
        return ""
    size = f"{human_size(environment.size)} and {counted(environment.files, 'file')}"
    looked = _looked_into(experiment)
    ended = [run.end for one in looked for run in one.runs() if run.end]
    whys = Counter(why for end in ended for why in set(end.not_staged.values()))
    staged = sum(not end.not_staged for end in ended)
    lines = [f"{environment.prefix} as it was at the submission ({size})"]
    if ended:
        sample = f" of the first {_STAGED} trials" if len(looked) == _STAGED else ""
        lines.append(f"staged in {staged} of {counted(len(ended), 'run')}{sample}")
    lines += (f"not staged in {counted(count, 'run')}: {why}" for why, count in whys.items())
    return "\n".join(lines)


def _looked_into(experiment: Experiment) -> list[TrialDir]:
    """The first trials that began: hundreds of them add hardly anything new."""
    begun = (trial.directory for trial in experiment.trials() if trial.row.run_count)
    return list(itertools.islice(begun, _STAGED))


def _kept(policy: GCPolicy) -> list[str]:
    """Such as "the best and the 2 latest of each trial"."""
    counts = {"best": policy.save_trial_best, "latest": policy.save_trial_latest}
    of_each = " and ".join(_the(count, rank) for rank, count in counts.items() if count)
    best = policy.save_experiment_best
    parts = [f"{of_each} of each trial"] if of_each else []
    return parts + ([f"{_the(best, 'best')} of all trials"] if best else [])


def _the(count: int, rank: str) -> str:
    return f"the {rank}" if count == 1 else f"the {count} {rank}"


def _limits(experiment: Experiment, resources: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The resources that can be changed later, as they are now."""
    for name in ("max_slots", "priority", "weight"):
        yield name, experiment.view.desired.fields.get(name, resources.get(name))


def search_text(search: SearchView, *, ended: bool) -> str:
    """How many of a search's trials there are of each kind."""
    counts = search.counts()
    invalid = f" ({counts['invalid']} with invalid hyperparameters)" if counts["invalid"] else ""
    created = f"{counted(counts['created'], 'trial')} created"
    if ended:  # the log of a canceled search stops in the middle: nothing of it runs any more
        return f"{created}{invalid}"
    kinds = ", ".join(f"{counts[kind]} {kind}" for kind in ("waiting", "running", "paused"))
    ends = f"\nends: {search.end_reason}" if search.end_reason is not None else ""
    return f"{created}: {kinds}, {counts['closed']} over{invalid}{ends}"


def workers_text(workers: Iterable[JobInfo]) -> str:
    """How many of a search's jobs run, and why the others wait."""
    counts = Counter(job.reason or job.state if job.waiting else "" for job in workers)
    runs = [f"{counts.pop('')} run"] if "" in counts else []
    waits = (f"{n} wait: {_wait_of_a_worker(why)}" for why, n in counts.items())
    return ", ".join([*runs, *waits])


def _wait_of_a_worker(reason: str) -> str:
    if reason == "Dependency":  # no other worker depends on jobs
        return "standby, which starts if all others end"
    return f"{reason_of(reason).short} ({reason})"


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
    """Names and values below one another; empty ones are left out."""
    shown = [(name, str(value).expandtabs()) for name, value in rows if value not in (None, "")]
    width = max(len(name) for name, _ in shown)
    indent = "\n" + " " * (width + 3)
    return "\n".join(
        f"{name.rjust(width)} : {indent.join(map(printable, value.splitlines()))}"
        for name, value in shown
    )


def trials_table(experiment: Experiment) -> str:
    """An experiment's trials."""
    trials = experiment.trials()
    objectives = objective_columns(experiment, statuses_of(experiment))
    course = [one for one in COURSE if not objectives or one.header != "Best Validation"]
    return columns_text([*IDENTITY, hparams_column(trials), *objectives, *course], trials)


def hparams_column(trials: Sequence[Trial]) -> Column:
    """Hyperparameters of trials: those that differ come first, and as few as possible are cut."""
    apart, constants = differing(trial.row.hparams for trial in trials)

    def text(trial: Trial, names: Iterable[str]) -> str:
        own = dict(flat(trial.row.hparams or {}))
        return compact({name: own[name] for name in names if name in own})

    needed = max((cells_of(text(trial, apart)) for trial in trials), default=0)
    needed += 2 if constants else 0  # ",…"
    return Column(
        "H-Params",
        lambda trial: text(trial, [*apart, *constants]),
        least=max(12, min(needed, terminal_width() - _OTHER_CELLS)),
        csv_value=lambda trial: UserData(trial.row.hparams),
    )


def trial_state(trial: Trial) -> str:
    """A trial's state, whether its hyperparameters were refused, and whether it does nothing."""
    if trial.idle is not None:
        return f"{trial.state} (idle)"
    return f"{trial.state} (invalid)" if trial.row.invalid else trial.state


def _best(trial: Trial) -> str:
    return validation_text(trial.experiment.view.metric, trial.row.best_validation)


def latest_checkpoint(trial: Trial) -> str:
    """A trial's latest checkpoint, and when it was saved."""
    latest = trial.row.latest_checkpoint
    return f"{latest.uuid} @ {latest.steps}" if latest else ""


_OTHER_CELLS = 48  # of the id, a state, a best validation and the gaps

IDENTITY = [
    Column("Trial ID", lambda trial: trial.id),
    Column("State", trial_state, "state"),
]
COURSE = [
    Column("# of Batches", lambda trial: trial.row.steps, drop=2),
    Column("Restarts", lambda trial: trial.row.restarts, drop=4),
    Column("Best Validation", _best, least=24),
    Column("Last Checkpoint", latest_checkpoint, drop=6, least=8),
    Column("Started", lambda trial: trial.row.started, "time", drop=5),
    Column("Ended", lambda trial: trial.row.ended, "time", drop=7),
    Column("Job", lambda trial: job_text(trial), drop=1, least=8),
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
    waits = status.job.reason and not status.job.running
    reason = f": {reason_of(status.job.reason).short} ({status.job.reason})" if waits else ""
    return f"{status.job_ref.ref} {status.job.state}{reason}"


def failure_text(trial: Trial) -> str:
    """Why a trial failed: the reason, then the end of its output."""
    why = printable(trial.row.end_reason or "no reason is known")
    lines = [f"Trial {trial.id} failed: {why}"]
    words = failure_excerpt(trial)
    lines += [f"  {log_line(line)}" for line in words]
    if words and _NO_SUCH_RELATIVE.search(words[-1]):
        lines.append(
            "A job runs in a copy of the directory that was submitted, without what .detignore"
            " names: give data by absolute paths."
        )
    return "\n".join(lines)


def failure_excerpt(trial: Trial) -> list[str]:
    """The traceback at the end of a trial's log, or what its job printed before any run."""
    from detslurm.sdk.trials.logs import failure_excerpt, job_output

    return failure_excerpt(trial.directory) if trial.row.run_count else job_output(trial)


# -- data ----------------------------------------------------------------------------------------


def experiment_data(experiment: Experiment, *, metrics: bool = False) -> dict[str, Any]:
    """An experiment for JSON; with `metrics` each trial has all that it reported."""
    view, budget = experiment.view, experiment.budget
    data = row_data(view.row())
    statuses = statuses_of(experiment)
    try:
        data["config"] = experiment.config
    except StoreError:
        data["config"] = None
    resources = (data["config"] or {}).get("resources") or {}
    return {
        **data,
        **dict(_limits(experiment, resources)),
        "budget": None if budget is None else asdict(budget),
        "environment": experiment.environment,
        **{name.lower(): text for name, text in _version_rows(experiment)},
        "path": str(experiment.path),
        "search": experiment.search.data() if experiment.search is not None else None,
        "message": experiment.message,
        "workers": [
            {"ref": ref.ref, "state": job.state, "reason": job.reason}
            for ref, job in experiment.workers.items()
        ],
        "jobs": list(view.jobs),
        "trials": [
            trial_row(trial)
            | status_data(statuses.get(trial.id))
            | ({"metrics": list(trial.metric_rows())} if metrics else {})
            for trial in experiment.trials()
        ],
        "problems": list(view.problems),
    }


def trial_row(trial: Trial) -> dict[str, Any]:
    """A trial as a row of JSON."""
    view, status = trial.row, trial.job_status
    data = {name: getattr(view, name) for name in view.__struct_fields__}
    data["energy"] = energy_of(view)
    job = status.job if status else None
    data["job"] = None
    if status and status.job_ref:
        data["job"] = {
            "cluster": status.job_ref.cluster,
            "ref": status.job_ref.ref,
            "state": job.state if job else None,
            "reason": job.reason if job else None,
            "expected_start": rfc3339(job.expected_start) if job and job.expected_start else None,
            "nodes": list(job.nodes) if job else [],
        }
    data["idle"] = trial.idle
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


def artifacts_data(trial: Trial) -> list[dict[str, Any]]:
    """The images and tables of a trial by name, without their content."""
    found: dict[str, dict[str, Any]] = {}
    for one in trial.artifacts():
        about = {"name": one.name, "kind": one.kind, "steps": [], "size": 0}
        entry = found.setdefault(one.name, about)
        entry["steps"].append(one.steps)
        entry["size"] += one.size
    return list(found.values())


def trial_data(trial: Trial, *, metrics: bool) -> dict[str, Any]:
    """A trial for JSON, with all its runs and checkpoints."""
    from msgspec.structs import replace

    view: TrialView = trial.view
    states = {one.uuid: one.state for one in trial.checkpoints()}
    data = {
        **trial_row(trial),
        "efficiency": as_data(trial.efficiency()),
        "seed": view.seed,
        "runs": list(view.runs),
        "checkpoints": [replace(c, state=states.get(c.uuid, c.state)) for c in view.checkpoints],
        "metadata": view.metadata,
        "alerts": list(view.alerts),
        "artifacts": artifacts_data(trial),
        "problems": list(view.problems),
    }
    if metrics:
        data["metrics"] = list(trial.metric_rows())
    return data
