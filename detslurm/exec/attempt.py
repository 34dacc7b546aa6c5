"""One attempt: one step with an agent on every node, watched from its start to its end."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from detslurm._base.process import exit_status
from detslurm.exec import agent_protocol
from detslurm.exec.agent_reports import PolicyMatched, typed_report
from detslurm.exec.attempt_state import (
    PAUSE,
    AttemptState,
    Instructions,
    Limits,
    Log,
    RecordIdle,
    Send,
)
from detslurm.exec.line_splitter import LineSplitter
from detslurm.exec.outcome import AttemptResult
from detslurm.exec.signals import SignalInbox, awake_clock
from detslurm.exec.text_log import TextLog
from detslurm.store.fs import write_all

if TYPE_CHECKING:
    from detslurm.exec.end_reasons import EndReasons
    from detslurm.exec.idle_guard import IdleGuard

# srun prints this at every step on clusters without a task plugin, also with --quiet; of ranks that
# it starts for a launcher too.
_NOISE = r"(\[rank=\d+\] )?srun: cluster configuration lacks support for cpu binding"


class Attempt:
    """Watches one step: feeds its state machine with events, and follows the instructions.

    With `answers` each piece of its output is answered by an empty command. Slurm's daemon on the
    node sends a further piece only when the one before is acknowledged, which takes the network 40
    ms where nothing is to be sent the other way.

    With the first sample of the run's usage `make_guard` is called, which may be None. `on_idle`
    records that the run is idle, and returns whether it is recorded. `on_policy` gets the name of
    each log policy that matches, and of the node.
    """

    def __init__(
        self,
        step: subprocess.Popen[bytes],
        nodes: Sequence[str],
        *,
        inbox: SignalInbox,
        log: TextLog,
        reasons: EndReasons,
        limits: Limits,
        answers: bool = False,
        on_usage: Callable[[Mapping[str, Any]], None] = lambda sample: None,
        make_guard: Callable[[], IdleGuard] | None = None,
        on_idle: Callable[[str, str | None], bool] = lambda action, reason: True,
        on_policy: Callable[[str, str], None] = lambda name, node: None,
    ) -> None:
        self._on_policy, self._nodes = on_policy, nodes
        self._inbox, self._log, self._reasons = inbox, log, reasons
        self._on_usage, self._make_guard, self._on_idle = on_usage, make_guard, on_idle
        self._guard: IdleGuard | None = None
        token, now = agent_protocol.new_token(), time.monotonic()
        self._state = AttemptState(nodes, limits, now, token=token)
        self._lines = LineSplitter(rewrites=False)  # no report may be taken for a rewrite
        self._reassembler = agent_protocol.Reassembler()
        self._step, self._answers = step, answers

    @property
    def is_free(self) -> bool:
        """Whether the step goes on without this run."""
        return self._state.is_free

    def run(self) -> AttemptResult:
        """Watch the step to its end, or until it is free."""
        assert self._step.stdout is not None
        fd = self._step.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            selector.register(self._inbox.fileno(), selectors.EVENT_READ)
            self._look()
            while not (self._state.is_free or self._state.is_given_up(time.monotonic())):
                left = max(0.0, self._state.next_deadline - time.monotonic())
                ready = {key.fd for key, _ in awake_clock.wait(selector.select, left)}
                if self._inbox.fileno() in ready:
                    self._on_signals()
                if fd in ready and not self._read(fd):
                    break
                if self._state.is_look_due(time.monotonic()):
                    self._look()
                self._follow(self._state.on_time(time.monotonic()))
        self._state.on_step_ended(self._exit_status())
        return self._state.result

    def _follow(self, instructions: Instructions) -> None:
        for instruction in instructions:
            match instruction:
                case Send(command):
                    self._send(command)
                case Log(text):
                    self._log.add_message(text)
                case RecordIdle():
                    self._record_idle(instruction)
                case _:
                    assert_never(instruction)

    def _send(self, command: str) -> None:
        assert self._step.stdin is not None
        try:
            write_all(self._step.stdin.fileno(), f"{command}\n".encode())
        except BrokenPipeError:
            pass  # the step has just ended

    def _look(self) -> None:
        cause, seconds = self._reasons.stop_cause(), self._reasons.seconds_to_look()
        self._follow(self._state.on_look(cause, seconds, time.monotonic()))

    def _on_signals(self) -> None:
        signals, state = self._inbox.take(), self._state
        if signal.SIGTERM in signals:
            came, cause = time.monotonic(), self._reasons.sigterm_cause()
            self._follow(state.on_sigterm(came, cause, time.monotonic()))
        if signal.SIGUSR1 in signals:
            self._follow(state.on_sigusr1())
            self._follow(state.on_request(self._reasons.signal_cause(), time.monotonic()))
        if signal.SIGUSR2 in signals:
            self._look()

    # -- the output of the step ------------------------------------------------------------------

    def _read(self, fd: int) -> bool:
        chunk = os.read(fd, 65536)
        text = []
        for data in self._lines.feed(chunk) if chunk else self._lines.close():
            line = self._reassembler.line(data)
            if line is None:
                continue
            report = agent_protocol.parse_report(line)
            if report is not None:
                self._on_report(report)
                continue
            if not re.fullmatch(_NOISE, line):
                text.append(line)
            if line.startswith("srun: "):
                self._state.on_srun_line(line)
        if text:
            self._log.write(text)
            if self._guard is not None:
                self._guard.on_output(time.monotonic())
        if self._answers and not self._state.is_free:
            self._send("")
        return bool(chunk)

    def _on_report(self, report: Mapping[str, Any]) -> None:
        event, typed = report.get("event"), typed_report(report)
        self._follow(self._state.on_report(typed, time.monotonic()))
        if isinstance(typed, PolicyMatched):
            self._on_policy(typed.name, self._nodes[typed.node])
        elif event == "ended" and self._guard is not None:
            self._guard.on_end(typed.node, time.monotonic())
        elif event == "usage":
            self._on_usage(report)
            # The last sample sums up a run, and measures less.
            if self._make_guard is not None and self._state.may_be_idle and not report.get("last"):
                self._judge(self._guard or self._new_guard(self._make_guard), typed.node, report)

    def _new_guard(self, make: Callable[[], IdleGuard]) -> IdleGuard:
        self._guard = guard = make()
        for node in self._state.ended_nodes:
            guard.on_end(node, time.monotonic())
        return guard

    def _judge(self, guard: IdleGuard, node: int, sample: Mapping[str, Any]) -> None:
        now = time.monotonic()
        guard.on_sample(node, sample, now)
        if self._state.judges_idleness(now):
            change = self._state.on_idleness(guard.is_idle(now), guard.action, guard.text(), now)
            self._follow(change)

    def _record_idle(self, instruction: RecordIdle) -> None:
        action, reason = instruction
        is_recorded = self._on_idle(action, reason)
        if self._guard is not None and is_recorded and reason is None:
            self._guard.on_resumed()
        cause = self._reasons.stop_cause() if action == PAUSE else None
        now = time.monotonic()
        self._follow(self._state.on_idle_recorded(instruction, is_recorded, cause, now))

    # -- the end ---------------------------------------------------------------------------------

    def _exit_status(self) -> int:
        if self._state.is_free:
            return 0  # it goes on with another run
        given_up = self._state.is_given_up(time.monotonic())
        try:
            status = exit_status(self._step.wait(timeout=0 if given_up else 5))
        except subprocess.TimeoutExpired:
            self._step.kill()
            status = exit_status(self._step.wait())
        return status
