"""Report what training does: metrics, progress, status, metadata."""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base.display import Displayed
from detslurm._base.flag import PreemptFlag
from detslurm.core._console_log import MetricLines
from detslurm.core._distributed import DistributedContext
from detslurm.core._metrics import plain, storable
from detslurm.core._recorder import AnyRecorder
from detslurm.core._reported_steps import ReportedSteps
from detslurm.core._tensorboard import (
    AutoTensorboard,
    FileSelector,
    Mangler,
    TensorboardFiles,
    TensorboardMode,
    everything,
    unmangled,
)
from detslurm.errors import MetricError

if TYPE_CHECKING:
    from detslurm.core._artifacts import ArtifactKind
    from detslurm.core._search import TrialSearch
    from detslurm.store.artifacts import Artifact

logger = logging.getLogger("detslurm.core")


class EarlyExitReason(enum.Enum):
    """Why a trial ends before its time.

    Attributes:
        INVALID_HP: Its hyperparameters make no sense.
        USER_REQUESTED_STOP: Its own code decided to stop.
    """

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TrainContext(Displayed):
    """Report metrics, progress and status of this trial: `core.train`.

    Readers see validation metrics at once, all else within seconds. The metrics of every rank are
    recorded, with their rank; where several ranks report a metric of the same name at one step, the
    lowest rank's stands. Searches decide by the chief's reports alone; progress, status and
    metadata are the chief's, too, and ignored on other ranks. All methods that report or set
    something raise `RuntimeError` after the end of the run, and in a process that was forked from
    it.
    """

    def __init__(
        self,
        dist: DistributedContext,
        recorder: AnyRecorder,
        *,
        flag: PreemptFlag | None,
        search: TrialSearch | None = None,
        best_validation: Callable[[], float | None],
        metadata: Mapping[str, Any] | None,
        tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
        tensorboard: TensorboardFiles | None = None,
        auto_tensorboard: AutoTensorboard | None = None,
        lines: MetricLines | None = None,
        compared: Sequence[str] = (),
        chief_decides: bool = False,
    ) -> None:
        self._dist = dist
        self._recorder = recorder
        self._flag = flag
        self._search = search
        self._best_validation = best_validation
        self._metadata = dict(metadata) if metadata is not None else None
        self._reported: defaultdict[str, ReportedSteps] = defaultdict(ReportedSteps)
        self._exited_early = False
        self._spared_until = -math.inf
        self._tensorboard_mode = tensorboard_mode
        self._tensorboard = tensorboard
        self._auto_tensorboard = auto_tensorboard
        self._lines = lines
        self._compared = compared
        self._lack_was_told: set[str] = set()
        self._made: float | None = time.monotonic()
        self._chief_decides = chief_decides  # by its reports a search does; this is another rank

    def _facts(self) -> dict[str, Any]:
        last = {group: steps.highest for group, steps in self._reported.items()}
        return {"rank": self._dist.rank, "reported": last}

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: dict[str, Any],
        batch_metrics: list[dict[str, Any]] | None = None,
    ) -> None:
        """Report metrics of the group "training".

        Args:
            steps_completed: The number of batches trained so far.
            metrics: Values by name: numbers, arrays, text, lists, mappings.
            batch_metrics: Metrics of each batch since the last report, kept beside them; none by
                default.

        Raises:
            TypeError: If `steps_completed` is not a whole number.
            ValueError: If one of the metrics was already reported at this step, or the steps are
                2**63 or more.
        """
        batches = [plain(batch) for batch in batch_metrics] if batch_metrics else None
        self._report("training", steps_completed, metrics, batches)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of the group "validation", by which searches and `best` checkpoints are
        chosen. Arguments and errors as in `report_training_metrics`.

        A search that stops trials early decides by these reports. When it stops this trial,
        `should_preempt()` returns True.

        Args:
            metrics: Values by name. The searcher's metrics, and those of its constraints, must be
                numbers; NaN, infinities and arrays with a single element are, while text, lists and
                True are not.

        Raises:
            RuntimeError: If a value is None, if a metric of the searcher is not a number, or if the
                search needs its metrics and this report lacks one.
        """
        self._report("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of any group. Metrics of the same group and step are merged. Arguments and
        errors as in `report_training_metrics`, for the group "validation" as in
        `report_validation_metrics`.

        Args:
            group: The name of the group, without a dot, which raises `ValueError`.
        """
        self._report(group, steps_completed, metrics)

    def report_artifact(
        self,
        name: str,
        steps_completed: int,
        artifact: Any,
        *,
        kind: ArtifactKind | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """Report a small image or table, which the trial's page shows by step.

        The chief's are recorded. Of each name the first, the last and steps between are kept, 20
        altogether, and 16 MB of the trial. An artifact that is too large or has no room is dropped
        with a warning.

        Args:
            name: Its name, of at most 200 characters.
            steps_completed: The number of batches trained so far.
            artifact: The path of a PNG, JPEG or SVG file; a figure of matplotlib; an image as an
                array, height by width, or with 1, 3 or 4 channels last or first, of integers to 255
                or floats from 0 to 1; a table, as a list of mappings or a mapping of columns; or
                a value of the given `kind`.
            kind: "histogram" of all numbers of an array, or "confusion_matrix" of a square one with
                the true classes by rows; "image" or "table", the default where it looks like one.
            labels: The names of the classes of a confusion matrix; by default their numbers.

        Raises:
            TypeError: If it is nothing of that, or `steps_completed` is not a whole number.
            ValueError: If its shape or format is none of these, the name is empty or too long, or
                the steps are 2**63 or more.
            OSError: If the file can't be read.

        Example:
            import detslurm as det

            with det.core.init() as core:
                core.train.report_artifact("sample", 1, [[0.0, 0.5], [0.5, 1.0]], kind="image")
        """
        from detslurm.core._artifacts import artifact_of  # only here: most code reports none

        steps = storable(_as_int(steps_completed))
        made = artifact_of(name, steps, artifact, kind, labels)
        if self._dist.rank == 0:
            self._keep_artifact(made)

    def _keep_artifact(self, made: Artifact) -> None:
        from detslurm.store.artifacts import MOST_OF_ONE

        if made.size > MOST_OF_ONE:
            why = f"it has {made.size} bytes (limit {MOST_OF_ONE})"
            logger.warning("artifact %r of step %d is dropped: %s", made.name, made.steps, why)
            return
        try:
            self._recorder.artifact(made)
        except ValueError as error:  # a picture is no reason to end a training
            logger.warning("%s", error)

    def _report(
        self,
        group: str,
        steps: int,
        metrics: Mapping[str, Any],
        batch_metrics: list[dict[str, Any]] | None = None,
    ) -> None:
        if "." in group:
            raise ValueError(f"the metrics group {group!r} must not contain a dot")
        if type(steps) is not int:
            steps = _as_int(steps)
        storable(steps)
        values = plain(metrics)
        if group == "validation":
            _refuse_none(values)
            for name in self._compared:
                self._rate_by(name, metrics, values)
        reported = self._reported[group]
        if repeated := reported.repeated(steps, values.keys()):
            raise ValueError(
                f"{group} metrics {', '.join(repeated)} were already reported at step {steps};"
                " steps count on through all epochs"
            )
        record: dict[str, Any] = {"t": "metrics", "group": group, "steps": steps, "metrics": values}
        if batch_metrics is not None:
            record["batch"] = batch_metrics
        record["time"] = now = time.time()
        self._recorder.record(record)
        if group == "validation":  # there are few of them, and the process may end right here
            self._recorder.flush()
            if self._chief_decides:
                self._chief_decides = False
                logger.warning(
                    "rank %d reports validation metrics. They are recorded, but the search decides"
                    " by those of rank 0 alone: report its metric there",
                    self._dist.rank,
                )
        reported.add(steps, values.keys())
        if self._auto_tensorboard is not None:
            self._auto_tensorboard.metrics(group, steps, values, now)
        if self._lines is not None:
            self._lines.show(group, steps, values)
        if group == "validation" and self._search is not None:
            self._judge(self._search, steps, values)

    def _rate_by(self, name: str, metrics: Mapping[str, Any], values: dict[str, Any]) -> None:
        """Make a number of the searcher's metric; warn once of a report without it."""
        if name in metrics:
            values[name] = _number(name, values.get(name))
            self._lack_was_told.add(name)  # others of the step may come by another call
        elif self._dist.rank == 0 and name not in self._lack_was_told:
            self._lack_was_told.add(name)
            logger.warning(
                "validation metrics without %r, by which checkpoints are rated (searcher.metric in"
                " the configuration): reported were %s",
                name,
                ", ".join(map(repr, values)) or "none",
            )

    def _judge(self, search: TrialSearch, steps: int, values: Mapping[str, Any]) -> None:
        if not search.reported(steps, values) or self._flag is None:
            return
        if search.is_final and steps <= self._spared_until:
            if math.isinf(self._spared_until):  # later come other parts of this and earlier steps
                self._spared_until = steps
            return
        self._flag.request_stop()

    def _spare_the_final(self) -> None:
        """Let code end by itself that has trained to the full length, as it may be about to save
        its result. A validation of a later step shows that it does not end: then it is stopped."""
        self._spared_until = math.inf

    def _spent(self, on: str, seconds: float) -> None:
        """Record the seconds until now that were no training: "start", "validation", "save"."""
        record = {"t": "spent", "on": on, "seconds": round(seconds, 3), "time": time.time()}
        self._recorder.record(record)

    def _training_begins(self) -> None:
        """Record, once, that the time until now was the start."""
        made, self._made = self._made, None
        if made is not None:
            self._spent("start", time.monotonic() - made)

    def _show_nothing(self) -> None:
        """Leave it to the caller to show the reports."""
        self._lines = None

    def report_progress(self, progress: float) -> None:
        """Report how much of the training is done: `progress` is from 0 to 1, all else raises
        `ValueError`.
        """
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"progress must be between 0 and 1, not {progress}")
        self._recorder.record({"t": "progress", "value": float(progress)})

    def set_status(self, status: str) -> None:
        """Show the short text `status` beside the trial; it replaces the last."""
        self._recorder.record({"t": "status", "text": str(status)})

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Replace the metadata of this trial, and return it as recorded, in plain types. `metadata`
        has values that JSON can express; all else raises `TypeError`.
        """
        self._metadata = plain(metadata)
        self._recorder.record({"t": "run_metadata", "data": self._metadata})
        return self._metadata

    def get_metadata(self) -> dict[str, Any] | None:
        """Return the metadata of this trial, or None if none was set."""
        return self._metadata

    def get_experiment_best_validation(self) -> float | None:
        """Return the best searcher metric of the whole experiment so far, or None before the first
        one and outside a job.
        """
        return self._best_validation()

    def get_tensorboard_path(self) -> Path:
        """Return this process's directory for TensorBoard files. Raises `ValueError` if this run is
        not recorded.
        """
        if self._tensorboard is None:
            raise ValueError("there is no TensorBoard path: this run is not recorded")
        return self._tensorboard.path

    def upload_tensorboard_files(
        self, selector: FileSelector = everything, mangler: Mangler = unmangled
    ) -> None:
        """Store the files of this process's TensorBoard directory that are new or have changed.

        Args:
            selector: Gets each path relative to that directory and returns whether to store the
                file; by default all are stored.
            mangler: Gets each path and the rank, and returns the relative path to store the file
                under; by default the path itself.

        Raises:
            RuntimeError: In `TensorboardMode.AUTO`, where the files are stored anyway.
            ValueError: If the mangler gives a path that is not below the trial's folder.
        """
        if self._tensorboard_mode is TensorboardMode.AUTO:
            raise RuntimeError(
                "upload_tensorboard_files() is for core.init(tensorboard_mode="
                "TensorboardMode.MANUAL): in AUTO the files are uploaded anyway"
            )
        if self._tensorboard is not None:
            self._tensorboard.upload(selector, mangler)

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Report that this trial ends early, and the `reason`; the first report counts."""
        self._exit_early(reason)

    def _exit_early(self, reason: EarlyExitReason, text: str | None = None) -> None:
        if self._exited_early:
            logger.warning("an early exit was already reported")
            return
        self._exited_early = True
        self._recorder.commit({"t": "early_exit", "reason": reason.name.lower(), "text": text})
        if self._flag is not None and reason is EarlyExitReason.INVALID_HP:
            self._flag.report_early_exit()


def _as_int(steps: Any) -> int:
    """The steps as an integer, which 100.0 is, too."""
    with contextlib.suppress(AttributeError):
        return int(steps.__index__())
    if isinstance(steps, float) and steps.is_integer():
        return int(steps)
    raise TypeError(f"steps_completed must be a whole number, not {steps!r}")


def _number(name: str, value: Any) -> float | int:
    """The searcher's metric: anything but a number could silently never be the best."""
    found = value
    while isinstance(found, list) and len(found) == 1:  # an array with a single element
        found = found[0]
    if isinstance(found, float | int) and not isinstance(found, bool):
        return found
    raise MetricError(
        f"error parsing searcher metric ({name}) from validation metrics: it is {value!r}"
    )


def _refuse_none(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is None:
            raise RuntimeError(
                f"Validation metric '{name}' returned an invalid scalar value: {value}"
            )
