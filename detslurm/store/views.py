"""What folds give: plain immutable views of trials and experiments."""

from __future__ import annotations

from typing import Any

import msgspec

from detslurm.store.errors import Problem


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A committed checkpoint."""

    uuid: str
    trial: int
    run: int
    steps: int
    time: float | None = None
    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    state: str = "COMPLETED"


class ValidationView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One validation on the clean curve; `value` is the searcher metric, None where it lacks."""

    steps: int
    value: float | None
    metrics: dict[str, Any]


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a trial."""

    number: int
    started: float | None = None
    ended: float | None = None
    outcome: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    job: dict[str, Any] = msgspec.field(default_factory=dict)
    host: str | None = None
    resumed_from: str | None = None
    resumed_steps: int = 0


class TrialRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial as a line of a table; `final` once it has its end record, whatever is intended."""

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
    invalid: bool = False  # its code refused its hyperparameters
    exit_code: int | None = None
    latest_checkpoint: CheckpointView | None = None
    best_validation: ValidationView | None = None
    last_validation: ValidationView | None = None


class TrialView(TrialRow, frozen=True, kw_only=True):
    """A trial with all that its files say, metrics of training aside."""

    seed: int | None = None
    runs: tuple[RunView, ...] = ()
    checkpoints: tuple[CheckpointView, ...] = ()
    early_exit: str | None = None  # what the newest run's code asked for, such as invalid_hp
    early_exit_text: str | None = None
    non_retryable: str | None = None  # why the newest run would fail in the same way again
    out_of_ops: bool = False  # the newest run's code saw that the search wants no more for now
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    length: dict[str, Any] | None = None
    problems: tuple[Problem, ...] = ()

    def row(self) -> TrialRow:
        """The part that tables show and summaries keep."""
        return TrialRow(**{name: getattr(self, name) for name in TrialRow.__struct_fields__})


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of all intents: the latest intent counts, and stopping cannot be taken back."""

    paused: bool = False
    stopping: str | None = None  # "cancel" or "kill"
    archived: bool = False
    deleted: bool = False
    killed_trials: frozenset[int] = frozenset()
    fields: dict[str, Any] = msgspec.field(default_factory=dict)

    def stops(self, trial_id: int) -> bool:
        """Whether this trial shall not go on."""
        return self.stopping is not None or trial_id in self.killed_trials

    def kills(self, trial_id: int) -> bool:
        """Whether it shall not even finish what it is at."""
        return self.stopping == "kill" or trial_id in self.killed_trials


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One submission: which jobs run which of the experiment's trials (by index)."""

    cluster: str
    job_id: str
    first_index: int = 0
    count: int = 1
    array: bool = False
    each: int = 1  # how many trials one element runs, one after the other
    standby: bool = False  # a search's worker that comes when all others are gone
    fact: int = 0  # the number of the fact that says so

    @property
    def refs(self) -> list[str]:
        """What Slurm calls its elements, or the plain job."""
        if not self.array:
            return [self.job_id]
        return [f"{self.job_id}_{n}" for n in range(-(-self.count // self.each))]


class ExperimentRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An experiment as a line of a table."""

    id: int
    name: str = ""
    owner: str = ""
    state: str = "ACTIVE"
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
    best_trial: int | None = None
    best_value: float | None = None
    cluster: str | None = None

    @property
    def finished(self) -> bool:
        """Whether the state is final."""
        return self.state in ("COMPLETED", "CANCELED", "ERROR", "DELETED")


class ExperimentView(ExperimentRow, frozen=True, kw_only=True):
    """An experiment with its desired state, jobs and trials."""

    facts: int = 0
    first_trial: int = 0
    max_restarts: int = 0
    desired: DesiredState = DesiredState()
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    trials: tuple[TrialRow, ...] = ()
    problems: tuple[Problem, ...] = ()

    def row(self) -> ExperimentRow:
        """The part that tables show and the index keeps."""
        return ExperimentRow(**{n: getattr(self, n) for n in ExperimentRow.__struct_fields__})
