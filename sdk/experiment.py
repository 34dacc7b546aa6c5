"""An experiment as an object: how it stands, and what its user may want of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError

from detslurm.sdk import actions, settings, unmanaged
from detslurm.sdk.lifecycle_errors import LifecycleError
from detslurm.sdk.standing import Place, Standing, judge
from detslurm.sdk.survey import Surveyed, look_at, read
from detslurm.slurm.request import nice_of
from detslurm.store import CheckpointView, ExperimentView, StoreError, TrialRow

if TYPE_CHECKING:
    from detslurm.sdk.client import Client
    from detslurm.sdk.searches import SearchView
    from detslurm.sdk.trial import Trial
    from detslurm.storage import SharedFS


class Experiment:
    """One experiment; `view` is how it stood when it was last looked at."""

    def __init__(self, client: Client, surveyed: Surveyed) -> None:
        self._client = client
        self._surveyed = surveyed
        self.view: ExperimentView = surveyed.view

    @property
    def id(self) -> int:
        """Its id."""
        return self._surveyed.directory.id

    @property
    def path(self) -> Path:
        """Its directory in the store."""
        return self._surveyed.directory.path

    @property
    def state(self) -> str:
        """Its state."""
        return self.view.state

    @property
    def name(self) -> str:
        """Its name."""
        return self.view.name

    def reload(self) -> Experiment:
        """Look again, at the store and, while something is unfinished, at the queue."""
        self._surveyed = read(self._surveyed.directory)
        look_at([self._surveyed], self._client.queues)
        self.view = self._surveyed.view
        return self

    # -- what it consists of ---------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, secrets masked. Raises StoreError where it can't be read."""
        from detslurm.config import ExperimentConfig

        plain = self._surveyed.directory.config()
        try:
            return ExperimentConfig.from_dict(plain).masked()
        except ValidationError as error:
            raise StoreError(f"this version does not understand it: {error}") from error

    @property
    def trial_rows(self) -> list[TrialRow]:
        """How its trials stand, by id."""
        return list(self._surveyed.trials.values())

    def standing(self, trial_id: int) -> Standing | None:
        """What is known of a trial's job; None for finished trials, whose jobs don't matter."""
        return self._surveyed.standings.get(trial_id)

    def trials(self) -> list[Trial]:
        """Its trials, by id."""
        from detslurm.sdk.trial import Trial

        return [Trial(self, number) for number in self._surveyed.trials]

    def first_trial(self) -> Trial:
        """The trial with the smallest id. Raises LifecycleError where there is none."""
        from detslurm.sdk.trial import Trial

        search = self._surveyed.search
        ids = list(search.created_ids if search is not None else self._surveyed.trials)
        if not ids:
            raise LifecycleError(f"experiment {self.id} has no trials yet")
        return Trial(self, ids[0])

    def checkpoints(self) -> list[CheckpointView]:
        """Committed checkpoints of all its trials that were not deleted."""
        return [c for trial in self.trials() if trial.row.run_count for c in trial.checkpoints()]

    def as_stored(self, checkpoints: Iterable[CheckpointView]) -> list[CheckpointView]:
        """Checkpoints as their storage has them, where that is a disk that this machine sees."""
        from detslurm.sdk.checkpoints import marked

        found = list(checkpoints)
        return marked(self._disk, found) if found else found

    @cached_property
    def _disk(self) -> SharedFS | None:
        """Looked at once, however many trials ask."""
        from detslurm.sdk.checkpoints import disk_of

        return disk_of(self._surveyed.directory)

    def download_code(self, output_dir: Path | str = ".") -> Path:
        """Pack the frozen code into `experiment_<id>_model_def.tgz` and return its path."""
        import tarfile

        code = self._surveyed.directory.code
        if not code.is_dir():
            raise LifecycleError(f"experiment {self.id} has no code: its submission broke off")
        target = Path(output_dir) / f"experiment_{self.id}_model_def.tgz"
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:gz") as archive:
            archive.add(code, arcname=".")
        return target

    # -- wishes ----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let running trials checkpoint and leave; nothing starts until `activate`."""
        self._refuse_when_over("pause")
        self._wish("pause")
        places = self._unfinished_places()
        actions.pause(places, self._client.queues, runners=self.managed)

    def activate(self) -> None:
        """Go on: release what is held, and queue again what lost its job.

        Raises LifecycleError where the queue does not answer, for what is held stays so.
        """
        lost = self._lost_trials()
        if not lost:
            self._refuse_when_over("activate")
        if self.view.wishes.stopping:
            raise LifecycleError(f"experiment {self.id} is {self.state}: it can't go on")
        self._wish("activate")
        searching = self._surveyed.facts.searching
        if not (self._activate_search() if searching else self._activate_trials(lost)):
            raise LifecycleError(
                f"experiment {self.id} may still be held: {self._where} does not answer; "
                "say `activate` again when it does"
            )

    def _activate_trials(self, lost: list[int]) -> bool:
        known = self._surveyed.places
        wanted = [known[t] for t in {*self._surveyed.unfinished, *lost} if t in known]
        sight = self._client.queues.look(wanted, since=self.view.created)
        sight = self._surveyed.own(sight)
        trials = sorted({*self._surveyed.unfinished, *lost})
        standings = {trial: judge(known.get(trial), sight) for trial in trials}
        done = actions.release(
            [s.place for s in standings.values() if s.place and s.alive], self._client.queues
        )
        self._resubmit([t for t, s in standings.items() if _is_gone(s, sight.silent)])
        return done and not sight.silent

    def _activate_search(self) -> bool:
        from detslurm.sdk.workers import go_on

        return go_on(self._surveyed, self._client.queues)

    def cancel(self) -> bool:
        """Let running trials checkpoint, then end all; False where it was over already."""
        act = partial(actions.cancel, runners=self.managed)
        return self._stop("cancel", act)

    def kill(self) -> bool:
        """End all its jobs now; False where it was over already."""
        done = self._stop("kill", actions.kill)
        if done and unmanaged.by_hand(self._surveyed):
            unmanaged.end(self._surveyed, self._surveyed.unfinished)
        return done

    def kill_trial(self, trial_id: int) -> bool:
        """End one trial now; False where it was over already."""
        if trial_id not in self._surveyed.unfinished:
            return False
        self._wish("kill_trial", trial=trial_id)
        if unmanaged.by_hand(self._surveyed):
            unmanaged.end(self._surveyed, [trial_id])
            return True
        place = self._surveyed.places.get(trial_id)
        places = [place] if place and place not in self._surveyed.strange else []
        if self._surveyed.facts.searching or any(job.each > 1 for job in self.view.jobs):
            actions.tap(places, self._client.queues)  # its job goes on with other trials
        else:
            actions.kill(places, self._client.queues, whole=False)
        return True

    def archive(self) -> None:
        """Leave it out of lists."""
        if not self.view.finished:
            raise LifecycleError(
                f"can't archive experiment {self.id}: it is {self.state}, not finished"
            )
        self._wish("archive")

    def unarchive(self) -> None:
        """Show it in lists again."""
        self._wish("unarchive")

    def delete(self) -> None:
        """Remove its checkpoints, logs, metrics and code; the id stays taken."""
        from detslurm.sdk.deletion import delete

        if not self.view.finished:
            raise LifecycleError(
                f"can't delete experiment {self.id}: it is {self.state}; kill it first"
            )
        self._refuse_others()
        delete(self._surveyed)

    # -- settings --------------------------------------------------------------------------------

    def set_name(self, name: str) -> None:
        """Give it another name."""
        self._set("name", settings.line("a name", name))

    def set_description(self, text: str) -> None:
        """Describe it anew."""
        self._set("description", settings.text("a description", text))

    def set_notes(self, text: str) -> None:
        """Replace its notes."""
        self._set("notes", settings.text("notes", text))

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels."""
        self._set("labels", settings.labels(labels))

    def add_label(self, label: str) -> None:
        """Add a label."""
        settings.line("a label", label)
        self._change_labels(lambda labels: {*labels, label})

    def remove_label(self, label: str) -> None:
        """Remove a label; one that it does not have is no error."""
        self._change_labels(lambda labels: {*labels} - {label})

    def set_max_slots(self, max_slots: int | None) -> None:
        """How many slots its trials may hold at once; None for any number."""
        slots = self.view.slots or 1
        if max_slots is not None and settings.whole("max_slots", max_slots) < slots:
            raise LifecycleError(f"{max_slots} slots are less than one trial needs ({slots})")
        self._set("max_slots", max_slots)
        throttle = 0 if max_slots is None else max_slots // slots
        arrays = [p for p in self._unfinished_places() if "_" in p.ref]
        actions.change(arrays, self._client.queues, ArrayTaskThrottle=throttle)

    def set_priority(self, priority: int) -> None:
        """From 1 (first) to 99 (last), among one's own jobs."""
        if not 1 <= settings.whole("priority", priority) <= 99:
            raise LifecycleError(f"priority is 1 (first) to 99 (last), not {priority}")
        self._set("priority", priority)
        actions.change(self._unfinished_places(), self._client.queues, Nice=nice_of(priority))

    # -- how -------------------------------------------------------------------------------------

    def _wish(self, wish: str, **more: Any) -> None:
        self._refuse_others()
        self._surveyed.directory.append({"type": "wish", "wish": wish, **more})

    def _set(self, name: str, value: Any) -> None:
        self._refuse_others()
        self._surveyed.directory.append({"type": "set", "field": name, "value": value})

    def _change_labels(self, change: Callable[[Collection[str]], set[str]]) -> None:
        self.set_labels(change(read(self._surveyed.directory).view.labels))

    def _stop(self, wish: str, act: Callable[..., None]) -> bool:
        if self.view.finished:
            return False
        self._wish(wish)
        act(self._unfinished_places(), self._client.queues)
        return True

    def _refuse_others(self) -> None:
        if owner := self._surveyed.directory.foreign_owner():
            raise LifecycleError(f"experiment {self.id} belongs to {owner}, who alone may do that")

    def _refuse_when_over(self, what: str) -> None:
        if self.view.finished or self.view.wishes.stopping:
            raise LifecycleError(f"can't {what} experiment {self.id}: it is {self.state}")

    @property
    def managed(self) -> bool:
        """Whether it was submitted here; False for scripts and jobs that the user began."""
        return bool(self._surveyed.facts.created.get("managed", True))

    def _unfinished_places(self) -> list[Place]:
        if self._surveyed.facts.searching:
            sight = self._client.queues.look((), beside=self._surveyed.workers)
            return list(self._surveyed.own(sight).jobs)
        known, strange = self._surveyed.places, self._surveyed.strange
        places = [known[trial] for trial in self._surveyed.unfinished if trial in known]
        return [place for place in places if place not in strange]

    @property
    def search(self) -> SearchView | None:
        """Its search, where results decide which trials there are."""
        return self._surveyed.search

    @property
    def remark(self) -> str | None:
        """What the user should know of the whole experiment."""
        return self._surveyed.remark

    def _lost_trials(self) -> list[int]:
        """Trials that are over only because their jobs vanished."""
        if self._surveyed.facts.searching:
            return list(self._surveyed.facts.lost)
        lost = self._surveyed.facts.lost
        return [t.id for t in self.trial_rows if t.id in lost and t.state == "ERROR"]

    def _resubmit(self, trials: list[int]) -> None:
        if not trials:
            return
        from detslurm.sdk.resubmission import resubmit

        ids = self._surveyed.facts.trial_ids
        if not self.managed:
            from detslurm.sdk.userscripts import submit_again

            submit_again(self._surveyed.directory, [ids.index(trial) for trial in trials])
            return
        resubmit(
            self._surveyed.directory,
            [ids.index(trial) for trial in trials],
            self._client.queues.cluster(self._where),
        )

    @property
    def _where(self) -> str:
        return self.view.cluster or "slurm"


def _is_gone(standing: Standing, silent: Collection[str]) -> bool:
    """Whether nothing works for a trial any more, as far as anybody can tell.

    A queue that answered without knowing the job counts: the user asked, and should a job work on
    nevertheless, the runners see each other and the newer run wins.
    """
    if standing.place is None or standing.alive is False:
        return True
    # A local cluster forgets nothing: a job that it does not know lives on another machine.
    return (
        standing.alive is None
        and standing.place.cluster not in silent
        and standing.place.cluster != "local"
    )
