"""The results of folds: plain immutable views of trials and experiments."""

from __future__ import annotations

from typing import Any

import msgspec

from detslurm.store.energy import Energy
from detslurm.store.errors import Problem
from detslurm.store.objectives import SeveralObjectives
from detslurm.store.records import Intent, Job
from detslurm.store.run_records import JobRecord
from detslurm.store.run_usage import RunUsage
from detslurm.store.time_parts import Interval


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A committed checkpoint.

    Attributes:
        uuid: Its storage id.
        trial: The id of the trial that saved it.
        run: The number of the run that saved it.
        steps: How many batches were trained.
        time: When it was committed, in seconds since 1970.
        resources: Its files with their sizes in bytes; directories end in "/".
        metadata: Its metadata, with later changes.
        digests: The sha256 of its files, by name, where a bucket has them; else empty.
        state: "COMPLETED", "PARTIALLY_DELETED" or "DELETED".
        metrics: The validation metrics of exactly its weights; empty if it was not validated.
        problem: The fault of its files that `verify` found; None if there is none.
        storage: The storage that it is in, where that is not the configured storage.
        kind: "outputs" for the contents of a trial's directory of outputs when its last run ended,
            "batch outputs" for the files that its checkpoints have committed; else None.
        deleted_time: When it was deleted, in seconds since 1970; None if it wasn't, or if that is
            not known.
    """

    uuid: str
    trial: int
    run: int
    steps: int
    time: float | None = None
    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    digests: dict[str, str] = msgspec.field(default_factory=dict)
    state: str = "COMPLETED"
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    problem: str | None = None
    storage: dict[str, Any] | None = None
    kind: str | None = None
    deleted_time: float | None = None

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(v for v in self.resources.values() if isinstance(v, int))


class ValidationView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One validation on the clean curve.

    Attributes:
        steps: How many batches were trained.
        value: The searcher's metric; None if the report lacks it.
        metrics: Everything that was reported.
        time: When it was reported, in seconds since 1970; None if unknown.
    """

    steps: int
    value: float | None
    metrics: dict[str, Any]
    time: float | None = None


class AlertView(msgspec.Struct, frozen=True, kw_only=True):
    """A message for people from the code of a trial (`Context.alert`).

    Attributes:
        run: The number of the run.
        time: When it was recorded, in seconds since 1970.
        level: "debug", "info", "warn" or "error".
        title: A short text; None if there is none.
        description: A longer text; None if there is none.
    """

    run: int
    time: float | None = None
    level: str = "info"
    title: str | None = None
    description: str | None = None

    @property
    def text(self) -> str:
        """Title and description."""
        return ": ".join(filter(None, (self.title, self.description)))


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a trial.

    Attributes:
        number: Its number, from 1.
        started: When it began, in seconds since 1970.
        ended: When it ended, in seconds since 1970, by the last record of a lost run; None
            while it goes on.
        outcome: How it ended, such as "completed" or "preempted"; None while it goes on.
        reason: Why it ended so, in a sentence.
        exit_code: The exit code of its entrypoint.
        job: The job that ran it: its cluster, its `ref` there, and its nodes.
        host: The first node.
        resumed_from: The storage id of the checkpoint that it began with; None if it had none.
        resumed_steps: How many batches were trained in that checkpoint.
        steps: How many batches it has trained by its reports and checkpoints, those of earlier runs
            included.
        reported_steps: How many batches its own reports count, by the group that the trial's steps
            are read from; 0 without any.
        usage: Its usage; None while it goes on, and where nothing is known.
        not_staged: Why nodes did not run it from their copies of the environment, by node.
        deleted: The files and directories beside the code that were deleted with its copy: at most
            ten names, and the number of others; None if none are known.
    """

    number: int
    started: float | None = None
    ended: float | None = None
    outcome: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    job: JobRecord = JobRecord()
    host: str | None = None
    resumed_from: str | None = None
    resumed_steps: int = 0
    steps: int = 0
    reported_steps: int = 0
    usage: RunUsage | None = None
    not_staged: dict[str, str] = msgspec.field(default_factory=dict)
    deleted: str | None = None


class TrialRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial in short, as a line of a table.

    Attributes:
        id: Its id.
        experiment_id: The experiment that it belongs to.
        state: QUEUED, RUNNING, PAUSED, COMPLETED, CANCELED, ERROR, or UNKNOWN if a file can't be
            read.
        final: Whether it has its end record, so that its state does not change.
        hparams: Its hyperparameters; None before its first run.
        started: When its first run began, in seconds since 1970.
        ended: When its last run ended, in seconds since 1970; None while it is unfinished.
        run_count: The number of its runs.
        restarts: How many of `max_restarts` it has used.
        steps: How many batches it has trained, by its reports and checkpoints.
        progress: The part of its training that is done, from 0 to 1.
        status: The text of `set_status()`.
        end_reason: Why it is in this state, in a sentence; None if there is no reason.
        invalid: Whether its code declared its hyperparameters invalid.
        interrupted: Whether it is in ERROR by no fault of its code: its code never began, or its
            job was lost.
        exit_code: The exit code of its last run.
        latest_checkpoint: Its newest checkpoint.
        best_validation: The validation with the best searcher metric.
        last_validation: The newest validation.
        run_seconds: The seconds of its runs, of a run that goes on up to its last record; None if
            unknown.
        productive_seconds: The part of them that was training or validation, and was not done
            again.
        wall_seconds: The seconds since its first start, without pauses.
        energy: The energy of its ended runs; None if unknown.
    """

    id: int
    experiment_id: int
    state: str
    final: bool = False
    hparams: dict[str, Any] | None = None
    started: float | None = None
    ended: float | None = None
    run_count: int = 0
    restarts: int = 0
    steps: int = 0
    progress: float = 0.0
    status: str | None = None
    end_reason: str | None = None
    invalid: bool = False
    interrupted: bool = False
    exit_code: int | None = None
    latest_checkpoint: CheckpointView | None = None
    best_validation: ValidationView | None = None
    last_validation: ValidationView | None = None
    run_seconds: float | None = None
    productive_seconds: float | None = None
    wall_seconds: float | None = None
    energy: Energy | None = None


class TrialView(TrialRow, frozen=True, kw_only=True):
    """A trial with everything that its files hold, except metrics of training. As `TrialRow`, and:

    Attributes:
        seed: Its seed.
        continues: The id of the trial of another experiment that it continues; None if it doesn't.
        runs: Its runs, in order.
        checkpoints: Its committed checkpoints, in order.
        early_exit: The request of the newest run's code, such as "invalid_hp".
        early_exit_text: The message that came with it.
        non_retryable: Why the newest run would fail in the same way again; None if it might not.
        out_of_ops: Whether the newest run's code saw that the search wants no more for now.
        asks_to_preempt: Whether the newest run's code has called `should_preempt()`.
        metadata: The values of `set_metadata()`.
        alerts: The records of `Context.alert()`, in order.
        artifacts: Whether it has reported images or tables.
        length: The length and the metric of the newest completed operation.
        storages: The storages that its code has named in place of the configured storage.
        spent: By run, the parts of its time that its code has recorded: start, validation, saves.
        problems: The unreadable records of its files.
    """

    seed: int | None = None
    continues: int | None = None
    runs: tuple[RunView, ...] = ()
    checkpoints: tuple[CheckpointView, ...] = ()
    early_exit: str | None = None
    early_exit_text: str | None = None
    non_retryable: str | None = None
    out_of_ops: bool = False
    asks_to_preempt: bool = False
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    alerts: tuple[AlertView, ...] = ()
    artifacts: bool = False
    length: dict[str, Any] | None = None
    storages: tuple[dict[str, Any], ...] = ()
    spent: dict[int, tuple[Interval, ...]] = msgspec.field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def row(self) -> TrialRow:
        """The part that tables show and summaries keep."""
        return TrialRow(**{name: getattr(self, name) for name in TrialRow.__struct_fields__})


_EXCLUDES = {"priority": ("weight",), "weight": ("priority",)}


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """The user's wish for an experiment: the latest intent counts, and stopping can't be taken
    back.

    Attributes:
        paused: Whether nothing may run.
        pause_reason: Why it was paused, if not by its user.
        stopping: "cancel" or "kill"; None if it is to go on.
        stopped: When it was first asked to stop, in seconds since 1970.
        archived: Whether lists leave it out.
        deleted: Whether it was deleted.
        killed_trials: The ids of trials that were killed.
        fields: Settings that were changed, by name.
    """

    paused: bool = False
    pause_reason: str | None = None
    stopping: str | None = None
    stopped: float | None = None
    archived: bool = False
    deleted: bool = False
    killed_trials: frozenset[int] = frozenset()
    fields: dict[str, Any] = msgspec.field(default_factory=dict)

    def after(self, fact: Intent) -> DesiredState:
        """The user's wish once `fact` was recorded."""
        changed: dict[str, Any] = {}
        intent = fact.intent
        if intent in ("pause", "activate"):
            changed |= {"paused": intent == "pause", "pause_reason": fact.reason}
        elif intent in ("archive", "unarchive"):
            changed["archived"] = intent == "archive"
        elif intent in ("cancel", "kill"):
            changed["stopping"] = "kill" if "kill" in (intent, self.stopping) else "cancel"
            changed["stopped"] = fact.time if self.stopped is None else self.stopped
        elif intent == "kill_trial":
            changed["killed_trials"] = self.killed_trials | {fact.trial or 0}
        elif intent == "delete":
            changed["deleted"] = True
        return msgspec.structs.replace(self, **changed)

    def with_field(self, name: str, value: Any) -> DesiredState:
        """The user's wish once a setting has a value: of two that exclude each other, one."""
        excluded = dict.fromkeys(_EXCLUDES.get(name, ()))
        return msgspec.structs.replace(self, fields={**self.fields, **excluded, name: value})

    def stops(self, trial_id: int) -> bool:
        """Whether this trial shall not go on."""
        return self.stopping is not None or trial_id in self.killed_trials

    def kills(self, trial_id: int) -> bool:
        """Whether it shall not even finish what it is at."""
        return self.stopping == "kill" or trial_id in self.killed_trials


UNCATEGORIZED = "Uncategorized"
"""The place of experiments without a workspace and a project."""


class ExperimentRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An experiment in short, as a line of a table.

    Attributes:
        id: Its id.
        name: Its name.
        owner: The user who submitted it.
        state: ACTIVE, PAUSED, STOPPING_CANCELED, STOPPING_KILLED, COMPLETED, CANCELED, ERROR or
            DELETED.
        pause_reason: Why it is paused, if not by its user.
        end_reason: Why it is in ERROR: the reason of the first trial that failed. Or which rule of
            `searcher.stop` ended it.
        progress: The part of it that is done, from 0 to 1.
        created: When it was submitted, in seconds since 1970.
        started: When its first run began, in seconds since 1970.
        ended: When its last run ended, or, if none began, when it was stopped, in seconds since
            1970; None while it is unfinished.
        pool: The partition; None for the default.
        slots: The number of slots of each trial.
        trial_count: The number of its trials, with those that an unfinished search has yet to
            create.
        trial_states: How many trials are in each state.
        description: Its description.
        labels: Its labels.
        notes: Its notes.
        archived: Whether lists leave it out.
        metric: The searcher's metric.
        smaller_is_better: Whether the best metric is the smallest.
        objectives: The metrics and constraints of its search, if one metric alone does not decide.
        best_trial: The id of the trial with the best searcher metric. With `objectives` the trial
            that is the best by the first metric, of those that keep all constraints.
        best_value: Its searcher metric, or first metric.
        cluster: The name of the cluster.
        parent: The id of the experiment that it comes from; None if it comes from none.
        origin: How it comes from there: "continue", "fork" or "rerun".
        workspace: The workspace that it is in.
        project: The project in that workspace.
        submission: How many of its trials were submitted, and which limit is the reason that not
            all were; empty where all were.
        task: The kind of a task: "command", "shell", "notebook" or "tensorboard"; None for an
            experiment.
        exit_code: The exit code of a task that has ended; None if there is none.
        run_seconds: The seconds of all runs of its trials, as far as they are known; None if no
            run's are.
        productive_seconds: The part of them that was training or validation, and was not done
            again; None as `run_seconds`.
        wall_seconds: The seconds of its trials since their first start, without pauses; None as
            `run_seconds`.
        energy: The energy of its trials that have begun; None if unknown.
        format: By whose rules it decides, see docs/formats.md.
    """

    id: int
    name: str = ""
    owner: str = ""
    state: str = "ACTIVE"
    pause_reason: str | None = None
    end_reason: str | None = None
    progress: float = 0.0
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    pool: str | None = None
    slots: int | None = None
    trial_count: int = 0
    trial_states: dict[str, int] = msgspec.field(default_factory=dict)
    description: str = ""
    labels: tuple[str, ...] = ()
    notes: str = ""
    archived: bool = False
    metric: str | None = None
    smaller_is_better: bool = True
    objectives: SeveralObjectives | None = None
    best_trial: int | None = None
    best_value: float | None = None
    cluster: str | None = None
    parent: int | None = None
    origin: str | None = None
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    submission: str = ""
    task: str | None = None
    exit_code: int | None = None
    run_seconds: float | None = None
    productive_seconds: float | None = None
    wall_seconds: float | None = None
    energy: Energy | None = None
    format: int = 1

    @property
    def reason(self) -> str | None:
        """Why it failed or its search ended early, or why it is paused if not by its user."""
        return self.end_reason or self.pause_reason

    @property
    def finished(self) -> bool:
        """Whether the state is final."""
        return self.state in ("COMPLETED", "CANCELED", "ERROR", "DELETED")


class ExperimentView(ExperimentRow, frozen=True, kw_only=True):
    """An experiment with its desired state, jobs and trials. As `ExperimentRow`, and:

    Attributes:
        fact_count: The number of its facts.
        first_trial: The id of its first trial.
        desired: The user's wish for it.
        jobs: Its submissions, in order.
        trials: Its trials in short, by id.
        failing_nodes: By node, how many runs and jobs failed there at once while other nodes
            worked.
        excluded_nodes: The nodes that its next jobs avoid.
        problems: The unreadable records of its files.
    """

    fact_count: int = 0
    first_trial: int = 0
    desired: DesiredState = DesiredState()
    jobs: tuple[Job, ...] = ()
    trials: tuple[TrialRow, ...] = ()
    failing_nodes: dict[str, int] = msgspec.field(default_factory=dict)
    excluded_nodes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def row(self) -> ExperimentRow:
        """The part that tables show and the index keeps."""
        return ExperimentRow(**{n: getattr(self, n) for n in ExperimentRow.__struct_fields__})
