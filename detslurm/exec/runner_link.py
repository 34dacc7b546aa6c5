"""An agent's messages to its runner: lines of the log, searched for log policies, and reports."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm.config.run_config import RunLogPolicy
from detslurm.exec import agent_protocol
from detslurm.exec.agent_loop import FileEvent, PipeWriter
from detslurm.exec.log_policies import LogPolicies, PatternMatcher, PolicyMatch
from detslurm.slurm import Allocation
from detslurm.store import StoreError
from detslurm.store.fs import write_all

if TYPE_CHECKING:
    from detslurm.exec.recorder import RunRecorder


class RunnerLink:
    """Sends the lines and the reports of one node; what the pipe does not take yet waits here."""

    def __init__(self, rank: int, policies: Iterable[RunLogPolicy]) -> None:
        self.copy: Path | None = None
        """The copy of the code, in which it runs."""
        self.recorder: RunRecorder | None = None
        """It searches what the code prints for metrics."""
        self.last_line = ""
        """The last line that the code printed."""
        self._rank = rank
        self._policies = LogPolicies(policies)
        self._pipe = PipeWriter(1)
        self._frame_of_copy: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether the runner or a matcher needs time before it should get more lines."""
        behind = self.recorder is not None and self.recorder.is_behind
        return behind or self._pipe.full or self._policies.behind

    @property
    def is_waiting(self) -> bool:
        """Whether the pipe has not taken all that was sent."""
        return self._pipe.waiting

    @property
    def own_processes(self) -> list[int]:
        """The processes that search the log or record the code's metrics."""
        found = [matcher.pid for matcher in self._policies.matchers]
        return found if self.recorder is None else [*found, *self.recorder.pids]

    def events(self) -> Iterator[FileEvent]:
        """The files to wait for at this moment."""
        if self._pipe.waiting:
            yield self._pipe.fileno(), selectors.EVENT_WRITE, self._pipe.push
        for matcher in self._policies.matchers:
            yield matcher.fileno(), selectors.EVENT_READ, partial(self._on_matcher, matcher)
            if matcher.writer.waiting:
                yield matcher.writer.fileno(), selectors.EVENT_WRITE, matcher.push
        if self.recorder is not None:
            yield from self.recorder.events()

    def report(self, event: str, **fields: Any) -> None:
        """Send a report about this node."""
        report = {"event": event, "node": self._rank, **fields}
        self._pipe.put(agent_protocol.report_line(report))

    def log_message(self, text: str) -> None:
        """Send a line of detslurm's own."""
        self._log([f"detslurm: {text}"])

    def log_output(self, lines: Iterable[bytes]) -> None:
        """Send lines that the code printed."""
        texts = [self._with_own_names(line.decode("utf-8", "replace")) for line in lines]
        self.last_line = next(filter(str.strip, reversed(texts)), self.last_line)
        self._log(texts)
        if self.recorder is not None:
            self.recorder.search(texts)

    def _with_own_names(self, text: str) -> str:
        # The copy is deleted, but its user has the same files: tracebacks name them relative to it.
        if 'File "' not in text or self.copy is None:
            return text
        if self._frame_of_copy is None:  # only here: most code has no traceback
            self._frame_of_copy = f'File "{self.copy.resolve()}/'
        return text.replace(self._frame_of_copy, 'File "')

    def _log(self, lines: list[str]) -> None:
        for match in self._policies.matches(lines):
            self._report_match(match)
        out = []
        for line in lines:
            line = agent_protocol.sanitized(line)
            line = line if line.startswith("[rank=") else f"[rank={self._rank}] {line}"
            out.append(agent_protocol.log_line(self._rank, line))
        if out:
            self._pipe.put(b"".join(out))

    def _report_match(self, match: PolicyMatch) -> None:
        self.report("policy", name=match.name, action=match.action)

    def _on_matcher(self, matcher: PatternMatcher) -> None:
        found = matcher.result()
        self._policies.matchers.remove(matcher)
        if found:
            self._report_match(matcher.match)
        elif found is None:
            self.log_message(
                f"log policy {matcher.match.name!r} is no longer looked for:"
                " its pattern takes too long on what the code prints"
            )

    def end_search(self, wait: Callable[[float], None], seconds: float) -> None:
        """Wait for what the log policies still find in the last lines, for so long at most."""
        self._policies.close()
        deadline = time.monotonic() + seconds
        while self._policies.matchers and time.monotonic() < deadline:
            wait(0.5)
        for match in self._policies.abandon():
            self.log_message(f"the last lines were not searched for log policy {match.name!r}")


def next_run() -> tuple[int, int] | None:
    """Report that this agent is free, and wait for its next run: trial and number.

    None at the end of the job. Commands for the run before, which came too late, are passed over.
    """
    write_all(1, agent_protocol.report_line({"event": "free", "node": 0}))
    line = b""
    # Byte by byte: what follows, such as the order to stop, is for the agent of that run.
    while byte := os.read(0, 1):
        line += byte
        if byte == b"\n":
            if line.startswith(agent_protocol.RUN.encode()):
                trial_id, run = map(int, line.split()[1:])
                return trial_id, run
            line = b""
    return None


def report_unread(error: StoreError) -> int:
    """Report that this node could not become an agent, and is to blame; returns its status."""
    allocation = Allocation.from_environment()
    why = f"{os.uname().nodename} can't read the store: {error}"
    if allocation is None:
        raise SystemExit(f"detslurm agent: {why}")
    node = allocation.node_rank
    ended = {"event": "ended", "node": node, "exit_code": 1, "by_itself": 1, "why": why}
    untouched = {"preempted": False, "acknowledged": False, "unprepared": True}
    write_all(1, agent_protocol.log_line(node, f"[rank={node}] detslurm: {why}"))
    write_all(1, agent_protocol.report_line(ended | untouched))
    return 1
