"""Experiments as jobs leave them in a store, and a queue that says what a test wants."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from detslurm.config import load_experiment
from detslurm.jobs.resubmit import submitted_fact
from detslurm.sdk import Client
from detslurm.searcher import Search, State
from detslurm.slurm import (
    Allowance,
    ClusterLimits,
    JobInfo,
    JobRequest,
    PartitionLimits,
    SlurmError,
)
from detslurm.slurm.node_info import NodeInfo
from detslurm.slurm.pending_details import PendingDetails
from detslurm.store import EventLog, ExperimentDir, RunLog, Store, TrialDir
from detslurm.store.records import Created, Set
from tests.store.clients import elsewhere

YAML = """\
name: test
entrypoint: python3 train.py
searcher: {name: grid, metric: loss, max_length: 10}
hyperparameters: {lr: {type: categorical, vals: [0.1, 0.2]}}
data: {secrets: {token: hush-hush}}
slurm: {slot_type: cpu}
"""


SEARCH = YAML.replace(
    "{name: grid, metric: loss, max_length: 10}",
    "{name: async_halving, metric: loss, max_length: {batches: 9}, num_rungs: 2, divisor: 3,"
    " max_trials: 6, max_concurrent_trials: 3}",
)
CUSTOM = YAML.replace("{name: grid, metric: loss, max_length: 10}", "{name: custom, metric: loss}")


@cache
def resolved(text: str = YAML) -> dict[str, Any]:
    """A configuration with all its defaults."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.yaml"
        path.write_text(text)
        return load_experiment(path).config.to_dict()


@dataclass
class Queue:
    """A cluster that is a queue alone: elements by ref, and every change that was asked for."""

    name: str = "slurm"
    jobs: dict[str, JobInfo] = field(default_factory=dict)
    remembered: dict[str, JobInfo] = field(default_factory=dict)
    down: bool = False
    queries: list[list[str]] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    requests: list[JobRequest] = field(default_factory=list)
    rows: list[JobInfo] = field(default_factory=list)
    listings: int = 0
    allowed: Allowance = field(default_factory=Allowance)
    machines: list[NodeInfo] = field(default_factory=list)
    details: PendingDetails = field(default_factory=PendingDetails)
    joules: dict[str, float] = field(default_factory=dict)
    starts: list[float | SlurmError] = field(default_factory=list)

    def put(self, ref: str, state: str, reason: str = "", **more: Any) -> None:
        """Let the queue know an element."""
        self.jobs[ref] = JobInfo(ref=ref, state=state, reason=reason, **more)

    def script(self, request: JobRequest) -> str:
        return ""

    def check(self, request: JobRequest) -> None:
        return None

    def allowance(self, request: JobRequest) -> Allowance:
        return self.allowed

    def allowance_now(self, charge: Mapping[str, Any]) -> Allowance:
        return self.allowed

    def expecting_limits(self) -> AbstractContextManager[None]:
        return nullcontext()

    def limits(self) -> ClusterLimits:
        only = PartitionLimits(name="main", default=True)
        return ClusterLimits(cluster="test", partitions={only.name: only})

    def queue(self, *, partition: str | None = None) -> list[JobInfo]:
        self._answer()
        self.listings += 1
        rows = self.rows or [job for job in self.jobs.values() if not job.final]
        return [row for row in rows if partition is None or partition in row.partitions]

    def nodes(self) -> list[NodeInfo]:
        self._answer()
        return self.machines

    def pending_details(self, job: JobInfo, ref: str, rival: str | None) -> PendingDetails:
        self._answer()
        self.calls.append(("pending_details", ref, rival))
        return self.details

    def start_of(self, options: Sequence[str]) -> float:
        self._answer()
        self.calls.append(("start_of", list(options)))
        answer = self.starts.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    def query(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        self._answer()
        self.queries.append(sorted(job_ids))
        return {ref: self.jobs[ref] for ref in self._of(job_ids)}

    def evidence(
        self, job_ids: Collection[str], *, since: float | None = None
    ) -> dict[str, JobInfo]:
        return {ref: job for ref, job in self.remembered.items() if ref in job_ids}

    def energy(self, job_ids: Collection[str], *, since: float | None) -> dict[str, float]:
        self._answer()
        self.calls.append(("energy", sorted(job_ids), since))
        return {ref: joules for ref, joules in self.joules.items() if ref in job_ids}

    def submit(self, request: JobRequest) -> str:
        self._answer()
        self.requests.append(request)
        job_id = str(100 + len(self.requests))
        for ref in [f"{job_id}_{i}" for i in request.elements] or [job_id]:
            self.put(ref, "PENDING", "Priority")
        return job_id

    def submitted(self, folder: Path, mark: str) -> str | None:
        return None

    def cancel(self, refs: Collection[str], *, pending_only: bool = False) -> None:
        self._note("cancel", refs)
        for ref in self._of(refs):
            if self.jobs[ref].waiting or not pending_only:
                self.jobs[ref] = replace(self.jobs[ref], state="CANCELLED")

    def notify(self, refs: Collection[str], *, steps: bool = False) -> None:
        self._note("notify", refs)

    def requeue(self, ref: str, *, hold: bool = False, only_running: bool = False) -> None:
        self._note("requeue", [ref])

    def hold(self, refs: Collection[str]) -> None:
        self._note("hold", refs)
        for ref in self._of(refs):
            self.jobs[ref] = replace(self.jobs[ref], reason="JobHeldUser")

    def release(self, refs: Collection[str]) -> None:
        self._note("release", refs)
        for ref in self._of(refs):
            self.jobs[ref] = replace(self.jobs[ref], reason="Priority")

    def update(self, ref: str, **fields: str | int) -> None:
        self._note("update", [ref])
        self.calls[-1] = ("update", ref, fields)
        ids = {one.partition("_")[0] for one in ref.split(",")}
        self.rows = [_changed(row, fields) if row.job_id in ids else row for row in self.rows]

    def top(self, ref: str) -> None:
        self._note("top", [ref])

    def _of(self, refs: Collection[str]) -> list[str]:
        return [r for r in self.jobs if r in refs or r.partition("_")[0] in refs]

    def _note(self, verb: str, refs: Collection[str]) -> None:
        self._answer()
        self.calls.append((verb, *refs))

    def _answer(self) -> None:
        if self.down:
            raise SlurmError("Unable to contact slurm controller (connect failure)")


def _changed(row: JobInfo, fields: Mapping[str, str | int]) -> JobInfo:
    """A row of the queue as Slurm has it at once after an update."""
    if "Nice" in fields and row.nice is not None and row.priority:
        nice = int(fields["Nice"])
        row = replace(row, nice=nice, priority=max(row.priority + row.nice - nice, 1))
    if "Partition" in fields and row.waiting:
        row = replace(row, partitions=(str(fields["Partition"]),))
    return row


@dataclass
class Scene:
    """A store, its queue, and the shorthand to fill both."""

    root: Path
    queue: Queue = field(default_factory=Queue)
    warnings: list[str] = field(default_factory=list)
    storage: Path | None = None

    @property
    def checkpoints(self) -> Path:
        """Where they are stored."""
        return self.storage or self.root / "checkpoints"

    @property
    def store(self) -> Store:
        return Store.open(self.root)

    @property
    def client(self) -> Client:
        """A fresh client: nothing remembered from an earlier look."""
        return Client(self.root, warn=self.warnings.append, connect=lambda name: self.queue)

    @elsewhere
    def experiment(
        self,
        trials: int = 1,
        *,
        job: str | None = "7",
        name: str = "test",
        text: str = YAML,
        about: dict[str, Any] | None = None,
    ) -> ExperimentDir:
        """A submitted experiment whose trials wait in the queue (unless `job` is None)."""
        storage = {"type": "shared_fs", "host_path": str(self.checkpoints)}
        known = {"name": name, "owner": "alice", "trials": trials, "metric": "loss", "slots": 1,
                 "pool": "main", "cluster": self.queue.name}  # fmt: skip
        experiment = self.store.create_experiment(
            Created(**{**known, **(about or {})}),
            {**resolved(text), "checkpoint_storage": storage},
            text,
            freeze=lambda stage: (stage / "train.py").write_text("print('hello')\n"),
        )
        if job is not None:
            self.submitted(experiment, job, 0, trials)
        return experiment

    @elsewhere
    def set_policy(self, experiment: ExperimentDir, numbers: dict[str, int]) -> None:
        """Let an experiment keep so many checkpoints."""
        experiment.append(Set(field="gc_policy", value=numbers))

    def search(
        self, text: str = SEARCH, workers: int = 3, trials: int = 6, job: str | None = "7"
    ) -> tuple[ExperimentDir, EventLog[State]]:
        """A submitted search whose workers are a job (unless `job` is None), and its log."""
        about = {"search": True, "workers": workers}
        experiment = self.experiment(trials, job=None, text=text, about=about)
        if workers and job is not None:
            self.submitted(experiment, job, 0, workers)
        log = EventLog(experiment.search, Search(experiment.config()))
        return experiment, log

    @elsewhere
    def works(self, experiment: ExperimentDir, log: EventLog[State], ref: str, **run: Any) -> int:
        """Let a worker take the next trial of a search and run it; the trial's index."""
        self.queue.put(ref, "RUNNING")
        index = log.commit([{"e": "work_requested", "worker": ref}]).assignment(ref)
        assert index is not None
        self.run(experiment, index, ref=ref, **run)
        return index

    @elsewhere
    def submitted(
        self,
        experiment: ExperimentDir,
        job: str,
        first: int,
        count: int,
    ) -> None:
        """Another job of the experiment, pending."""
        request = JobRequest(
            name="det", command=("true",), folder=experiment.jobs,
            count=count if count > 1 else None,
        )  # fmt: skip
        experiment.append(submitted_fact(self.queue.name, job, first, request))
        for ref in [f"{job}_{i}" for i in range(count)] if count > 1 else [job]:
            self.queue.put(ref, "PENDING", "Priority")

    @elsewhere
    def run(
        self,
        experiment: ExperimentDir,
        index: int = 0,
        *,
        losses: Sequence[float] = (),
        others: Mapping[str, float] | None = None,
        checkpoint: str | None = None,
        ref: str = "7",
        resume: dict[str, Any] | None = None,
        log: Sequence[str] = (),
        end: str | None = None,
        reason: str = "",
        nodes: Sequence[str] = (),
        hparams: dict[str, Any] | None = None,
        deleted: str | None = None,
    ) -> TrialDir:
        """A run of one trial; without `end` it goes on."""
        trial = experiment.trial(experiment.created().first_trial + index)
        start = trial.open_run(
            {"hparams": hparams or {"lr": 0.1, "i": index}, "seed": 1, "time": 1000.0, "host": "n1",
             "job": {"cluster": self.queue.name, "ref": ref, "nodes": [*nodes]}, "resume": resume}
        )  # fmt: skip
        number = start.run
        with RunLog.open(trial.records_path(number)) as records:
            at = (resume or {}).get("steps", 0)
            for step, loss in enumerate(losses, at + 1):
                metrics = {"loss": loss, **(others or {})}
                records.append({"t": "metrics", "group": "validation", "steps": step,
                                "metrics": metrics})  # fmt: skip
            if checkpoint is not None:
                self.checkpoint(checkpoint)
                records.commit({"t": "checkpoint", "uuid": checkpoint, "steps": at + len(losses),
                                "resources": {"weights": 5}, "metadata": {}})  # fmt: skip
        say(trial, number, log)
        if end is not None:
            more = {} if deleted is None else {"deleted": deleted}
            trial.write_end(
                number, {"outcome": end, "reason": reason, "exit_code": 0, "time": 2000.0, **more}
            )
        return trial

    def checkpoint(self, uuid: str) -> Path:
        """The files of a checkpoint."""
        path = self.checkpoints / uuid
        path.mkdir(parents=True)
        (path / "weights").write_text("12345")
        return path


def say(trial: TrialDir, run: int, lines: Sequence[str], second: int = 0) -> None:
    """Let the runner append log lines; `1: text` is rank 1's, others are the runner's own."""
    with trial.log_path(run).open("a") as file:
        for line in lines:
            rank, colon, text = line.partition(": ")
            head = f"[rank={rank}] || {text}" if colon and rank.isdigit() else f"|| {line}"
            file.write(f"[2026-11-21T04:46:{second:02d}.000000Z] {head}\n")
