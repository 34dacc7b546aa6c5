"""Trials and metrics as pandas' data frames, where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from detslurm.store import ExperimentRow, TrialDir, TrialRow

_METRIC_KEYS = ("trial", "steps")


def trials_frame(rows: Sequence[TrialRow], experiment: ExperimentRow) -> pandas.DataFrame:
    """A line for each trial."""
    from detslurm.sdk.experiments.pareto import front_columns, pareto_statuses
    from detslurm.sdk.trials.metrics import moment
    from detslurm.store import flat

    metric, found = experiment.metric, pareto_statuses(experiment, rows)
    lines = [
        {
            "trial": row.id,
            "state": row.state,
            **{f"hparams.{name}": value for name, value in flat(row.hparams or {})},
            "steps": row.steps,
            "restarts": row.restarts,
            f"best {metric}": row.best_validation.value if row.best_validation else None,
            f"latest {metric}": row.last_validation.value if row.last_validation else None,
            **(front_columns(found[row.id]) if found else {}),
            "started": moment(row.started),
            "ended": moment(row.ended),
        }
        for row in rows
    ]
    frame = _pandas().DataFrame(lines)
    return frame.set_index("trial") if lines else frame


def metrics_frame(
    trials: Iterable[TrialDir], group: str, names: Sequence[str] | None
) -> pandas.DataFrame:
    """A line for each trial and step."""
    from detslurm.sdk.trials.metrics import refuse_unknown
    from detslurm.store import column_name, metric_columns

    pd = _pandas()
    frames, trials = [], list(trials)
    seen: set[str] = set()
    for trial in trials:
        # Not in lists: pandas takes the arrays of a compacted file as they are.
        steps, metrics = metric_columns(trial, group, names)
        if len(steps):
            seen.update(metrics)
            columns = {column_name(name, _METRIC_KEYS): metrics[name] for name in metrics}
            frames.append(pd.DataFrame({"trial": trial.id, "steps": steps, **columns}))
    if not frames or set(names or ()) - seen:
        refuse_unknown(trials, group, names)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_METRIC_KEYS)


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("data frames need pandas: pip install pandas") from error
    return pandas
