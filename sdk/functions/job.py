"""One call of an executor as a job with submitit's methods: a trial, its state and its result."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import submitit
from submitit.core.utils import JobPaths, UncompletedJobError

from detslurm._base.states import FINISHED
from detslurm._base.trust import trusted
from detslurm.sdk.client import Client
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.experiments.polling import ExperimentPoller
from detslurm.sdk.trials.logs import failure_excerpt, job_output, lines
from detslurm.sdk.trials.trial import Trial

# As Slurm calls them, which is what submitit gives.
_STATES = {
    "QUEUED": "PENDING",
    "PAUSED": "PENDING",
    "RUNNING": "RUNNING",
    "COMPLETED": "COMPLETED",
    "ERROR": "FAILED",
    "CANCELED": "CANCELLED",
}


class SharedPoller:
    """An experiment that many jobs look at, each as often as it likes: the store is read rarely."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._poller = ExperimentPoller(experiment)
        self._next = 0.0

    def poll(self, *, force: bool = False) -> None:
        """Read the news, unless that was done a moment ago."""
        if force:
            self.experiment.reload()
            self._poller = ExperimentPoller(self.experiment)
        elif time.monotonic() >= self._next:
            self._poller.poll()
            self._next = time.monotonic() + max(0.5, self._poller.rest)


class _Paths(JobPaths):  # type: ignore[misc]
    def __init__(self, folder: Path, trial: Trial, job_id: str) -> None:
        super().__init__(folder, job_id, 0)
        self._trial = trial

    @property
    def submitted_pickle(self) -> Path:
        return self._trial.experiment.path / "code" / "functions.zip"

    @property
    def result_pickle(self) -> Path:
        return self._trial.directory.path / f"result-{self._run}.pkl"

    @property
    def stdout(self) -> Path:
        return self._trial.directory.log_path(self._run)

    @property
    def stderr(self) -> Path:
        return self.stdout

    @property
    def _run(self) -> int:
        return max(self._trial.row.run_count, 1)


class FunctionJob(submitit.Job[Any]):  # type: ignore[misc]
    """submitit's job of one call: `result()`, `exception()`, `done()`, `state`, `cancel()`, ...

    `job_id` is the Slurm job that was submitted for it; its `trial` stays the same when another job
    goes on with it.
    """

    def __init__(self, folder: Path, poller: SharedPoller, trial: Trial) -> None:
        self.trial = trial
        self._poller = poller
        known = trial.experiment._snapshot.job_refs.get(trial.id)
        super().__init__(folder, known.ref if known else str(trial.id))
        self._paths = _Paths(folder, trial, self.job_id)

    def _register_in_watcher(self) -> None:
        """Slurm is not asked for single jobs."""

    @property
    def experiment(self) -> Experiment:
        """The experiment that the trial belongs to."""
        return self.trial.experiment

    @property
    def state(self) -> str:
        """The state in Slurm's words, such as "PENDING", "RUNNING" or "COMPLETED"."""
        self._poller.poll()
        return _STATES.get(self.trial.state, "UNKNOWN")

    def done(self, force_check: bool = False) -> bool:
        """Return whether the call is over. `force_check` reads the store and queries the queue now;
        by default that is done twice a second, and every 30 seconds, at most."""
        if self.trial.state not in FINISHED:
            self._poller.poll(force=force_check)
        return self.trial.state in FINISHED

    def cancel(self, check: bool = True) -> None:
        """End the call now; `check` has no effect (True by default)."""
        self.trial.kill()

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """Return the known facts about the job, queried now if `mode` is "force" (the default)."""
        self._poller.poll(force=mode == "force")
        status = self.trial.job_status
        return {
            "JobID": self.job_id,
            "State": self.state,
            "Reason": (status and status.message) or "",
        }

    def stdout(self) -> str | None:
        """Return its log, with both outputs of all its runs, as text; None before its first run."""
        self._poller.poll()
        if not self.trial.row.run_count:
            return None
        return "\n".join(line.text for line in lines(self.trial.directory)) + "\n"

    def stderr(self) -> str | None:
        """Return what `stdout()` does: a log has both outputs."""
        return self.stdout()

    def submission(self) -> Any:
        """Return the submitted call with the attributes `function`, `args` and `kwargs`. Raises
        `PermissionError` if others can change it."""
        number = str(self.trial.id - self.experiment.view.first_trial)
        with ZipFile(trusted(self.paths.submitted_pickle)) as functions:
            return pickle.loads(functions.read(number))

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        path = self.paths.result_pickle
        if not path.exists():
            raise UncompletedJobError(self._why())
        outcome, result = pickle.loads(trusted(path).read_bytes())
        return outcome, result

    def _why(self) -> str:
        row = self.trial.row
        reason = f": {row.end_reason}" if row.end_reason else ""
        lines = failure_excerpt(self.trial.directory) if row.run_count else job_output(self.trial)
        head = f"job {self.job_id} (trial {self.trial.id}) is {row.state} without a result{reason}"
        return "\n".join([head, *lines])

    def __repr__(self) -> str:
        return f'FunctionJob<job_id={self.job_id}, trial={self.trial.id}, state="{self.state}">'

    def __del__(self) -> None:
        if getattr(self, "_cancel_at_deletion", False) and self.trial.state not in FINISHED:
            self.cancel()

    def __getstate__(self) -> dict[str, Any]:
        store = self.trial.directory.experiment_path.parent.parent
        return {"folder": self.paths.folder, "root": store, "trial": self.trial.id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        trial = Client(state["root"]).stored_trial(state["trial"])
        self.__init__(state["folder"], SharedPoller(trial.experiment), trial)  # type: ignore[misc]
