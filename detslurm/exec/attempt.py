"""One attempt: one step with an agent on every node, watched from its start to its end."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detslurm.exec import control
from detslurm.exec.lines import LineSplitter
from detslurm.exec.outcome import Cause
from detslurm.exec.processes import exit_status
from detslurm.exec.signals import SignalInbox
from detslurm.exec.textlog import TextLog
from detslurm.slurm.command import is_transient
from detslurm.store.fs import write_all

if TYPE_CHECKING:
    from detslurm.exec.failure import Failure

# How often the runner looks at the user's intents by itself; the CLI can
# notify it to do so at once.
_LOOK_EVERY = 60.0
# srun says this at every step on clusters without a task plugin, --quiet or not; of the ranks that
# it starts for a launcher too.
_NOISE = re.compile(r"(\[rank=\d+\] )?srun: cluster configuration lacks support for cpu binding")
# srun says this of a job that Slurm is ending: in the grace of a preemption before anybody else.
_REFUSAL = "already completing or completed"
# After a rank has raised InvalidHP the others get this long to leave by themselves: where it was a
# worker, they may wait for it in vain.
_INVALID_GRACE = 10.0
# How long a step may take to die after its agents were told to kill.
_KILL_GRACE = 10.0


@dataclass
class Report:
    """What an attempt came to, as far as the runner saw it."""

    exit_code: int = 0
    cause: Cause | None = None
    acknowledged: bool = False
    invalid_hp: bool = False
    cancel_retries: str | None = None
    exclude: list[str] = field(default_factory=list)
    began: bool = False  # a step that never began is no fault of the code's
    refused: bool = False  # Slurm starts no more steps in this job
    unanswered: bool = False  # srun found no controller that could start the step
    vanished: bool = False  # an agent was gone without a word, and what it ran may live on
    non_retryable: str | None = None  # why no step can begin here
    why: str | None = None  # what went wrong, where the exit code does not tell
    at_once: bool = False  # it was over before long
    failure: Failure | None = None  # an error of the code, met at once
    job_is_ending: bool = False
    give_way: bool = False  # Slurm wants the allocation back, whatever becomes of the trial


@dataclass(frozen=True)
class Limits:
    """Seconds: from a request to stop to the kill, and from Slurm's TERM to its KILL.

    `meeting` is from the arrival of the first node's agent to that of the last one's.
    """

    preemption_timeout: float
    kill_wait: float
    meeting: float = 600.0  # where a thousand nodes start at once, file systems are slow


class Attempt:
    """Runs one step; `look` tells what the user wants, the inbox what Slurm wants."""

    def __init__(
        self,
        argv: Sequence[str],
        nodes: Sequence[str],
        *,
        inbox: SignalInbox,
        log: TextLog,
        look: Callable[[], Cause | None],
        why_signalled: Callable[[], Cause],
        end_reason: Callable[[], Cause],
        limits: Limits,
    ) -> None:
        self._nodes, self._inbox, self._log = nodes, inbox, log
        self._look, self._limits = look, limits
        self._why_signalled, self._end_reason = why_signalled, end_reason
        self._report = Report()
        self._lines = LineSplitter(rewrites=False)  # no report may be taken for a rewrite
        self._whole = control.Reassembler()
        self._exit_codes: dict[int, int] = {}
        self._acknowledged: dict[int, bool] = {}
        self._here: dict[int, dict[str, Any]] = {}
        self._first_failure: int | None = None
        self._heard_from_agents = False
        self._meet_by: float | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._next_look = time.monotonic() + _LOOK_EVERY
        self._step = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )

    def run(self) -> Report:
        """Watch the step to its end."""
        assert self._step.stdout is not None
        fd = self._step.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            selector.register(self._inbox.fileno(), selectors.EVENT_READ)
            self._on_intent(self._look())
            while not self._given_up():
                ready = {key.fd for key, _ in selector.select(self._timeout())}
                if self._inbox.fileno() in ready:
                    self._on_signals()
                if fd in ready and not self._read(fd):
                    break
                self._on_time()
        self._finish()
        return self._report

    # -- what comes in ---------------------------------------------------------------------------

    def _read(self, fd: int) -> bool:
        chunk = os.read(fd, 65536)
        lines = self._lines.feed(chunk) if chunk else self._lines.close()
        text = []
        for data in lines:
            line = self._whole.line(data)
            if line is None:
                continue
            report = control.parse_report(line)
            if report is None:
                if not _NOISE.fullmatch(line):
                    text.append(line)
                if line.startswith("srun: "):
                    self._report.refused |= _REFUSAL in line
                    self._report.unanswered |= is_transient(line)
            else:
                self._on_report(report)
        if text:
            self._log.write(text)
        return bool(chunk)

    def _on_report(self, report: dict[str, Any]) -> None:
        event, node = report.get("event"), int(report.get("node", 0))
        self._report.began = True
        if event == "here":
            self._here[node] = report
            self._meet_by = self._meet_by or time.monotonic() + self._limits.meeting
            if len(self._here) == len(self._nodes):
                self._meet_by = None
                self._introduce()
        elif event == "preempted":
            self._heard_from_agents |= self._report.cause is None
            self._stop(Cause.PREEMPTION)
        elif event == "stop":
            self._stop(Cause.STOP)
        elif event == "invalid_hp":
            self._report.invalid_hp = True
            self._kill_by(_INVALID_GRACE)
        elif event == "policy":
            self._on_policy(node, str(report["name"]), report.get("action"))
        elif event == "ended":
            self._on_end(node, report)

    def _on_end(self, node: int, report: dict[str, Any]) -> None:
        code = int(report["exit_code"])
        self._exit_codes[node] = code
        self._acknowledged[node] = bool(report["acknowledged"])
        self._report.why = self._report.why or report.get("why")
        if code and not report["preempted"]:
            self._first_failure = self._first_failure or code
            if len(self._exit_codes) < len(self._nodes):
                self._log.say(f"the code on {self._nodes[node]} failed: ending the other nodes")
                self._kill()

    def _on_policy(self, node: int, name: str, action: str | None) -> None:
        self._log.say(f"log policy {name!r} matched on {self._nodes[node]}")
        if action == "cancel_retries":
            self._report.cancel_retries = name
        elif action == "exclude_node":
            self._report.exclude.append(self._nodes[node])

    def _on_signals(self) -> None:
        signals = self._inbox.take()
        if signal.SIGTERM in signals:
            # The whole job is being ended: there is KillWait left to write down how.
            self._report.job_is_ending = True
            self._give_up_at = time.monotonic() + self._limits.kill_wait / 2
            if self._heard_from_agents:
                self._report.cause = None  # they can't tell a preemption from other ends
            self._report.give_way = False  # whoever cancels the job doesn't want it back
            self._stop(self._end_reason())
        if signal.SIGUSR1 in signals:
            self._send(control.PREEMPT)  # at once: a busy controller takes its time to say why
            self._stop(self._why_signalled())
        if signal.SIGUSR2 in signals:
            self._on_intent(self._look())

    def _on_intent(self, cause: Cause | None) -> None:
        if cause is not None:
            self._stop(cause)

    def _on_time(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_EVERY
            self._on_intent(self._look())
        if self._meet_by is not None and now >= self._meet_by:
            self._meet_by = None
            self._without_all_nodes()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._log.say("the code did not leave in time: killing it")
            self._kill()

    def _without_all_nodes(self) -> None:
        missing = [node for n, node in enumerate(self._nodes) if n not in self._here]
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        where = f"{', '.join(missing[:8])}{more}"
        self._report.why = f"no agent came up on {where} within {self._limits.meeting:.0f} s"
        self._log.say(f"{self._report.why}: ending the other nodes")
        self._kill()

    # -- what goes out ---------------------------------------------------------------------------

    def _stop(self, cause: Cause) -> None:
        known = self._report.cause
        if known not in (Cause.KILL, Cause.ENDING):  # agents see a preemption in every end
            self._report.give_way |= cause in (Cause.PREEMPTION, Cause.TIME_LIMIT)
        if known is cause or (known is not None and not _outranks(cause, known)):
            return
        self._report.cause = cause
        if cause is Cause.KILL:
            self._kill()
        else:
            self._log.say(f"asking the code to stop: {_WHY.get(cause, cause.value)}")
            self._send(control.PREEMPT)
            self._kill_by(self._limits.preemption_timeout)

    def _kill_by(self, seconds: float) -> None:
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + seconds)

    def _kill(self) -> None:
        self._send(control.KILL)
        self._give_up_at = min(self._give_up_at or float("inf"), time.monotonic() + _KILL_GRACE)

    def _introduce(self) -> None:
        ordered = [self._here[node] for node in sorted(self._here)]
        slots = [int(here["slots"]) for here in ordered]
        if len(set(slots)) > 1:
            self._log.say(f"the nodes have different numbers of slots: {slots}")
        peers = {
            "container_addrs": [here["addr"] for here in ordered],
            "container_slot_counts": slots,
            "port": ordered[0]["port"],
            "token": control.new_token(),
        }
        self._send(control.PEERS + json.dumps(peers))

    def _send(self, word: str) -> None:
        assert self._step.stdin is not None
        try:
            write_all(self._step.stdin.fileno(), f"{word}\n".encode())
        except BrokenPipeError:
            pass  # the step is ending by itself

    # -- the end ---------------------------------------------------------------------------------

    def _timeout(self) -> float:
        moments = [self._next_look, self._meet_by, self._kill_at, self._give_up_at]
        return max(0.0, min(m for m in moments if m is not None) - time.monotonic())

    def _given_up(self) -> bool:
        return self._give_up_at is not None and time.monotonic() >= self._give_up_at

    def _finish(self) -> None:
        try:
            status = exit_status(self._step.wait(timeout=0 if self._given_up() else 5))
        except subprocess.TimeoutExpired:
            self._step.kill()
            status = exit_status(self._step.wait())
        for pipe in (self._step.stdin, self._step.stdout):
            if pipe is not None:
                pipe.close()
        failures = [code for _, code in sorted(self._exit_codes.items()) if code]
        if self._first_failure or failures:
            self._report.exit_code = self._first_failure or failures[0]
        elif len(self._exit_codes) < len(self._nodes):
            killed = 128 + signal.SIGKILL
            self._report.exit_code = killed if self._report.job_is_ending else status or 1
        self._report.acknowledged = any(self._acknowledged.values())
        # srun ends the other nodes of a failed step with the very signal of a preemption: theirs
        # was one only if no node had failed before, or vanished without a word.
        silent = len(self._exit_codes) < len(self._nodes) and not self._report.job_is_ending
        self._report.vanished = silent and self._report.began
        if self._heard_from_agents and (self._first_failure or silent):
            self._report.cause = None
            self._report.give_way = False


_WHY = {
    Cause.STOP: "the search has stopped it",
    Cause.TIME_LIMIT: "time limit",
    Cause.ENDING: "Slurm ends the job and does not say why",
}


def _outranks(new: Cause, old: Cause) -> bool:
    # The signal of the limit itself looks like a preemption to the agents.
    # What the search has stopped is done, whoever else wants it to leave.
    return _RANKING.index(new) > _RANKING.index(old)


_RANKING = (
    Cause.PREEMPTION,
    Cause.TIME_LIMIT,
    Cause.ENDING,
    Cause.PAUSE,
    Cause.STOP,
    Cause.CANCEL,
    Cause.KILL,
)
