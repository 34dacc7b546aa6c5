"""One attempt: one step with an agent on every node, watched from its start to its end."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm._base.process import exit_status
from detslurm.exec import agent_protocol, idle_guard
from detslurm.exec.awake_clock import awake_clock
from detslurm.exec.idle_guard import IdleGuard
from detslurm.exec.line_splitter import LineSplitter
from detslurm.exec.outcome import Cause
from detslurm.exec.signals import SignalInbox
from detslurm.exec.text_log import TextLog
from detslurm.slurm.command import is_transient
from detslurm.store.fs import write_all

if TYPE_CHECKING:
    from detslurm.exec.failure import Failure

# How often the runner looks at the user's intents by itself; the CLI can
# notify it to do so at once.
REFRESH_SECONDS = 60.0
# srun prints this at every step on clusters without a task plugin, also with --quiet; of ranks that
# it starts for a launcher too.
_NOISE = r"(\[rank=\d+\] )?srun: cluster configuration lacks support for cpu binding"
# srun prints this of tasks that SIGTERM ended; any other error of srun may be the reason.
_ENDED_BY_TERM = r"error: \S+ tasks? [\d,-]+: (Terminated|Exited with exit code 143)"
# srun prints this of a job that Slurm is ending: in the grace of a preemption before all others.
_REFUSAL = "already completing or completed"
# srun prints this of a node that has died, minutes before Slurm's controller knows it.
_UNLAUNCHED = r"Task launch for \S+ failed on node (\S+):"
# After a rank has raised InvalidHP the others get this long to exit on their own: where it was a
# worker, they may wait for it in vain.
_INVALID_GRACE = 10.0
# Code that is idle for minutes has nothing to save, or can't.
_IDLE_GRACE = 60.0
_KILLED = 128 + signal.SIGKILL
_TERMINATED = 128 + signal.SIGTERM
# How long a step may take to end after its agents got the command to kill.
_KILL_GRACE = 10.0


class AttemptResult(msgspec.Struct):
    """How an attempt ended, as far as the runner observed it."""

    exit_code: int = 0
    cause: Cause | None = None
    acknowledged: bool = False
    invalid_hp: bool = False
    cancel_retries: str | None = None
    exclude: list[str] = []
    began: bool = False  # a step that never began is not a failure of the code
    refused: bool = False  # Slurm starts no more steps in this job
    controller_silent: bool = False  # srun found no controller that could start the step
    unlaunched: list[str] = []  # nodes that srun did not reach, so that no code has begun
    agent_lost: bool = False  # an agent was gone without a word, and what it ran may live on
    non_retryable: str | None = None  # why no step can begin here
    why: str | None = None  # the failure, where the exit code does not show it
    unprepared: bool = False  # a node could not begin the code
    failed_node: str | None = None  # the first of several nodes that failed by itself
    bad_node: str | None = None  # the node that is to blame, because others work
    got_sigint: bool = False  # SIGINT has come to a node's agent
    oom_kills: int = 0  # processes that the kernel has killed for lack of memory
    seconds: float = 0.0  # how long it lasted
    was_short: bool = False  # it was over before long
    failure: Failure | None = None  # an error of the code, met at once
    not_staged: dict[str, str] = {}  # why, by node
    deleted: str | None = None  # what the code wrote into its working directory
    job_is_ending: bool = False
    yield_allocation: bool = False  # Slurm wants the allocation back, whatever becomes of the trial


class Limits(msgspec.Struct, frozen=True):
    """Seconds: from a request to stop to the kill, and from Slurm's TERM to its KILL.

    `rendezvous` is from the arrival of the first node's agent to that of the last one's, `saving`
    what the other nodes have where one fails after a request to stop.
    """

    preemption_timeout: float
    kill_wait: float
    rendezvous: float = 600.0  # where a thousand nodes start at once, file systems are slow
    saving: float = 300.0


class Attempt:
    """Runs one step; `stop_cause` queries the user's intents, the inbox has Slurm's signals.

    `end_reason` is why SIGTERM came; None where the job goes on.
    """

    def __init__(
        self,
        argv: Sequence[str],
        nodes: Sequence[str],
        *,
        inbox: SignalInbox,
        log: TextLog,
        stop_cause: Callable[[], Cause | None],
        signal_cause: Callable[[], Cause],
        end_reason: Callable[[], Cause | None],
        limits: Limits,
        on_usage: Callable[[Mapping[str, Any]], None] = lambda sample: None,
        refresh_seconds: Callable[[], float] = lambda: REFRESH_SECONDS,
        guard: IdleGuard | None = None,
        on_idle: Callable[[str, str | None], bool] = lambda action, reason: True,
    ) -> None:
        self._on_usage, self._guard, self._on_idle = on_usage, guard, on_idle
        self._nodes, self._inbox, self._log = nodes, inbox, log
        self._stop_cause, self._limits = stop_cause, limits
        self._signal_cause, self._end_reason = signal_cause, end_reason
        self._refresh_seconds = refresh_seconds
        self._result = AttemptResult()
        self._lines = LineSplitter(rewrites=False)  # no report may be taken for a rewrite
        self._reassembler = agent_protocol.Reassembler()
        self._exit_codes: dict[int, int] = {}
        self._up: set[int] = set()
        self._srun_failed = False  # its error is not explained by a preemption
        self._arrived: dict[int, dict[str, Any]] = {}
        self._first_failure: int | None = None
        self._agents_preempted = False
        self._announced: Cause | None = None
        self._rendezvous_deadline: float | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._idle, self._judge_at = False, 0.0
        self._next_refresh = time.monotonic() + REFRESH_SECONDS
        self._step = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )

    def run(self) -> AttemptResult:
        """Watch the step to its end."""
        assert self._step.stdout is not None
        fd = self._step.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            selector.register(self._inbox.fileno(), selectors.EVENT_READ)
            self._look()
            while not self._given_up():
                found = awake_clock.wait(selector.select, self._timeout())
                ready = {key.fd for key, _ in found}
                if self._inbox.fileno() in ready:
                    self._on_signals()
                if fd in ready and not self._read(fd):
                    break
                self._on_time()
        self._finish()
        return self._result

    # -- what comes in ---------------------------------------------------------------------------

    def _read(self, fd: int) -> bool:
        chunk = os.read(fd, 65536)
        lines = self._lines.feed(chunk) if chunk else self._lines.close()
        text = []
        for data in lines:
            line = self._reassembler.line(data)
            if line is None:
                continue
            report = agent_protocol.parse_report(line)
            if report is None:
                if not re.fullmatch(_NOISE, line):
                    text.append(line)
                if line.startswith("srun: "):
                    self._result.refused |= _REFUSAL in line
                    self._result.controller_silent |= is_transient(line)
                    if is_transient(line) and len(self._arrived) < len(self._nodes):
                        self._result.unlaunched += re.findall(_UNLAUNCHED, line)
                    self._srun_failed |= "error:" in line and not re.search(_ENDED_BY_TERM, line)
            else:
                self._on_report(report)
        if text:
            self._log.write(text)
            if self._guard is not None:
                self._guard.on_output(time.monotonic())
        return bool(chunk)

    def _on_report(self, report: dict[str, Any]) -> None:
        event, node = report.get("event"), int(report.get("node", 0))
        self._result.began = True
        self._up.add(node)
        if event == "arrived":
            self._arrived[node] = report
            self._rendezvous_deadline = (
                self._rendezvous_deadline or time.monotonic() + self._limits.rendezvous
            )
            # srun ends a step that it did not reach a node for, also where that one comes up late.
            if len(self._arrived) == len(self._nodes) and not self._result.unlaunched:
                self._rendezvous_deadline = None
                self._send_peers()
        elif event == "preempted":
            self._agents_preempted |= self._result.cause is None
            self._stop(Cause.PREEMPTION)
        elif event == "stop":
            self._stop(Cause.STOP)
            if "grace" in report:  # of code that does not watch for it
                self._kill_by(float(report["grace"]))
        elif event == "invalid_hp":
            self._result.invalid_hp = True
            self._kill_by(_INVALID_GRACE)
        elif event == "policy":
            self._on_policy(node, str(report["name"]), report.get("action"))
        elif event == "not_staged":
            self._result.not_staged[self._nodes[node]] = str(report["why"])
        elif event == "usage":
            self._on_sample(node, report)
        elif event == "ended":
            self._on_end(node, report)

    def _on_end(self, node: int, report: dict[str, Any]) -> None:
        code = int(report["exit_code"])
        self._exit_codes[node] = code
        self._result.acknowledged |= bool(report["acknowledged"])
        if self._guard is not None:
            self._guard.on_end(node, time.monotonic())
        self._result.why = self._result.why or report.get("why")
        self._result.deleted = self._result.deleted or report.get("deleted")
        self._result.got_sigint |= bool(report.get("sigint"))
        self._result.oom_kills += int(report.get("oom_kills") or 0)
        self._result.unprepared |= bool(report.get("unprepared")) and not self._first_failure
        if self._first_failure and report["by_itself"] == _KILLED:
            # Peers of a killed process fail in their collectives, and another node may be the first
            # to report that, with a traceback that is no cause.
            self._first_failure = _KILLED
        if not code:
            return
        if not report["preempted"]:
            self._first_failure = self._first_failure or code
            self._result.failed_node = self._result.failed_node or self._nodes[node]
        if len(self._exit_codes) == len(self._nodes):
            return
        did = "could not begin" if report.get("unprepared") else "failed"
        failed = f"the code on {self._nodes[node]} {did}"
        if not report["preempted"]:
            self._log.add_message(f"{failed}: ending the other nodes")
            self._kill()
        elif (self._kill_at or 0) > time.monotonic() + self._limits.saving:
            # The others may wait for it without end, or still be saving.
            seconds = self._limits.saving
            self._log.add_message(f"{failed} while it left: the other nodes have {seconds:.0f} s")
            self._kill_by(seconds)

    def _on_sample(self, node: int, sample: Mapping[str, Any]) -> None:
        self._on_usage(sample)
        # Code that was asked to stop has its own time limit; the last sample sums up a run, and
        # measures less.
        ending = self._result.cause or self._kill_at or self._give_up_at
        if self._guard is None or ending or sample.get("last"):
            return
        now = time.monotonic()
        self._guard.on_sample(node, sample, now)
        if now >= self._judge_at and self._guard.is_idle(now) != self._idle:
            if self._on_change(self._guard):
                self._idle = not self._idle
            else:
                self._judge_at = now + REFRESH_SECONDS

    def _on_change(self, guard: IdleGuard) -> bool:
        """The run has been idle for too long, or it is at work again after a warning; False where
        that can't be recorded.

        The record comes first: who reads the log then finds it.
        """
        if self._idle:
            if not self._on_idle(idle_guard.WARN, None):
                return False
            guard.on_resumed()
            self._log.add_message("the run is at work again")
            return True
        reason, cause = guard.text(), None
        if guard.action == idle_guard.WARN:
            if not self._on_idle(guard.action, reason):
                return False
            self._log.add_message(f"warning: the run holds its slots idle: {reason}")
            return True
        if guard.action == idle_guard.PAUSE:
            recorded = self._on_idle(guard.action, reason)
            cause = self._stop_cause()  # it may stand though its writing has failed
            if not recorded and cause is None:
                return False
        self._guard = None  # it has done its part
        self._log.add_message(f"{reason}: {guard.action} (slurm.idle_guard)")
        if guard.action == idle_guard.PAUSE:
            self._on_intent(cause)
            self._kill_by(_IDLE_GRACE)
        else:
            self._result.why = reason
            self._kill()
        return True

    def _on_policy(self, node: int, name: str, action: str | None) -> None:
        self._log.add_message(f"log policy {name!r} matched on {self._nodes[node]}")
        if action == "cancel_retries":
            self._result.cancel_retries = name
        elif action == "exclude_node":
            self._result.exclude.append(self._nodes[node])

    def _on_signals(self) -> None:
        signals = self._inbox.take()
        if signal.SIGTERM in signals:
            self._on_sigterm()
        if signal.SIGUSR1 in signals:
            # At once: a busy controller may take long to report the cause.
            self._send(agent_protocol.PREEMPT)
            self._stop(self._signal_cause())
        if signal.SIGUSR2 in signals:
            self._look()

    def _on_sigterm(self) -> None:
        come, cause = time.monotonic(), self._end_reason()
        if cause is None:
            self._stop(Cause.PREEMPTION)
            return
        # The whole job is being ended: there is KillWait left to write down how.
        self._result.job_is_ending = True
        self._give_up_at = come + self._limits.kill_wait / 2
        if self._agents_preempted:
            self._result.cause = None  # agents can't distinguish a preemption from other ends
        self._result.yield_allocation = False  # a job that is cancelled must not come back
        self._stop(cause)

    def _look(self) -> None:
        self._on_intent(self._stop_cause())
        self._next_refresh = time.monotonic() + self._refresh_seconds()

    def _on_intent(self, cause: Cause | None) -> None:
        if cause is not None:
            self._stop(cause)

    def _on_time(self) -> None:
        now = time.monotonic()
        if now >= self._next_refresh:
            self._look()
        if self._rendezvous_deadline is not None and now >= self._rendezvous_deadline:
            self._rendezvous_deadline = None
            self._on_missing_nodes()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._log.add_message("the code did not exit in time: killing it")
            self._kill()

    def _on_missing_nodes(self) -> None:
        absent = [node for n, node in enumerate(self._nodes) if n not in self._arrived]
        missing = absent or self._result.unlaunched
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        where = f"{', '.join(missing[:8])}{more}"
        self._result.why = f"no agent came up on {where} within {self._limits.rendezvous:.0f} s"
        self._log.add_message(f"{self._result.why}: ending the other nodes")
        self._kill()

    # -- what goes out ---------------------------------------------------------------------------

    def _stop(self, cause: Cause) -> None:
        known = self._result.cause
        if known not in (Cause.KILL, Cause.ENDING):  # agents see a preemption in every end
            self._result.yield_allocation |= cause in (Cause.PREEMPTION, Cause.TIME_LIMIT)
        if known is not None and _RANKING.index(cause) <= _RANKING.index(known):
            return
        self._result.cause = cause
        if cause is Cause.KILL:
            self._kill()
        else:
            if cause is not self._announced:  # the same again, once Slurm's reason is known
                self._announced = cause
                self._log.add_message(f"asking the code to stop: {_WHY.get(cause, cause.value)}")
            self._send(agent_protocol.PREEMPT)
            self._kill_by(self._limits.preemption_timeout)

    def _kill_by(self, seconds: float) -> None:
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + seconds)

    def _kill(self) -> None:
        self._send(agent_protocol.KILL)
        self._give_up_at = min(self._give_up_at or float("inf"), time.monotonic() + _KILL_GRACE)

    def _send_peers(self) -> None:
        ordered = [self._arrived[node] for node in sorted(self._arrived)]
        slots = [int(here["slots"]) for here in ordered]
        if len(set(slots)) > 1:
            self._log.add_message(f"the nodes have different numbers of slots: {slots}")
        peers = {
            "container_addrs": [here["addr"] for here in ordered],
            "container_slot_counts": slots,
            "port": ordered[0]["port"],
            "token": agent_protocol.new_token(),
        }
        places = {here.get("environment") for here in ordered}
        if len(places) == 1 and (place := places.pop()) is not None:
            peers["environment"] = place
        self._send(agent_protocol.PEERS + agent_protocol.to_json(peers))

    def _send(self, command: str) -> None:
        assert self._step.stdin is not None
        try:
            write_all(self._step.stdin.fileno(), f"{command}\n".encode())
        except BrokenPipeError:
            pass  # the step has just ended

    # -- the end ---------------------------------------------------------------------------------

    def _timeout(self) -> float:
        moments = [self._next_refresh, self._rendezvous_deadline, self._kill_at, self._give_up_at]
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
        if len(self._nodes) == 1 and self._up:  # it waits for no others: its code may have begun
            self._result.unlaunched.clear()
        failures = [code for _, code in sorted(self._exit_codes.items()) if code]
        if self._first_failure or failures:
            self._result.exit_code = self._first_failure or failures[0]
        elif len(self._exit_codes) < len(self._nodes):
            self._result.exit_code = _KILLED if self._result.job_is_ending else status or 1
        # srun ends the other nodes of a failed step with the very signal of a preemption: theirs
        # was one only if no node had failed before, or vanished without a word. But an agent that
        # is still starting can report nothing when that signal ends it.
        silent = len(self._exit_codes) < len(self._nodes) and not self._result.job_is_ending
        self._result.agent_lost = silent and self._result.began
        ended_at_start = (
            status == _TERMINATED and len(self._up) < len(self._nodes) and not self._srun_failed
        )
        if self._agents_preempted and (self._first_failure or (silent and not ended_at_start)):
            self._result.cause = None
            self._result.yield_allocation = False


_WHY = {
    Cause.STOP: "the search has stopped it",
    Cause.TIME_LIMIT: "time limit",
    Cause.ENDING: "Slurm ends the job without a known reason",
}


# The signal of the limit itself looks like a preemption to the agents.
# A trial that the search has stopped is done, whatever else asks it to stop.
_RANKING = (
    Cause.PREEMPTION,
    Cause.TIME_LIMIT,
    Cause.ENDING,
    Cause.PAUSE,
    Cause.STOP,
    Cause.CANCEL,
    Cause.KILL,
)
