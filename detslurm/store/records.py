"""The facts of an experiment, each kind with a type that writers and readers rely on.

A kind that is not known was written by a newer version, and is skipped. One whose fields have
other types than these reads as `Corrupt`, with the reason, so that no reader stumbles over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta

from detslurm.store.objectives import SeveralObjectives
from detslurm.store.run_records import Time

LARGEST: Final = 1_000_000
"""How many trial ids one fact may give, and how many stay free for each unreadable fact."""

# Another user of a shared store may write any number.
Id = Annotated[int, Meta(ge=0, le=1 << 53)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Hours = Annotated[float, Meta(ge=0, le=1e12)]
Each = Annotated[int, Meta(ge=1, le=LARGEST)]
Length = Annotated[int, Meta(ge=0)]  # as large as in a configuration: readers only divide by it


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One submission: which jobs run which of the experiment's trials.

    Attributes:
        cluster: The name of the cluster.
        job_id: The id of the job or of the array.
        first_index: The first trial, counted from 0 in the experiment.
        count: The number of trials.
        array: Whether it is an array.
        each: How many trials one element runs, one after the other.
        standby: Whether it is a search's worker that starts when all others are gone.
        adopted: Whether it ran already, and goes on with the trials of a job that died.
        dependency: The jobs that it waits for, as sbatch takes them.
        fact: The number of the fact that records it.
    """

    cluster: str = "slurm"
    job_id: str = ""
    first_index: Count = 0
    count: Count = 1
    array: bool = False
    each: Each = 1
    standby: bool = False
    adopted: bool = False
    dependency: str | None = None
    fact: int = 0

    @property
    def refs(self) -> list[str]:
        """Slurm's names of its elements, or of the plain job."""
        if not self.array:
            return [self.job_id]
        return [f"{self.job_id}_{n}" for n in range(-(-self.count // self.each))]

    @property
    def indices(self) -> range:
        """The indices of the trials that it was submitted for."""
        return range(self.first_index, self.first_index + self.count)


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The common fields of facts: the number in the log, the time and the writer."""

    n: int = 0
    time: Time | None = None
    by: str | None = None


MANIFEST = ".detslurm-environment.json"
"""In the archive of an environment: what a node has to know to use it."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment as it was at the submission, which nodes copy to their own disks."""

    archive: str  # the path of the archive, in the store as it was at the submission
    prefix: str  # where the environment is
    size: Id  # the bytes of the archive; about those that it takes on a node
    files: Id  # how many files are in it
    detslurm: str | None = None  # the version of detslurm that is installed in it; None if none is

    def in_store(self, root: Path) -> Environment:
        """With the archive's path in that store, which may have been moved or copied since."""
        below = Path(self.archive).parts[-2:]
        return msgspec.structs.replace(self, archive=str(root.joinpath(*below)))


class RecordedProvenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The code and software of an experiment; large parts are kept once, under their digests."""

    code: str | None = None  # the digest of the `CodeVersion` (see `detslurm.store.provenance`)
    software: str | None = None  # the digest of the `Software`
    host: str | None = None  # the node of the submission
    detslurm: str | None = None  # the version of detslurm
    optuna: str | None = None  # the version of Optuna, where it draws the samples
    # The parts of the configuration by which jobs may have other software.
    unsure: str | None = None


class Created(Record, frozen=True, tag="created"):
    """The experiment exists; always number 1. Names and texts may be anything that was given."""

    id: Id = 0
    format: Each = 1  # by whose rules it decides until its end
    name: Any = None
    description: Any = None
    labels: Any = None
    notes: Any = None
    workspace: Any = None
    project: Any = None
    owner: str | None = None
    task: str | None = None  # "command", "shell", "notebook", "tensorboard"; None: an experiment
    managed: bool = True  # False: a process made it that was not submitted through detslurm
    first_trial: Id = 0
    trials: Count = 0
    metric: str | None = None
    smaller_is_better: bool = True
    objectives: SeveralObjectives | None = None  # where one metric alone does not decide
    slots: Count | None = None
    pool: str | None = None
    cluster: str | None = None
    max_restarts: int = 0
    on_preempt: str | None = None
    kill_wait: float = 30
    signal_lead: int = 120
    search: bool = False  # results decide, as they come in, which trials there will be
    submit_from_jobs: bool = True
    workers: Count = 1  # how many a search may have at once, `max_slots` aside
    max_slots: Id | None = None
    budget: Hours | None = None  # in slot-hours
    length: Length | None = None  # which its trials train, in the configuration's unit
    runner: str | None = None  # which process runs the method of a custom search
    code_bytes: Id | None = None  # of the frozen code
    parent: Id | None = None  # the experiment that it comes from
    origin: str | None = None  # how: "continue", "fork" or "rerun"
    imported: str | None = None  # what it was, where a bundle was made of it
    import_id: str | None = None  # unlike that of its original and other copies of one bundle
    sources: tuple[int, ...] = ()  # the experiments with checkpoints that it begins with
    source_checkpoint: str | None = None  # what a warm start from a trial meant at the submission
    source_outputs: str | None = None  # the directory of outputs that its trials begin with
    environment: Environment | None = None  # what its nodes stage
    provenance: RecordedProvenance | None = None  # the code and the software that it ran


class Trials(Record, frozen=True, tag="trials"):
    """More trial ids; with `replaces` the index of a trial with invalid hyperparameters."""

    first_trial: Id
    trials: Count
    replaces: Count | None = None


class Submitted(Record, frozen=True, tag="submitted"):
    """Jobs were queued: by a request that can be made again, or from a script of the user's."""

    jobs: tuple[Job, ...] = ()
    request: dict[str, Any] | None = None
    script: dict[str, Any] | None = None


class Deferred(Record, frozen=True, tag="deferred"):
    """Trials for which the queue had no room: no job was submitted for them yet.

    `limit` is what left no room, `charge` what the cluster needs to know to be asked again.
    """

    first_index: Count
    count: Count
    each: Each = 1
    limit: str = ""
    charge: dict[str, Any] | None = None


class Sending(Record, frozen=True, tag="sending"):
    """A process is about to submit deferred trials: no other should."""

    first_index: Count
    count: Count
    job: str = ""  # that does it; empty for a user's command
    process: str = ""  # of the command, by its identity

    @property
    def indices(self) -> range:
        """The indices of the trials."""
        return range(self.first_index, self.first_index + self.count)


class Resubmitting(Record, frozen=True, tag="resubmitting"):
    """A user's command is about to queue new jobs or workers: no other command should.

    `parts` has of each job the index of its first trial, its elements and the trials of each; with
    none, no more jobs of the last announcement will come.
    """

    parts: tuple[tuple[Count, Count, Each], ...] = ()
    process: str = ""  # of the command, by its identity


class AddingWorkers(Record, frozen=True, tag="adding_workers"):
    """A worker of a search is about to submit more of them: no other one should."""

    count: Count = 1
    job: str = ""


class Script(Record, frozen=True, tag="script"):
    """The recorded recipe of a user's batch script; `unknown` is the reason why there is none."""

    command: str | None = None
    given: dict[str, str] | None = None  # of sbatch's options, where its line is in the record
    variables: list[str] | None = None
    options: list[str] | None = None
    arguments: list[str] | None = None
    throttle: int | None = None
    folder: str | None = None
    unknown: str | None = None


class Intent(Record, frozen=True, tag="intent"):
    """The user's wish: pause, activate, cancel, kill, kill_trial, archive, delete ..."""

    intent: str
    trial: Id | None = None
    reason: str | None = None  # of a pause that no user asked for


class Set(Record, frozen=True, tag="set"):
    """The user gave a field of the experiment another value."""

    field: str
    value: Any = None


class Lost(Record, frozen=True, tag="lost"):
    """There is evidence that the jobs of these trials are gone for good."""

    trials: tuple[int, ...] = ()
    reason: str | None = None


class Found(Record, frozen=True, tag="found"):
    """These trials are alive after all."""

    trials: tuple[int, ...] = ()


class Idle(Record, frozen=True, tag="idle"):
    """A run holds its slots and does nothing, by what its runner saw; without a reason it is at
    work again."""

    trial: int
    run: int
    reason: str | None = None


class NodeFailed(Record, frozen=True, tag="node_failed"):
    """Runs failed on a node before their first report, or jobs before their first run, while other
    nodes worked.

    `runs` has the trial (id) and the number of each run. `excluded` keeps the experiment's next
    jobs from there. `suspected`: other runs decide in a moment whether the node is to blame.
    """

    node: str
    suspected: bool = False
    runs: tuple[tuple[int, int], ...] = ()
    jobs: tuple[str, ...] = ()
    excluded: bool = False


class SearchEnded(Record, frozen=True, tag="search_ended"):
    """The search is over: how many trials it created, and how each was closed (by trial id)."""

    created: Count = 0
    closed: dict[int, str | None] = msgspec.field(default_factory=dict)
    verdict: str | None = None
    reason: str | None = None  # where a rule ended it before its trials were used up


class CheckpointDeleted(Record, frozen=True, kw_only=True, tag="checkpoint_deleted"):
    """Checkpoints were removed."""

    uuid: str | None = None
    uuids: tuple[str, ...] = ()


class CheckpointKept(Record, frozen=True, kw_only=True, tag="checkpoint_kept"):
    """These must not be deleted from here on; void where any of them was deleted before.

    Attributes:
        uuids: The checkpoints.
        kept_by: The name of their user in messages.
        holder: The process (`detslurm._base.process.Identity`) that needs them while it lives; None
            for those that last until they are released.
        experiment: The experiment that needs them beyond its holder's life, once it was created.
    """

    uuids: tuple[str, ...]
    kept_by: str
    holder: str | None = None
    experiment: int | None = None


class CheckpointReleased(Record, frozen=True, tag="checkpoint_released"):
    """Fact number `kept` protects nothing any more."""

    kept: int


class CheckpointFilesRemoved(Record, frozen=True, tag="checkpoint_files_removed"):
    """Some files of a checkpoint were removed, or replaced: `resources` are there."""

    uuid: str
    resources: dict[str, Id]


class CheckpointMetadata(Record, frozen=True, kw_only=True, tag="checkpoint_metadata"):
    """The user gave a checkpoint other metadata: first `remove`, then `set`."""

    uuid: str
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    remove: tuple[str, ...] = ()


class CheckpointVerified(Record, frozen=True, tag="checkpoint_verified"):
    """Files were compared with their records: the fault, by checkpoint; None without a fault."""

    problems: dict[str, str | None]


class CheckpointUsed(Record, frozen=True, kw_only=True, tag="checkpoint_used"):
    """A trial has reported that it uses a checkpoint, as the version of a model or by itself."""

    uuid: str
    trial: int
    model: str | None = None
    version: int | None = None


class Corrupt(Record, frozen=True, tag="corrupt"):
    """A fact that can't be read, and why; `missing` where its file was lost."""

    path: str = ""
    problem: str = ""
    missing: bool = False


Fact = (
    Created
    | Trials
    | Submitted
    | Deferred
    | Sending
    | Resubmitting
    | AddingWorkers
    | Script
    | Intent
    | Set
    | Lost
    | Found
    | Idle
    | NodeFailed
    | SearchEnded
    | CheckpointDeleted
    | CheckpointKept
    | CheckpointReleased
    | CheckpointFilesRemoved
    | CheckpointMetadata
    | CheckpointVerified
    | CheckpointUsed
    | Corrupt
)
_KINDS = {kind.__struct_config__.tag: kind for kind in get_args(Fact)}


class _Request(msgspec.Struct):
    folder: str | None = None
    dependency: str | None = None


_SETTINGS: dict[str, Any] = {
    "resource_pool": str | None,
    "max_slots": Id | None,
    "budget": Hours | None,
    "gc_policy": dict[str, Id | None] | None,
}
"""The values of settings that readers compute with; of all others they make text."""


def typed(plain: Mapping[str, Any]) -> Fact | None:
    """A fact with its type; None for a kind that this version does not know."""
    name = plain.get("type")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        return None
    try:
        found: Fact = msgspec.convert(plain, kind, str_keys=True)
        if isinstance(found, Submitted):
            msgspec.convert(found.request, _Request | None)
        elif isinstance(found, Set) and found.field in _SETTINGS:
            msgspec.convert(found.value, _SETTINGS[found.field])
    except msgspec.ValidationError as error:
        n = plain.get("n", 0)
        return Corrupt(n=n, path=f"facts/{n:06d}.json", problem=str(error))
    return found


def plain_of(record: Record) -> dict[str, Any]:
    """A fact as it is written."""
    plain: dict[str, Any] = msgspec.to_builtins(record, str_keys=True)
    return plain
