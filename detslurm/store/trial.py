"""A trial's directory: its runs, each with a claim, a log of records and an end record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from detslurm._base.states import LOST, TERMINAL
from detslurm.store import fs
from detslurm.store.errors import RunTaken, TrialEnded
from detslurm.store.facts import MISSING, put_record, read_record, refuse_newer
from detslurm.store.run_records import EndRecord, StartRecord, typed_record

_MOST_LOST: Final = 100  # claims of runs in a row
_RUN: Final = re.compile(r"run-(\d+)\.(?:start\.json|end\.json|jsonl)")

HISTORY: Final = 0
"""The number, before all runs, of what a trial has from the trial that it continues."""


_RANK_LOG: Final = re.compile(r"run-(\d+)\.rank(\d+)\.jsonl")


class Run(NamedTuple):
    """One execution of a trial.

    Attributes:
        number: Its number, from 1.
        start: Its claim.
        end: Its end record, None while it has none.
        ranks: The ranks other than the chief that have reported metrics.
    """

    number: int
    start: StartRecord
    end: EndRecord | None
    ranks: tuple[int, ...] = ()

    @property
    def outcome(self) -> str:
        """How it ended; empty while it has no end record."""
        return self.end.outcome if self.end is not None else ""


class RunLogFile(NamedTuple):
    """The log of one rank of a run."""

    run: int  # the number of the run
    rank: int  # the rank that writes it
    path: str
    limit: int | None  # how many bytes of it count; None for all


def with_history(runs: Sequence[Run]) -> list[Run]:
    """The runs; in a continuing trial after the reports of the trial that it continues."""
    if runs and runs[0].start.continued is not None:
        return [Run(HISTORY, StartRecord(), None), *runs]
    return list(runs)


class TrialDir:
    """One trial on disk. Paths need no disk access; the directory is made by its first runner."""

    def __init__(self, path: Path, trial_id: int, experiment_id: int) -> None:
        self.path = path
        self.id = trial_id
        self.experiment_id = experiment_id

    def create(self) -> None:
        """Let the trial's directory exist."""
        fs.ensure_directory(self.path)

    def records_path(self, run: int) -> Path:
        """The run's log of records, which only the run's chief writes."""
        return self.path / f"run-{run}.jsonl"

    def rank_records_path(self, run: int, rank: int) -> Path:
        """The metrics that a rank other than the chief reports; begun with the first."""
        return self.path / f"run-{run}.rank{rank}.jsonl"

    def log_files(self, runs: Sequence[Run]) -> dict[int, list[RunLogFile]]:
        """The logs of each run's ranks with metrics: the chief's is the last, before it the lowest
        rank's. So where later rows win, the lowest rank's do."""
        limits = counted_bytes(runs)
        found: dict[int, list[RunLogFile]] = {}
        for run, _, _, ranks in runs:
            chief = limits.get(str(run))
            # A rank's log that the next run did not see is a zombie's.
            unseen = None if chief is None else 0
            files = found[run] = []
            for rank in sorted(ranks, reverse=True):
                limit = limits.get(f"{run}.{rank}", unseen)
                files.append(RunLogFile(run, rank, str(self.rank_records_path(run, rank)), limit))
            files.append(RunLogFile(run, 0, str(self.records_path(run)), chief))
        return found

    def node_records_path(self, run: int, node: int) -> Path:
        """A node's records by its local chief; the chief's are the run's own log."""
        return self.records_path(run) if node == 0 else self.path / f"run-{run}.node{node}.jsonl"

    def artifacts_path(self, run: int) -> Path:
        """The images and tables that the run's chief reports; begun with the first."""
        return self.path / f"run-{run}.artifacts.jsonl"

    def log_path(self, run: int) -> Path:
        """The run's text log, which only the runner writes."""
        return self.path / f"run-{run}.log"

    def outputs_path(self, run: int) -> Path:
        """The link through which the run's code finds the trial's outputs; gone once the next run
        has begun."""
        return self.path / f"run-{run}.outputs"

    def usage_path(self, run: int) -> Path:
        """The run's usage so far, while it has no end record; only the runner writes it."""
        return self.path / f"run-{run}.usage.json"

    def address_path(self, run: int) -> Path:
        """Where the run's code can be reached; only the run's code writes it."""
        return self.path / f"run-{run}.address.json"

    @property
    def experiment_path(self) -> Path:
        """The directory of its experiment (see `ExperimentDir.at`)."""
        return self.path.parents[2]

    @property
    def metrics_path(self) -> Path:
        """The experiment's compacted metrics, where they exist."""
        return self.experiment_path / "metrics.h5"

    def start_path(self, run: int) -> Path:
        """The file whose existence is the claim of the run."""
        return self.path / f"run-{run}.start.json"

    def end_path(self, run: int) -> Path:
        """The file with the run's end record."""
        return self.path / f"run-{run}.end.json"

    def start(self, run: int, *, fresh: bool = False) -> StartRecord | None:
        """The claim of a run; None without a claim."""
        path = self.start_path(run)
        record = read_record(path, expected=fresh)
        return None if record is None else typed_record(record, StartRecord, path)

    def end(self, run: int, *, fresh: bool = False) -> EndRecord | None:
        """The end record of a run, None while it has none."""
        path = self.end_path(run)
        record = read_record(path, expected=fresh)
        return None if record is None else typed_record(record, EndRecord, path)

    def _claim(self, run: int, record: Mapping[str, Any]) -> bool:
        """Claim a run; exactly one caller of all nodes gets True."""
        return put_record(self.start_path(run), {"type": "run", "run": run, **record})

    def write_end(self, run: int, record: Mapping[str, Any]) -> bool:
        """Write the run's end record; False where there was one before, which then stands."""
        return put_record(self.end_path(run), {"type": "end", "run": run, **record})

    def runs(self) -> list[Run]:
        """All runs by exact name, as the file server has them now: 1, 2, 3 ... until one is not
        claimed. Their logs are not older. A claim that was lost reads as corrupt."""
        # Before anything is read: an end record may be there by now.
        names = fs.refresh(self.path)
        ranks, last = reporting_ranks(names), _last_run(names)
        found: list[Run] = []
        while (start := self._claimed(len(found) + 1, last)) is not None:
            number = len(found) + 1
            found.append(Run(number, start, self.end(number), ranks.get(number, ())))
        return found

    def _claimed(self, run: int, last: int) -> StartRecord | None:
        """The claim of a run, a corrupt one where it was lost: there are files of run `last`."""
        start = self.start(run)
        if start is None and run <= last:
            start = self.start(run, fresh=True)
            path = str(self.start_path(run))
            return start or StartRecord(type="corrupt", path=path, problem=MISSING)
        return start

    def log_sizes(self, runs: Sequence[Run]) -> dict[str, int]:
        """How many bytes the logs of these runs have now: a later run's `counted_bytes`. The log of
        another rank than the chief has the key "RUN.RANK"."""
        files = [file for some in self.log_files(runs).values() for file in some]
        return {
            f"{file.run}.{file.rank}" if file.rank else str(file.run): fs.size_of(file.path) or 0
            for file in files
        }

    def fence(self, run: int, by: Mapping[str, Any]) -> EndRecord:
        """Close an earlier run as lost unless it has its end record; returns the one that stands.

        A zombie of that run can then never end the trial: its own end record comes too late.
        """
        end = {"type": "end", "run": run, "outcome": LOST, "exit_code": None, **by}
        ours = typed_record(end, EndRecord, self.end_path(run))
        return ours if self.write_end(run, end) else self.end(run, fresh=True) or ours

    def open_run(self, record: Mapping[str, Any], after: int | None = None) -> StartRecord:
        """Claim the trial's next run: fence what went before, note what of it counts, claim.

        `record` holds what the caller knows (job, host, time, hparams, seed, resume ...). With a
        `fencing_token`, the number under which a search gave the trial away, the highest token
        prevails: a worker that comes late with a trial that was given to another fences no run.
        With `after` it has to be the run after that number.
        Raises TrialEnded after a terminal end record unless `record` has `continues`, RunTaken when
        another process was faster, NewerFormat after a record of a newer version.
        """
        self.create()
        token = int(record.get("fencing_token") or 0)
        while True:
            runs = self.runs()
            number = len(runs) + 1
            if after not in (None, len(runs)):
                raise RunTaken(f"run {number - 1} of trial {self.id} was opened meanwhile")
            if runs:
                if (runs[-1].start.fencing_token or 0) > token:
                    raise RunTaken(f"trial {self.id} has been given to another worker meanwhile")
                self._close(runs[-1], record)
            start = {
                "type": "run",
                "run": number,
                **record,
                "counted_bytes": self.log_sizes(runs),
            }
            if self._claim(number, start):
                return typed_record(start, StartRecord, self.start_path(number))
            other = self.start(number, fresh=True) or StartRecord()
            if (other.fencing_token or 0) >= token:
                raise RunTaken(f"run {number} of trial {self.id} was claimed by another process")

    def _close(self, last: Run, record: Mapping[str, Any]) -> None:
        died = "it ended without notice (its node or its runner died)"
        reason = f"{died}; run {last.number + 1} took over"
        by = {"reason": reason, "time": record.get("time"), "by": record.get("job")}
        for one in filter(None, (last.start, last.end)):  # by its rules all may be over
            refuse_newer(self.path, one.v)
        end = last.end or self.fence(last.number, by)
        if end.outcome in TERMINAL and not record.get("continues"):
            raise TrialEnded(f"trial {self.id} has ended: {end.outcome}")

    def superseded(self, run: int) -> bool:
        """Whether a later run (or its fence) has made this one a zombie."""
        last = _last_run(fs.refresh(self.path))
        end = self.end(run)
        lost = end is not None and end.outcome == LOST
        return lost or last > run or self.start(run + 1) is not None


def _last_run(names: Iterable[str]) -> int:
    """The largest number of a run of which a file is listed."""
    last = 0
    for number in sorted({int(match[1]) for match in map(_RUN.match, names) if match}):
        if number > last + _MOST_LOST:
            break  # a file that a runner never wrote
        last = number
    return last


def reporting_ranks(names: Iterable[str]) -> dict[int, tuple[int, ...]]:
    """The ranks other than the chief that have reported metrics, by run, from names of a trial's
    files."""
    found: dict[int, tuple[int, ...]] = {}
    for match in filter(None, map(_RANK_LOG.fullmatch, names)):
        run, rank = map(int, match.groups())
        found[run] = (*found.get(run, ()), rank)
    return found


def counted_bytes(runs: Sequence[Run]) -> dict[str, int]:
    """How many bytes of each log count: as many as every later run saw when it began. The keys are
    those of `TrialDir.log_sizes`."""
    bounds: dict[str, int] = {}
    for run in runs:
        for log, seen in run.start.counted_bytes.items():
            if int(log.partition(".")[0]) < run.number:
                bounds[log] = min(seen, bounds.get(log, seen))
    return bounds
