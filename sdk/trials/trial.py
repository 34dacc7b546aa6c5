"""A trial as an object.

Methods import the modules that do their work: lists and the queue load few of them (tests/perf).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm.sdk import settings
from detslurm.sdk.deprecation import deprecated
from detslurm.sdk.enums import TrialState
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.checkpoints import CheckpointChoice
from detslurm.sdk.jobs.status import JobStatus
from detslurm.sdk.trials.metrics import PROFILE_GROUPS, TrialMetrics, metrics_of, refuse_unknown
from detslurm.store import (
    Columns,
    MetricRow,
    ProfileRow,
    TrialDir,
    TrialRow,
    TrialView,
    in_lists,
    metric_columns,
    trial_metrics,
    trial_profile,
)
from detslurm.store.trial_fold import BATCH_OUTPUTS

if TYPE_CHECKING:
    import pandas

    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.costs.efficiency import Efficiency, UsageRow
    from detslurm.sdk.enums import LogLevel
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.support import SupportBundle
    from detslurm.sdk.trials.log_lines import Filter, LogLine
    from detslurm.store.artifacts import Artifact


class Trial(CheckpointChoice):
    """One trial, as it was when its experiment was read last: `Client().trial(ID)` returns it.

    Methods raise `StoreFault` if a file of the trial can't be read.

    Attributes:
        experiment: The experiment that it belongs to.
        id: The trial's id.
    """

    def __init__(self, experiment: Experiment, trial_id: int) -> None:
        self.experiment = experiment
        self.id = trial_id

    @property
    def directory(self) -> TrialDir:
        """The trial's directory in the store."""
        return self.experiment._snapshot.directory.trial(self.id)

    @property
    def row(self) -> TrialRow:
        """The trial in short, as it was when its experiment was read last."""
        snapshot = self.experiment._snapshot
        known = snapshot.trial_rows.get(self.id)
        # A trial that waits for its first worker is no row of its experiment yet.
        return snapshot.read_trial(self.id).row() if known is None else known

    @cached_property
    def view(self) -> TrialView:
        """Everything about the trial, read when it is first asked for."""
        return self.experiment._snapshot.read_trial(self.id)

    @property
    def state(self) -> TrialState:
        """The trial's state, such as "RUNNING" or "COMPLETED"."""
        return TrialState(self.row.state)

    @property
    def reason(self) -> str | None:
        """Why it is in its state: the exception that ended it, or why its job waits; else None."""
        status = self.job_status
        return self.row.end_reason or (status.message if status else None)

    @property
    def experiment_id(self) -> int:
        """The id of its experiment."""
        return self.experiment.id

    @property
    def hparams(self) -> dict[str, Any]:
        """Its hyperparameters; none before its first run."""
        return self.row.hparams or {}

    @property
    def summary_metrics(self) -> dict[str, Any]:
        """Count, sum, mean, min, max, last and type of each numeric metric, by Determined's name of
        the group: "avg_metrics" for "training", "validation_metrics" for "validation"."""
        from detslurm.sdk.trials.summary_metrics import summary

        return summary(self.metric_rows())

    @property
    def total_checkpoint_size(self) -> int:
        """The bytes of its checkpoints."""
        return sum(c.size for c in self.checkpoints() if c.state != "DELETED")

    def get_checkpoints(
        self, sort_by: str | Any | None = None, order_by: str | Any | None = None
    ) -> list[Checkpoint]:
        """Return the checkpoints, with arguments as in `list_checkpoints`, the newer name."""
        deprecated("Trial.get_checkpoints", "list_checkpoints")
        return self.list_checkpoints(sort_by, order_by)

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """Return one checkpoint; `list_checkpoints` and `top_checkpoint` are the newer names.
        Exactly one of `latest`, `best` (by default False) and `uuid`, a storage id (by default
        None), is given, else it is a `ValueError`; `sort_by` and `smaller_is_better` are as in
        `top_checkpoint`. It is a `LifecycleError` if there is no such checkpoint."""
        deprecated("Trial.select_checkpoint", "list_checkpoints or top_checkpoint")
        if sum((latest, best, uuid is not None)) != 1:
            raise ValueError("give exactly one of latest, best and uuid")
        if uuid is not None:
            return self.find_checkpoint(uuid)
        return (
            self.latest_checkpoint() if latest else self.top_checkpoint(sort_by, smaller_is_better)
        )

    def artifacts(self) -> list[Artifact]:
        """Return the kept images and tables that its code has reported, by name and step, with
        their `data` in the format `media`."""
        from detslurm.sdk.trials.artifacts import shown_artifacts

        if not self.view.artifacts:
            return []
        found = shown_artifacts(self.experiment._snapshot.directory, self.directory)
        return [one for _, some in sorted(found.items()) for one in some]

    def get_experiment(self) -> Experiment:
        """Return its experiment."""
        return self.experiment

    @property
    def job_status(self) -> JobStatus | None:
        """The status of the trial's job; None once the trial is finished."""
        return self.experiment.job_status(self.id)

    @property
    def idle(self) -> str | None:
        """Why its run is known to hold its slots for nothing; None if it is at work."""
        return self.experiment._snapshot.idle.get(self.id)

    def reload(self) -> Trial:
        """Return this object, read again from the store and from the queue."""
        self.experiment.reload()
        self.__dict__.pop("view", None)
        return self

    def kill(self) -> bool:
        """End the trial now; return False if it had already ended."""
        return self.experiment._kill_trial(self.id)

    def support_bundle(self, path: Path | str = ".") -> SupportBundle:
        """Return a new file with the facts that help others to explain the trial's problem, without
        the configuration's secrets: records, the end of the logs, the cluster's view, and what
        `detslurm doctor` finds. `path` is the file, or a directory for it, by default the current
        directory. A file that exists or a missing directory is a `BundleError`."""
        from detslurm.sdk.support import support_bundle

        return support_bundle(self, Path(path).expanduser().absolute())

    def checkpoints(self) -> list[Checkpoint]:
        """Return its committed checkpoints, oldest first; states as for
        `Experiment.checkpoints`."""
        return self.experiment._checkpoints_of([self.id])

    def download(self, uuid: str, target: Path | str) -> Path:
        """Copy the checkpoint `uuid`, as for `find_checkpoint`, with the code of its Trial class to
        the directory `target`, and return that. It is a `LifecycleError` if its files are gone, or
        `target` holds something."""
        return self.find_checkpoint(uuid).download(target)

    def find_checkpoint(self, uuid: str) -> Checkpoint:
        """Return a checkpoint of the trial by its `uuid`, or 4 or more characters of its
        beginning. Raises `LifecycleError` if there is none, or several begin so."""
        from detslurm.sdk.checkpoints.choosing import found_by

        found = [one for one in self.checkpoints() if one.uuid.startswith(uuid)]
        if not found:
            raise LifecycleError(f"{self._named} has no checkpoint {uuid}")
        return found_by(found, uuid)

    def latest_checkpoint(self) -> Checkpoint:
        """Return the newest checkpoint, to go on from; `LifecycleError` if there is none."""
        saved = self.checkpoints()
        found = [one for one in saved if one.state == "COMPLETED" and one.kind is None]
        if not found:
            raise LifecycleError(f"{self._named} has no checkpoint")
        return found[-1]

    def outputs(self) -> Checkpoint:
        """Return the committed outputs of its batch inference (`resources` is their manifest), or
        else its outputs as the last run left them; `LifecycleError` if there are none."""
        kept = [one for one in self.checkpoints() if one.state != "DELETED" and one.kind]
        found = [one for one in kept if one.kind != BATCH_OUTPUTS or one.resources]
        if not found:
            raise LifecycleError(
                f"{self._named} has no outputs: name paths in `outputs` of its configuration, or"
                " write them in `TorchBatchProcessorContext.upload_path()`"
            )
        return found[-1]

    @property
    def _named(self) -> str:
        return f"trial {self.id}"

    def metrics(self, group: str, names: Sequence[str] | None = None) -> Columns:
        """Return the numeric metrics that it reported, as columns for a plot or a data frame.

        The columns follow one clean curve: steps that a later run repeated after a restart are
        there once. `steps` ascend, and `metrics` has for each name a list of floats as long as
        `steps`, NaN where a step has no such number. Both are empty if nothing was reported.

        Args:
            group: The group of metrics, such as "training" or "validation".
            names: Only these metrics; all by default. Nested metrics have dotted names: "top.5".

        Raises:
            ValueError: If it has reported metrics, but none of this group, or none of these names;
                the error lists the known ones. "training" and "validation" may yet come.
        """
        found = in_lists(metric_columns(self.directory, group, names))
        if not found.steps or set(names or ()) - set(found.metrics):
            refuse_unknown([self.directory], group, names)
        return found

    def metric_rows(self, group: str | None = None) -> Iterator[MetricRow]:
        """Yield everything that it reported, numbers or not, by step on one clean curve: a row for
        each group and step, of one `group` such as "training", by default of all. Raises
        `ValueError` if there is no such group, as `metrics` does."""
        empty = True
        for row in trial_metrics(self.directory, group):
            empty = False
            yield row
        if empty:
            refuse_unknown([self.directory], group)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Return the rows with Determined's names; arguments as in `metric_rows`."""
        return metrics_of([self.directory], group)

    def stream_metrics(self, group: str) -> Iterator[TrialMetrics]:
        """Return the same as `iter_metrics`, the newer name; arguments as in `metrics`."""
        deprecated("Trial.stream_metrics", "iter_metrics")
        return self.iter_metrics(group)

    def stream_training_metrics(self) -> Iterator[TrialMetrics]:
        """Return `iter_metrics("training")`; this is its older name."""
        deprecated("Trial.stream_training_metrics", 'iter_metrics("training")')
        return self.iter_metrics("training")

    def stream_validation_metrics(self) -> Iterator[TrialMetrics]:
        """Return `iter_metrics("validation")`; this is its older name."""
        deprecated("Trial.stream_validation_metrics", 'iter_metrics("validation")')
        return self.iter_metrics("validation")

    def logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        container_ids: Sequence[str] | None = None,
        rank_ids: Sequence[int] | None = None,
        stdtypes: Sequence[str] | None = None,
        min_level: LogLevel | str | None = None,
        timestamp_before: str | float | None = None,
        timestamp_after: str | float | None = None,
        sources: Sequence[str] | None = None,
        search_text: str | None = None,
    ) -> Iterable[str]:
        """Return the lines of its log, of all ranks in all of its runs, without line ends.

        Args:
            follow: Whether to wait for more until the trial is over; off by default.
            head: At most this number of lines from the start; by default all.
            tail: At most this number of lines from the end; by default all.
            container_ids: None, the default: lines have no container.
            rank_ids: Only lines of these ranks; by default of all, and of the runner.
            stdtypes: None, the default: both outputs of a process are one stream.
            min_level: Only lines of this level or a higher level; by default of all. A line that
                names no level is INFO, and a traceback ERROR.
            timestamp_before: Only lines before this time, in seconds since 1970 or as RFC 3339; by
                default all.
            timestamp_after: Only lines after this time, likewise; by default all.
            sources: Only lines of "code", which the experiment runs, or of "detslurm"; by default
                of both.
            search_text: Only lines that contain this text; by default all.

        Raises:
            TypeError: If `rank_ids` is no list of integers.
            ValueError: If a time, a level or a source is none, a count is negative, `head` is given
                with `tail` or `follow`, or `container_ids` or `stdtypes` is given.
        """
        from detslurm.sdk.trials import log_lines

        absent = {"container_ids": container_ids, "stdtypes": stdtypes}
        if given := [name for name, value in absent.items() if value is not None]:
            raise ValueError(f"log lines can't be chosen by {', '.join(given)}: they have none")
        for name, count in {"head": head, "tail": tail}.items():
            if count is not None and count < 0:
                raise ValueError(f"{name} is {count}: it must be at least 0")
        ranks = settings.as_list("rank_ids", rank_ids or ())
        wanted = log_lines.Filter(
            frozenset(index(rank) for rank in ranks),
            before=log_lines.bound(timestamp_before),
            after=log_lines.bound(timestamp_after),
            text=search_text,
            level=log_lines.log_level(min_level),
            sources=log_lines.known_sources(sources),
        )
        lines = (line.raw for line in self._lines(wanted, follow, head, tail))
        return lines if follow else log_lines.LogText(lines)

    def iter_logs(self, follow: bool = False, **chosen: Any) -> Iterable[str]:
        """Return the lines of its log, with `**chosen` and other arguments as in `logs`."""
        return self.logs(follow, **chosen)

    def _lines(
        self, wanted: Filter, follow: bool, head: int | None, tail: int | None
    ) -> Iterable[LogLine]:
        from detslurm.sdk.experiments import polling
        from detslurm.sdk.trials import logs

        if head is not None and (tail is not None or follow):
            raise ValueError("head can't be combined with tail or follow")
        if follow:
            return polling.follow_logs(self, wanted, tail_count=tail)
        if found := logs.before_any_run(self, wanted):
            return found[:head] if tail is None else found[max(len(found) - tail, 0) :]
        if tail is not None:
            return logs.tail(self.directory, tail, wanted)
        if head is not None:
            return logs.head(self.directory, head, wanted)
        return logs.lines(self.directory, wanted)

    def metrics_frame(
        self, group: str = "validation", names: Sequence[str] | None = None
    ) -> pandas.DataFrame:
        """Return the numeric metrics that it reported as a data frame of pandas: a line for each
        step, with the columns `trial`, `steps` and the metrics, of which one called so becomes
        `metrics.steps`. The arguments are as in `metrics`; `group` is "validation" by default.
        Raises `ValueError` as `metrics`, `ModuleNotFoundError` without pandas."""
        from detslurm.sdk.frames import metrics_frame

        return metrics_frame([self.directory], group, names)

    def __repr__(self) -> str:
        from detslurm.sdk.display import reason_text

        known = f"id={self.id}, experiment={self.experiment_id}, state={self.row.state!r}"
        return f"Trial({known}{reason_text(self.reason)})"

    def _repr_html_(self) -> str:
        from detslurm.sdk.display import trial_html

        return trial_html(self.row, self.experiment.row.metric)

    def efficiency(self) -> Efficiency:
        """Return its use of GPUs, memory, CPUs, time and energy, by samples of every 15 seconds of
        all runs. An unavailable figure is None, never 0."""
        from detslurm.sdk.costs.efficiency import efficiencies

        facts, queues = self.experiment._snapshot.facts, self.experiment._queues
        (found,) = efficiencies(facts, [(self.directory, self.view)], queues)
        return found

    def usage_history(self) -> list[UsageRow]:
        """Return the trial's use of resources over time: at most 64 rows for each run. The newest
        samples of a run are 15 seconds apart; older ones are averaged."""
        from detslurm.sdk.costs.efficiency import usage_history

        return usage_history(self.directory, self.view)

    def profile(self, group: str | None = None) -> list[ProfileRow]:
        """Return the figures of the profiler on the trial's nodes, in the order of time: a row for
        each report, node and `group`: "cpu", "memory", "disk", "network" or "gpu", by default all;
        any other is a `ValueError`. They are empty if the profiler was never on."""
        if group is not None and group not in PROFILE_GROUPS:
            known = ", ".join(PROFILE_GROUPS)
            raise ValueError(f"the profiler has no group {group!r}; it has {known}")
        return trial_profile(self.directory, group)
