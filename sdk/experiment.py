"""An experiment as an object: its state, and what its user can do with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError

from detslurm.sdk import settings, unmanaged
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.job_status import JobRef, JobStatus
from detslurm.sdk.snapshot import ExperimentSnapshot, attach_job_status, read
from detslurm.slurm.request import nice_of
from detslurm.store import CheckpointView, ExperimentView, StoreError, TrialRow, fold_facts
from detslurm.store.records import Intent, Set

if TYPE_CHECKING:
    from detslurm.sdk.queues import Queues
    from detslurm.sdk.search_view import SearchView
    from detslurm.sdk.trial import Trial
    from detslurm.storage import SharedFS


class Experiment:
    """One experiment, as it was when it was read last: `Client().experiment(ID)` gives it.

    Methods that change it write to the store first and then act on the queue. A queue that does not
    answer is reported by the client's `warn`: the jobs' runners read the store every minute. Only
    the owner may change an experiment: `LifecycleError` for others.

    Attributes:
        view: Everything about it and its trials, as it was when it was read last.
    """

    def __init__(self, queues: Queues, snapshot: ExperimentSnapshot) -> None:
        self._queues = queues
        self._snapshot = snapshot
        self.view: ExperimentView = snapshot.view

    @property
    def id(self) -> int:
        """The experiment's id."""
        return self._snapshot.directory.id

    @property
    def path(self) -> Path:
        """The experiment's directory in the store."""
        return self._snapshot.directory.path

    @property
    def state(self) -> str:
        """The experiment's state, such as "ACTIVE" or "COMPLETED"."""
        return self.view.state

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.view.name

    def reload(self) -> Experiment:
        """Read it again from the store and, while something is unfinished, query the queue.

        Returns:
            This object.
        """
        self._snapshot = read(self._snapshot.directory)
        attach_job_status([self._snapshot], self._queues)
        self.view = self._snapshot.view
        return self

    # -- what it consists of ---------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, with secrets masked.

        Raises:
            StoreError: If it can't be read.
        """
        from detslurm.config import ExperimentConfig

        plain = self._snapshot.directory.config()
        try:
            return ExperimentConfig.from_dict(plain).masked()
        except ValidationError as error:
            raise StoreError(f"this version does not understand it: {error}") from error

    @property
    def trial_rows(self) -> list[TrialRow]:
        """The experiment's trials in short, by id."""
        return list(self._snapshot.trials.values())

    def job_status(self, trial_id: int) -> JobStatus | None:
        """Return what is known of a trial's job.

        Args:
            trial_id: The trial's id.

        Returns:
            The status, or None for a finished trial.
        """
        return self._snapshot.job_statuses.get(trial_id)

    def trials(self) -> list[Trial]:
        """Return the experiment's trials, by id."""
        from detslurm.sdk.trial import Trial

        return [Trial(self, number) for number in self._snapshot.trials]

    def first_trial(self) -> Trial:
        """Return the trial with the smallest id.

        Raises:
            LifecycleError: If there is no trial yet.
        """
        from detslurm.sdk.trial import Trial

        search = self._snapshot.search
        ids = list(search.created_ids if search is not None else self._snapshot.trials)
        if not ids:
            raise LifecycleError(f"experiment {self.id} has no trials yet")
        return Trial(self, ids[0])

    def checkpoints(self) -> list[CheckpointView]:
        """Return the committed checkpoints of all trials, those that were deleted left out."""
        return [c for trial in self.trials() if trial.row.run_count for c in trial.checkpoints()]

    def as_stored(self, checkpoints: Iterable[CheckpointView]) -> list[CheckpointView]:
        """Compare checkpoints with their storage, if that is a disk that this machine sees.

        Args:
            checkpoints: Checkpoints as they were recorded.

        Returns:
            The same checkpoints; those whose files are gone have the state "DELETED".
        """
        from detslurm.sdk.checkpoints import marked

        found = list(checkpoints)
        return marked(self._disk, found) if found else found

    @cached_property
    def _disk(self) -> SharedFS | None:
        """Looked at once, however many trials ask."""
        from detslurm.sdk.checkpoints import disk_of

        return disk_of(self._snapshot.directory)

    def download_code(self, output_dir: Path | str = ".") -> Path:
        """Pack the code that the experiment runs into `experiment_<id>_model_def.tgz`.

        Args:
            output_dir: Where to put the file; the working directory by default.

        Returns:
            The path of the file.

        Raises:
            LifecycleError: If the submission was interrupted before the code was copied.
        """
        import tarfile

        code = self._snapshot.directory.code
        if not code.is_dir():
            raise LifecycleError(
                f"experiment {self.id} has no code: its submission was interrupted"
            )
        target = Path(output_dir) / f"experiment_{self.id}_model_def.tgz"
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:gz") as archive:
            archive.add(code, arcname=".")
        return target

    # -- intents ----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let running trials save and exit; nothing starts until `activate()`.

        Raises:
            LifecycleError: If the experiment is over.
        """
        self._refuse_when_over("pause")
        self._intent("pause")
        job_refs = self._unfinished_jobs()
        self._queues.pause(job_refs, runners=self.managed)

    def activate(self) -> None:
        """Go on: release jobs that are held, and queue again what lost its job.

        Raises:
            LifecycleError: If the experiment is over or being stopped, or if the queue does not
                answer: what is held then stays held.
        """
        from detslurm.sdk.activation import activate, lost_trials

        if not lost_trials(self._snapshot):
            self._refuse_when_over("activate")
        if self.view.desired.stopping:
            raise LifecycleError(f"experiment {self.id} is {self.state}: it can't continue")
        self._intent("activate")
        if not activate(self._snapshot, self._queues):
            raise LifecycleError(
                f"experiment {self.id} may still be held: {self.view.cluster or 'slurm'} does not "
                "answer; run `activate` again when it does"
            )

    def cancel(self) -> bool:
        """Let running trials save and exit, and end the experiment.

        Returns:
            False if it had already ended.
        """
        act = partial(self._queues.cancel, runners=self.managed)
        return self._stop("cancel", act)

    def kill(self) -> bool:
        """End all jobs of the experiment now.

        Returns:
            False if it had already ended.
        """
        done = self._stop("kill", self._queues.kill)
        if done and self._snapshot.facts.is_unmanaged_script:
            unmanaged.end(map(self._snapshot.directory.trial, self._snapshot.unfinished))
        return done

    def kill_trial(self, trial_id: int) -> bool:
        """End one trial now.

        Args:
            trial_id: The trial's id.

        Returns:
            False if it had already ended.
        """
        if trial_id not in self._snapshot.unfinished:
            return False
        self._intent("kill_trial", trial=trial_id)
        if self._snapshot.facts.is_unmanaged_script:
            unmanaged.end([self._snapshot.directory.trial(trial_id)])
            return True
        known = self._snapshot.job_refs
        job_refs = self._own([known[trial_id]]) if trial_id in known else []
        if self._snapshot.facts.searching or any(job.each > 1 for job in self.view.jobs):
            self._queues.notify(job_refs)  # its job continues with other trials
        else:
            self._queues.kill(job_refs, whole=False)
        return True

    def archive(self) -> None:
        """Leave the experiment out of lists.

        Raises:
            LifecycleError: If it is not finished.
        """
        if not self.view.finished:
            raise LifecycleError(
                f"can't archive experiment {self.id}: it is {self.state}, not finished"
            )
        self._intent("archive")

    def unarchive(self) -> None:
        """Show the experiment in lists again."""
        self._intent("unarchive")

    def delete(self) -> None:
        """Remove the experiment's checkpoints, logs, metrics and code. Its id is not given again.

        Raises:
            LifecycleError: If it is not finished.
        """
        from detslurm.sdk.deletion import delete

        if not self.view.finished:
            raise LifecycleError(
                f"can't delete experiment {self.id}: it is {self.state}; kill it first"
            )
        self._refuse_others()
        delete(self._snapshot)

    # -- settings --------------------------------------------------------------------------------

    def set_name(self, name: str) -> None:
        """Give the experiment another name.

        Args:
            name: One line of printable text.

        Raises:
            LifecycleError: If it is not such a line.
            TypeError: If it is not text.
        """
        self._set("name", settings.line("a name", name))

    def set_description(self, text: str) -> None:
        """Replace the experiment's description.

        Args:
            text: Printable text.

        Raises:
            LifecycleError: If it is not printable.
            TypeError: If it is not text.
        """
        self._set("description", settings.text("a description", text))

    def set_notes(self, text: str) -> None:
        """Replace the experiment's notes.

        Args:
            text: Printable text.

        Raises:
            LifecycleError: If it is not printable.
            TypeError: If it is not text.
        """
        self._set("notes", settings.text("notes", text))

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace the experiment's labels.

        Args:
            labels: Lines of printable text.

        Raises:
            LifecycleError: If one is not such a line.
            TypeError: If one is not text.
        """
        self._set("labels", settings.labels(labels))

    def add_label(self, label: str) -> None:
        """Add a label.

        Args:
            label: One line of printable text.

        Raises:
            LifecycleError: If it is not such a line.
            TypeError: If it is not text.
        """
        settings.line("a label", label)
        self._change_labels(lambda labels: {*labels, label})

    def remove_label(self, label: str) -> None:
        """Remove a label; nothing happens if the experiment does not have it.

        Args:
            label: The label.
        """
        self._change_labels(lambda labels: {*labels} - {label})

    def set_max_slots(self, max_slots: int | None) -> None:
        """Limit how many slots the experiment's trials may hold at once.

        Args:
            max_slots: The number of slots, or None for no limit.

        Raises:
            LifecycleError: If one trial needs more slots.
            TypeError: If it is neither a whole number nor None.
        """
        from detslurm.sdk.resubmission import throttle

        slots = self.view.slots or 1
        if max_slots is not None and settings.whole("max_slots", max_slots) < slots:
            raise LifecycleError(f"{max_slots} slots are less than one trial needs ({slots})")
        self._set("max_slots", max_slots)
        directory = self._snapshot.directory
        at_once = throttle(directory, fold_facts(directory))
        arrays = [p for p in self._unfinished_jobs() if "_" in p.ref]
        self._queues.change(arrays, ArrayTaskThrottle=at_once or 0)

    def set_priority(self, priority: int) -> None:
        """Change the order among the user's own jobs.

        Args:
            priority: From 1 (first) to 99 (last).

        Raises:
            LifecycleError: If it is outside of that range.
            TypeError: If it is not a whole number.
        """
        if not 1 <= settings.whole("priority", priority) <= 99:
            raise LifecycleError(f"priority is 1 (first) to 99 (last), not {priority}")
        self._set("priority", priority)
        self._queues.change(self._unfinished_jobs(), Nice=nice_of(priority))

    # -- how -------------------------------------------------------------------------------------

    def _intent(self, intent: str, **more: Any) -> None:
        self._refuse_others()
        self._snapshot.directory.append(Intent(intent=intent, **more))

    def _set(self, name: str, value: Any) -> None:
        self._refuse_others()
        self._snapshot.directory.append(Set(field=name, value=value))

    def _change_labels(self, change: Callable[[Collection[str]], set[str]]) -> None:
        self.set_labels(change(read(self._snapshot.directory).view.labels))

    def _stop(self, intent: str, act: Callable[..., None]) -> bool:
        if self.view.finished:
            return False
        self._intent(intent)
        act(self._unfinished_jobs())
        return True

    def _refuse_others(self) -> None:
        if owner := self._snapshot.directory.foreign_owner():
            raise LifecycleError(f"experiment {self.id} belongs to {owner}, who alone may do that")

    def _refuse_when_over(self, what: str) -> None:
        if self.view.finished or self.view.desired.stopping:
            raise LifecycleError(f"can't {what} experiment {self.id}: it is {self.state}")

    @property
    def managed(self) -> bool:
        """Whether detslurm submitted it; False for scripts and jobs that the user started."""
        return bool(self._snapshot.facts.created.managed)

    def _unfinished_jobs(self) -> list[JobRef]:
        if self._snapshot.facts.searching:
            return self._own(self._snapshot.worker_jobs)
        known = self._snapshot.job_refs
        return self._own([known[trial] for trial in self._snapshot.unfinished if trial in known])

    def _own(self, job_refs: Sequence[JobRef]) -> list[JobRef]:
        """Those of these jobs that the queue has; not others that were given the same ids."""
        queue = self._queues.query((), queue_only=job_refs)
        for name in sorted(queue.unreachable):
            self._queues.warn(f"{name}'s queue is as it was; runners read the store every minute")
        own = self._snapshot.without_foreign_jobs(queue).jobs
        for job_ref in sorted(queue.jobs.keys() - own.keys()):
            self._queues.warn(
                f"job {job_ref.ref} is left alone: it is another job, to which {job_ref.cluster} "
                f"gave the same id; it works in {queue.jobs[job_ref].folder}"
            )
        return [ref for ref in job_refs if ref in own and not own[ref].final]

    @property
    def search(self) -> SearchView | None:
        """The experiment's search; None if results do not decide which trials there are."""
        return self._snapshot.search

    @property
    def message(self) -> str | None:
        """What the user should know of the whole experiment; None if there is nothing."""
        return self._snapshot.message
