"""The text logs of a trial: one file a run, read as one log in the order of the runs."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedReader, BytesIO
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from detslurm.sdk.trials.log_lines import EVERYTHING, RANK_PREFIX, Filter, LogLine, parse
from detslurm.store import CorruptRecord, ExperimentDir, TrialDir, fs, open_shown

if TYPE_CHECKING:
    from detslurm.sdk.trials.trial import Trial

_BLOCK = 1 << 16
# The lines of our own logs are shorter; what a job itself prints may have no line end at all.
_LONGEST = 1 << 20
_PRINTED = 20_000  # lines of a job's output that are searched: an array has one file
_EXCERPT_WIDTH = 2000  # of a line that is shown among the facts of a trial

# torchrun logs at length that a worker failed, and Python what fails during its exit, such as
# workers of a data loader that it ended itself; the agent names what goes with the code's folder.
_LEAVING = re.compile(
    r"[EW]\d{4} \S+ \d+ torch/distributed/elastic/|Exception ignored in |detslurm: deleted with "
)


def run_logs(trial: TrialDir) -> list[tuple[int, Path]]:
    """Number and log file of every run of the trial."""
    return [(run.number, trial.log_path(run.number)) for run in trial.runs()]


def lines(trial: TrialDir, wanted: Filter = EVERYTHING) -> Iterator[LogLine]:
    """All lines so far, oldest first."""
    takes = wanted.reader()
    for run, path in run_logs(trial):
        yield from filter(takes, (parse(raw, run) for raw in _forward(path)))


def head(trial: TrialDir, count: int, wanted: Filter = EVERYTHING) -> Iterator[LogLine]:
    """The first lines."""
    return islice(lines(trial, wanted), min(count, sys.maxsize))


def tail(
    trial: TrialDir, count: int, wanted: Filter = EVERYTHING, *, end: int | None = None
) -> list[LogLine]:
    """The last lines, read from the end, of the newest run's first `end` bytes. Levels come from
    the lines before: with them the whole log is read."""
    count = min(count, sys.maxsize)
    if wanted.level is not None:
        return list(deque(lines(trial, wanted), count))
    found: deque[LogLine] = deque()
    for run, path in reversed(run_logs(trial)):
        matching = filter(wanted.takes, (parse(raw, run) for raw in _backward(path, end)))
        end = None
        for line in islice(matching, count - len(found)):
            found.appendleft(line)
        if len(found) >= count:
            break
    return list(found)


def failure_excerpt(trial: TrialDir, most: int = 40) -> list[str]:
    """The traceback that the log ends with, else its last lines; very long ones are cut."""
    recent = [line._replace(text=RANK_PREFIX.sub("", line.text)) for line in tail(trial, 400)]
    start = _last_traceback(recent)
    if start is None:
        return [_cut(line.text) for line in recent[-10:]]
    rank = recent[start].rank
    output = (line.text for line in recent[start:] if line.rank == rank and line.time)
    block = [_cut(text) for text in takewhile(lambda text: _LEAVING.match(text) is None, output)]
    return block if len(block) <= most else [*block[:5], "...", *block[5 - most :]]


def job_output(trial: Trial, most: int = 10) -> list[str]:
    """Output of the trial's jobs before any run began, such as the error of a setup line."""
    for job in reversed(trial.experiment.view.jobs):
        path = _output(trial.directory.experiment_path, job.job_id)
        try:
            text = [_cut(line) for line in islice(_backward(path), most)]
        except PermissionError:
            return [f"The output of its job is for its owner alone ({path})."]
        if text:
            return [f"The job's output ({path}) ends with:", *text[::-1]]
    return []


def before_any_run(trial: Trial, wanted: Filter = EVERYTHING) -> list[LogLine]:
    """The log of a trial that failed without a run: the end of its job's output. The jobs of an
    array print into one file, which proves nothing for a trial that its user ended."""
    if trial.state != "ERROR" or trial.directory.runs():
        return []
    return list(filter(wanted.reader(), (parse(raw, 0) for raw in job_output(trial, 1000))))


def printed(experiment: ExperimentDir, job_id: str) -> Iterator[str]:
    """The last lines that a job printed, newest first; none where they can't be read."""
    with suppress(OSError):
        yield from islice(_backward(_output(experiment.path, job_id)), _PRINTED)


def _output(experiment: Path, job_id: str) -> Path:
    return experiment / "jobs" / f"slurm-{job_id}.out"


def _cut(text: str) -> str:
    return text if len(text) <= _EXCERPT_WIDTH else text[:_EXCERPT_WIDTH] + " ..."


def _last_traceback(recent: list[LogLine]) -> int | None:
    places = (i for i, line in enumerate(recent) if line.text.startswith("Traceback (most recent"))
    # Several ranks fail together, the first of them for the real reason; chained exceptions follow
    # one another without another line of the runner between them.
    start: int | None = None
    for place in places:
        between = recent[start:place] if start is not None else []
        if start is None or any(line.rank is None for line in between):
            start = place
    return start


def _forward(path: Path) -> Iterator[str]:
    with _readable(path) as file:
        while line := file.readline(_LONGEST):
            yield line.decode("utf-8", "replace").rstrip("\n")


def _opened(path: Path) -> BufferedReader:
    """The log of a trial's run, or what a job printed."""
    return open_shown(path, path.parents[1 if path.parent.name == "jobs" else 3])


def _readable(path: Path) -> BinaryIO:
    """The same; empty where there is none, and the reason where it can't be shown."""
    try:
        return _opened(path)
    except FileNotFoundError:
        return BytesIO()
    except CorruptRecord as error:
        return BytesIO(str(error).encode())


def _backward(path: Path, end: int | None = None) -> Iterator[str]:
    """Lines from the last to the first, of the first `end` bytes."""
    with _readable(path) as file:
        position = file.seek(0, 2) if end is None else end
        rest: bytes | None = None
        while position > 0:
            size = min(_BLOCK, position)
            position -= size
            file.seek(position)
            first, *whole = (file.read(size) + (rest or b"")).split(b"\n")
            if rest is None and whole and not whole[-1]:
                whole.pop()  # the newline at the end of the file begins no line
            yield from (raw.decode("utf-8", "replace") for raw in reversed(whole))
            rest = first
            if len(rest) > _LONGEST:
                yield rest.decode("utf-8", "replace")
                rest = b""
        if rest:
            yield rest.decode("utf-8", "replace")


class Appended:
    """A log file that grows: whole lines, as far as they are written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[str]:
        """The lines since the last call."""
        try:
            # Opened again each time, so that a file server shows what another node wrote.
            with _opened(self._path) as file:
                file.seek(self._offset)
                while data := file.read(_LONGEST):
                    yield from self._lines(data)
        except (FileNotFoundError, CorruptRecord):
            return

    def _lines(self, data: bytes) -> Iterator[str]:
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            whole, self._rest = [*whole, self._rest], b""
        return (line.decode("utf-8", "replace") for line in whole)

    def rest(self) -> Iterator[str]:
        """Text without the end of a line, once nothing more is written."""
        if self._rest:
            yield self._rest.decode("utf-8", "replace")

    def skip(self) -> int:
        """Begin at the present end; returns its position."""
        try:
            self._offset = self._path.stat().st_size
        except FileNotFoundError:
            pass
        return self._offset


def follow(
    trial: TrialDir,
    is_over: Callable[[int], bool],
    idle: Callable[[], None],
    wanted: Filter = EVERYTHING,
    *,
    tail_count: int | None = None,
) -> Iterator[LogLine]:
    """Yield lines as they come, across restarts and requeues, until `is_over(run)` of the newest
    run. `idle` is called whenever nothing is new, and waits."""
    run = 1
    if tail_count is not None:
        run = max((number for number, _ in run_logs(trial)), default=1)
    log = Appended(trial.log_path(run))
    takes = wanted.reader()
    if tail_count is not None:
        yield from tail(trial, tail_count, wanted, end=log.skip())
    while True:
        # Asked before the last read, so that nothing can be written in between.
        last = is_over(run)
        fs.refresh(trial.path)
        closed = trial.start(run + 1) is not None
        ended = closed or last
        new = chain(log.read(), log.rest()) if ended else log.read()
        yield from filter(takes, (parse(raw, run) for raw in new))
        if closed:
            run += 1
            log = Appended(trial.log_path(run))
        elif last:
            return
        else:
            idle()
