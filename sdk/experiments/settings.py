"""The settings of an experiment: its name, labels, limits and place in the queue.

Methods import the modules that do their work: lists and the queue load few of them (tests/perf).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from detslurm._base.quantities import counted
from detslurm.sdk import settings
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.base import ExperimentBase
from detslurm.sdk.jobs.status import JobRef
from detslurm.slurm.priority import FIRST, LAST, nice_of, priority_of_weight
from detslurm.store import fold_facts

if TYPE_CHECKING:
    from detslurm.slurm import JobInfo


class Settings(ExperimentBase):
    """The part of `Experiment` that changes its settings. Its methods raise `LifecycleError` for a
    value that is not allowed, `TypeError` for a value of another type."""

    def set_name(self, name: str) -> None:
        """Give the experiment another `name`, one line of printable text."""
        self._set("name", settings.line("a name", name))

    def set_description(self, description: str) -> None:
        """Replace the experiment's `description`, printable text."""
        self._set("description", settings.text("a description", description))

    def set_notes(self, notes: str) -> None:
        """Replace the experiment's `notes`, printable text."""
        self._set("notes", settings.text("notes", notes))

    def move(self, workspace: str, project: str) -> None:
        """Move the experiment to a `project` of a `workspace`, which need not exist before: lines
        of printable text without a slash, such as "vision"."""
        folder = settings.folder("a workspace", workspace), settings.folder("a project", project)
        self._set("folder", folder)

    def move_to_project(self, workspace_name: str, project_name: str) -> None:
        """Move it to `project_name` of `workspace_name`: Determined's name of `move`."""
        self.move(workspace_name, project_name)

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace the experiment's `labels`, lines of printable text."""
        self._set("labels", settings.labels(labels))

    def add_label(self, label: str) -> None:
        """Add a `label`, one line of printable text."""
        settings.line("a label", label)
        self._change_labels(lambda labels: {*labels, label})

    def remove_label(self, label: str) -> None:
        """Remove a `label`; nothing happens if the experiment does not have it."""
        self._change_labels(lambda labels: {*labels} - {label})

    def set_max_slots(self, max_slots: int | None) -> None:
        """Limit the slots that its trials hold at once to `max_slots`, at least those of one trial;
        None for no limit."""
        from detslurm.sdk.experiments.resubmission import throttle

        slots = self.view.slots or 1
        if max_slots is not None and settings.whole("max_slots", max_slots) < slots:
            raise LifecycleError(f"a limit of {max_slots} is less than one trial needs ({slots})")
        self._set("max_slots", max_slots)
        directory = self._snapshot.directory
        at_once = throttle(directory, fold_facts(directory))
        self._throttle(at_once)

    def set_budget(self, slot_hours: float | None) -> None:
        """Limit the slot-hours that the experiment's runs may use together to `slot_hours`, None
        for no limit. Earlier use counts.

        Once they are used, the experiment is paused: its trials save and are held. After a raise of
        the budget `activate()` goes on. Experiments without slots have no budget
        (`LifecycleError`).
        """
        from detslurm.sdk.costs import budget

        if slot_hours is not None:
            self._refuse_others()
            budget.check(self._snapshot, slot_hours)
            budget.open_account(self._snapshot)
        self._set("budget", slot_hours)
        self._queues.notify(self._unfinished_jobs())

    def set_priority(self, priority: int) -> None:
        """Change the order among the user's own jobs, by the nice value; replaces a weight. The
        `priority` is 1 (first) to 99 (last), 42 by default."""
        if not FIRST <= settings.whole("priority", priority) <= LAST:
            raise LifecycleError(f"priority is {FIRST} (first) to {LAST} (last), not {priority}")
        self._set("priority", priority)
        self._queues.change(self._queued(), Nice=nice_of(priority))

    def set_weight(self, weight: float) -> None:
        """Change the order among the user's own jobs by a fair share's weight; replaces a priority.
        Slurm has no such shares: a `weight`, positive and finite, is the priority 42 / `weight`. An
        experiment without a weight has 1."""
        try:
            priority = priority_of_weight(settings.number("weight", weight))
        except ValueError as error:
            raise LifecycleError(str(error)) from None
        self._set("weight", weight)
        self._queues.change(self._queued(), Nice=nice_of(priority))

    def set_resource_pool(self, resource_pool: str) -> None:
        """Move waiting jobs and later submissions to the partition `resource_pool`. Raises
        `SlurmError` if the cluster refuses or does not answer; then nothing is recorded."""
        self._change_pending("resource_pool", resource_pool, "Partition")

    def set_qos(self, qos: str) -> None:
        """Give waiting jobs and later submissions the quality of service `qos`; errors are as for
        `set_resource_pool`."""
        self._change_pending("qos", qos, "QOS")

    def _change_pending(self, name: str, value: str, slurm_name: str) -> None:
        from detslurm.slurm import SlurmError

        settings.line(name, value)
        self._refuse_others()
        queue = self._queue_of(self._jobs_to_end)
        if queue.unreachable:
            raise SlurmError("the queue does not answer: nothing was changed", "Try again later.")
        pending = [ref for ref, job in queue.jobs.items() if job.waiting]
        self._queues.update(pending, **{slurm_name: value})
        if not pending:
            self._ask_about_another(name, value)
        self._set(name, value)

    def _ask_about_another(self, name: str, value: str) -> None:
        """Check a new partition or QOS with the cluster where no waiting job could be moved. A
        wrong name would end later submissions. Raises SlurmError."""
        from detslurm.jobs.resubmit import NeverSubmitted, workers_request
        from detslurm.slurm import SlurmError
        from detslurm.slurm.command import is_submit_limit

        if not self.managed:
            return
        directory = self._snapshot.directory
        facts = [*directory.facts(), {"type": "set", "field": name, "value": value}]
        try:
            request = workers_request(facts, directory, 1)
            self._queues.cluster(self._snapshot.facts.cluster).check(request)
        except NeverSubmitted:
            return
        except SlurmError as refusal:
            if not is_submit_limit(refusal.message):  # else there is no room, whatever the name
                raise

    def _queued(self) -> Mapping[JobRef, JobInfo]:
        """Its jobs in the queue, whose fields no runner changes later."""
        queue = self._queue_of(self._jobs_to_end)
        for name in sorted(queue.unreachable):
            self._queues.warn(
                f"{name}'s queue does not answer: only later submissions have the change. Set it"
                " again once the queue answers"
            )
        return queue.jobs

    def _throttle(self, at_once: int | None) -> None:
        """Divide the trials that may run at once among the throttles of its arrays in the queue;
        jobs of one trial take one each. Arrays that wait for another have the smallest share."""
        from detslurm.slurm import dealt
        from detslurm.slurm.reasons import reason_of

        counts: dict[JobRef, int] = {}
        at_work: dict[JobRef, None] = {}  # in the order of the jobs
        single = 0
        for element, job in self._queued().items():
            array = JobRef(element.cluster, element.job_id)
            in_turn = job.waiting and reason_of(job.reason).category == "dependency"
            if "_" in element.ref:
                counts[array] = counts.get(array, 0) + 1
                if not in_turn:
                    at_work[array] = None
            elif not in_turn:
                single += 1
        first = list(at_work or counts)
        if at_once is None:
            shares = [0] * len(first)
        else:
            shares = dealt(at_once - single, [counts[array] for array in first])
            if first and at_once < (least := single + len(first)):
                others = f" and {counted(single, 'job')} of one trial" if single else ""
                self._queues.warn(
                    f"{counted(len(first), 'array')}{others} are in the queue, and Slurm lets each"
                    f" run one trial at least: {least} may run at once, not {at_once}"
                )
        each = dict(zip(first, shares, strict=True))
        for array in counts:
            self._queues.change([array], ArrayTaskThrottle=each.get(array, min(shares)))

    def _change_labels(self, change: Callable[[Collection[str]], set[str]]) -> None:
        self._change("labels", lambda facts: settings.labels(change(facts.labels)))
