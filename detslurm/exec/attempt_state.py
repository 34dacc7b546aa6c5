"""An attempt as a state machine: events and the time go in, instructions come out.

There is no I/O and no clock here. Each method `on_...` takes in an event and yields instructions,
which `Attempt` follows in their order.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from detslurm.exec import agent_protocol
from detslurm.exec.agent_reports import (
    AgentReport,
    Arrived,
    CodeEnded,
    Free,
    HyperparametersRefused,
    PolicyMatched,
    Preempted,
    StagingFailed,
    Stopped,
)
from detslurm.exec.outcome import AttemptResult, Cause, meaning, outranks
from detslurm.slurm.command import is_transient

# How often the runner looks at the user's intents by itself; the CLI can
# notify it to do so at once.
REFRESH_SECONDS: Final = 60.0
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
_NEVER = float("inf")
WARN: Final = "warn"
PAUSE: Final = "pause"
"""Two of the consequences of idleness; the third is a restart."""


class Limits(msgspec.Struct, frozen=True):
    """Seconds: from a request to stop to the kill, and from Slurm's TERM to its KILL.

    `rendezvous` is from the arrival of the first node's agent to that of the last one's, `saving`
    what the other nodes have where one fails after a request to stop.
    """

    preemption_timeout: float
    kill_wait: float
    rendezvous: float = 600.0  # where a thousand nodes start at once, file systems are slow
    saving: float = 300.0


class Send(NamedTuple):
    """Send a command to all agents."""

    command: str


class Log(NamedTuple):
    """Write a line of detslurm's own to the log."""

    text: str


class RecordIdle(NamedTuple):
    """Record that the run is idle, or at work again (no reason); `on_idle_recorded` follows."""

    action: str
    reason: str | None


Instructions = Iterator[Send | Log | RecordIdle]


class _Deadlines(msgspec.Struct):
    """Moments at which something is to be done."""

    look: float
    rendezvous: float = _NEVER
    kill: float = _NEVER
    give_up: float = _NEVER
    judge_idleness: float = 0.0


class AttemptState:
    """One attempt; `result` is complete after `on_step_ended`.

    `token` is the secret of the run's ranks.
    """

    def __init__(self, nodes: Sequence[str], limits: Limits, now: float, *, token: str) -> None:
        self.result = AttemptResult()
        self.is_free = False
        """Whether the step's agent has left the run in order, and waits for another one."""
        self._nodes, self._limits, self._token = nodes, limits, token
        self._deadlines = _Deadlines(look=now + REFRESH_SECONDS)
        self._up: set[int] = set()
        self._arrived: dict[int, Arrived] = {}
        self._ended: dict[int, CodeEnded] = {}
        self._first_failure = 0
        self._srun_error: str | None = None  # the first that is not explained by a preemption
        self._agents_preempted = False
        self._announced: Cause | None = None
        self._is_idle = self._has_ended_idleness = False

    # -- the moments to wait for -----------------------------------------------------------------

    @property
    def next_deadline(self) -> float:
        """The time at which a look, `on_time` or giving up is due."""
        moments = self._deadlines
        return min(moments.look, moments.rendezvous, moments.kill, moments.give_up)

    def is_given_up(self, now: float) -> bool:
        """Whether the step is no longer waited for."""
        return now >= self._deadlines.give_up

    @property
    def ended_nodes(self) -> Iterable[int]:
        """The nodes whose code has ended."""
        return self._ended

    @property
    def may_be_idle(self) -> bool:
        """Whether samples of the run's usage count: code that was asked to stop has a time limit of
        its own."""
        ending = min(self._deadlines.kill, self._deadlines.give_up) < _NEVER
        return self.result.cause is None and not ending and not self._has_ended_idleness

    def judges_idleness(self, now: float) -> bool:
        """Whether to find out if the run is idle."""
        return self.may_be_idle and now >= self._deadlines.judge_idleness

    def is_look_due(self, now: float) -> bool:
        """Whether to read the user's intents: `on_look` follows."""
        return now >= self._deadlines.look

    def on_time(self, now: float) -> Instructions:
        """Some deadline may have passed."""
        if now >= self._deadlines.rendezvous:
            self._deadlines.rendezvous = _NEVER
            yield from self._on_missing_nodes(now)
        if now >= self._deadlines.kill:
            self._deadlines.kill = _NEVER
            yield Log("the code did not exit in time: killing it")
            yield from self._kill(now)

    def _on_missing_nodes(self, now: float) -> Instructions:
        absent = [node for n, node in enumerate(self._nodes) if n not in self._arrived]
        missing = absent or self.result.unlaunched
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        where = f"{', '.join(missing[:8])}{more}"
        self.result.why = f"no agent came up on {where} within {self._limits.rendezvous:.0f} s"
        yield Log(f"{self.result.why}: ending the other nodes")
        yield from self._kill(now)

    # -- the agents ------------------------------------------------------------------------------

    def on_report(self, report: AgentReport, now: float) -> Instructions:
        """An agent has reported."""
        result, node = self.result, report.node
        result.began = True
        self._up.add(node)
        match report:
            case Arrived():
                yield from self._on_arrival(report, now)
            case Preempted():
                self._agents_preempted |= result.cause is None
                yield from self.on_request(Cause.PREEMPTION, now)
            case Stopped(grace=grace):
                yield from self.on_request(Cause.STOP, now)
                if grace is not None:
                    self._kill_by(now + grace)
            case HyperparametersRefused():
                result.invalid_hp = True
                self._kill_by(now + _INVALID_GRACE)
            case PolicyMatched(name=name, action=action):
                yield Log(f"log policy {name!r} matched on {self._nodes[node]}")
                if action == "cancel_retries":
                    result.cancel_retries = name
                elif action == "exclude_node":
                    result.exclude.append(self._nodes[node])
            case StagingFailed(why=why):
                result.not_staged[self._nodes[node]] = why
            case CodeEnded():
                yield from self._on_end(report, now)
            case Free():
                self.is_free = True

    def _on_arrival(self, report: Arrived, now: float) -> Instructions:
        if not self._arrived:
            self._deadlines.rendezvous = now + self._limits.rendezvous
        self._arrived[report.node] = report
        # srun ends a step that it did not reach a node for, also where that one comes up late.
        if len(self._arrived) == len(self._nodes) and not self.result.unlaunched:
            self._deadlines.rendezvous = _NEVER
            yield from self._send_peers()

    def _send_peers(self) -> Instructions:
        ordered = [self._arrived[node] for node in sorted(self._arrived)]
        slots = [here.slots for here in ordered]
        if len(set(slots)) > 1:
            yield Log(f"the nodes have different numbers of slots: {slots}")
        peers: dict[str, Any] = {
            "container_addrs": [here.addr for here in ordered],
            "container_slot_counts": slots,
            "port": ordered[0].port,
            "token": self._token,
        }
        places = {here.environment for here in ordered}
        if len(places) == 1 and (place := places.pop()) is not None:
            peers["environment"] = place
        yield Send(agent_protocol.PEERS + agent_protocol.to_json(peers))

    def _on_end(self, end: CodeEnded, now: float) -> Instructions:
        result, node = self.result, self._nodes[end.node]
        self._ended[end.node] = end
        result.acknowledged |= end.acknowledged
        if result.why is None:
            result.why, result.kind = end.why, end.kind
        result.deleted = result.deleted or end.deleted
        result.got_sigint |= end.sigint
        result.oom_kills += end.oom_kills
        result.unprepared |= end.unprepared and not self._first_failure
        if self._first_failure and end.by_itself == _KILLED:
            # Peers of a killed process fail in their collectives, and another node may be the first
            # to report that, with a traceback that is no cause.
            self._first_failure = _KILLED
        if not end.exit_code:
            return
        if not end.preempted:
            self._first_failure = self._first_failure or end.exit_code
            result.failed_node = result.failed_node or node
        if len(self._ended) == len(self._nodes):
            return
        failed = f"the code on {node} {'could not begin' if end.unprepared else 'failed'}"
        seconds = self._limits.saving
        if not end.preempted:
            yield Log(f"{failed}: ending the other nodes")
            yield from self._kill(now)
        elif now + seconds < self._deadlines.kill < _NEVER:
            # The others may wait for it without end, or still be saving.
            yield Log(f"{failed} while it left: the other nodes have {seconds:.0f} s")
            self._kill_by(now + seconds)

    def on_srun_line(self, line: str) -> None:
        """srun has printed a line of its own."""
        result = self.result
        result.refused |= _REFUSAL in line
        result.controller_silent |= is_transient(line)
        if is_transient(line) and len(self._arrived) < len(self._nodes):
            result.unlaunched += re.findall(_UNLAUNCHED, line)
        if self._srun_error is None and not re.search(_ENDED_BY_TERM, line):
            self._srun_error = line.partition("error: ")[2] or None

    # -- idleness --------------------------------------------------------------------------------

    def on_idleness(self, is_idle: bool, action: str, reason: str, now: float) -> Instructions:
        """The run has been idle for too long or not; `reason` is the fault in words."""
        if is_idle == self._is_idle:
            return
        # The record comes first: a reader of the log then finds it.
        if not is_idle:
            yield RecordIdle(WARN, None)
        elif action in (WARN, PAUSE):
            yield RecordIdle(action, reason)
        else:
            yield from self._end_idleness(action, reason)
            self.result.why = reason
            yield from self._kill(now)

    def _end_idleness(self, action: str, reason: str) -> Instructions:
        self._has_ended_idleness = True  # the guard has done its part
        yield Log(f"{reason}: {action} (slurm.idle_guard)")

    def on_idle_recorded(
        self, instruction: RecordIdle, is_recorded: bool, cause: Cause | None, now: float
    ) -> Instructions:
        """An instruction was followed; `cause` is the user's intent after a pause."""
        action, reason = instruction
        if not (is_recorded or cause is not None):  # a pause may stand though its writing failed
            self._deadlines.judge_idleness = now + REFRESH_SECONDS
        elif reason is None:
            self._is_idle = False
            yield Log("the run is at work again")
        elif action == WARN:
            self._is_idle = True
            yield Log(f"warning: the run holds its slots idle: {reason}")
        else:
            yield from self._end_idleness(action, reason)
            yield from self.on_request(cause, now)
            self._kill_by(now + _IDLE_GRACE)

    # -- requests to stop ------------------------------------------------------------------------

    def on_sigusr1(self) -> Instructions:
        """It has come; `on_request` follows once its cause is known."""
        # At once: a busy controller may take long to report the cause.
        yield Send(agent_protocol.PREEMPT)

    def on_sigterm(self, came: float, cause: Cause | None, now: float) -> Instructions:
        """It has come at some time; `cause` is None where the job goes on."""
        if cause is None:
            yield from self.on_request(Cause.PREEMPTION, now)
            return
        # The whole job is being ended: there is KillWait left to write down how.
        self.result.job_is_ending = True
        self._deadlines.give_up = came + self._limits.kill_wait / 2
        if self._agents_preempted:
            self.result.cause = None  # agents can't distinguish a preemption from other ends
        self.result.yield_allocation = False  # a job that is cancelled must not come back
        yield from self.on_request(cause, now)

    def on_look(self, cause: Cause | None, seconds: float, now: float) -> Instructions:
        """The user's intents were read, and will be read again after some seconds."""
        self._deadlines.look = now + seconds
        yield from self.on_request(cause, now)

    def on_request(self, cause: Cause | None, now: float) -> Instructions:
        """The code has to stop, or for None it has not."""
        if cause is None:
            return
        known = self.result.cause
        if known is None or not meaning(known).ends_job:  # agents see a preemption in every end
            self.result.yield_allocation |= meaning(cause).yields
        if not outranks(cause, known):
            return
        self.result.cause = cause
        if cause is Cause.KILL:
            yield from self._kill(now)
            return
        if cause is not self._announced:  # the same again, once Slurm's reason is known
            self._announced = cause
            yield Log(f"asking the code to stop: {meaning(cause).text}")
        yield Send(agent_protocol.PREEMPT)
        self._kill_by(now + self._limits.preemption_timeout)

    def _kill_by(self, moment: float) -> None:
        self._deadlines.kill = min(self._deadlines.kill, moment)

    def _kill(self, now: float) -> Instructions:
        yield Send(agent_protocol.KILL)
        self._deadlines.give_up = min(self._deadlines.give_up, now + _KILL_GRACE)

    # -- the end ---------------------------------------------------------------------------------

    def on_step_ended(self, status: int) -> None:
        """srun has exited, or was killed."""
        result, nodes = self.result, len(self._nodes)
        if nodes == 1 and self._up:  # it waits for no others: its code may have begun
            result.unlaunched.clear()
        failures = [end.exit_code for _, end in sorted(self._ended.items()) if end.exit_code]
        if self._first_failure or failures:
            result.exit_code = self._first_failure or failures[0]
        elif len(self._ended) < nodes:
            result.exit_code = _KILLED if result.job_is_ending else status or 1
        # srun ends the other nodes of a failed step with the very signal of a preemption: theirs
        # was one only if no node had failed before, or vanished without a word. But an agent that
        # is still starting can report nothing when that signal ends it.
        silent = len(self._ended) < nodes and not result.job_is_ending
        result.agent_lost = silent and result.began
        ended_at_start = status == _TERMINATED and len(self._up) < nodes and not self._srun_error
        if self._agents_preempted and (self._first_failure or (silent and not ended_at_start)):
            result.cause = None
            result.yield_allocation = False
        if result.agent_lost and result.cause is None and not (self._first_failure or failures):
            cause = self._srun_error or f"the step exited with {status}"
            result.why = result.why or f"a node agent ended without a report: {cause}"
