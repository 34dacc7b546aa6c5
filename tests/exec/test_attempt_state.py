"""An attempt's state machine: events in, instructions out, without processes and time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm.exec.agent_protocol import KILL, PEERS, PREEMPT
from detslurm.exec.agent_reports import typed_report
from detslurm.exec.attempt_state import AttemptState, Instructions, Limits, Log, RecordIdle, Send
from detslurm.exec.outcome import AttemptResult, Cause, EndFacts, decide

ENDED: dict[str, Any] = {
    "event": "ended",
    "exit_code": 0,
    "by_itself": 0,
    "preempted": False,
    "acknowledged": False,
}
FAILED = ENDED | {"exit_code": 1, "by_itself": 1}
HERE: dict[str, Any] = {"event": "arrived", "addr": "n", "slots": 1, "port": 1}


class Machine:
    """A state machine, its clock, and the instructions that it has given."""

    def __init__(self, nodes: int = 2, idle: str = "warn", **limits: float) -> None:
        names = [f"n{number}" for number in range(1, nodes + 1)]
        about = Limits(60, 30, **limits)
        self.state = AttemptState(names, about, 0.0, token="secret")
        self.idle = idle
        self.now = 0.0
        self.sent: list[str] = []
        self.log: list[str] = []
        self.records: list[RecordIdle] = []

    def follow(self, instructions: Instructions) -> None:
        for instruction in instructions:
            match instruction:
                case Send(command):
                    self.sent.append(command.partition(" ")[0])
                case Log(text):
                    self.log.append(text)
                case RecordIdle():
                    self.records.append(instruction)

    def report(self, node: int = 0, **fields: Any) -> None:
        self.follow(self.state.on_report(typed_report(fields | {"node": node}), self.now))

    def request(self, cause: Cause) -> None:
        self.follow(self.state.on_request(cause, self.now))

    def sigterm(self, cause: Cause | None) -> None:
        self.follow(self.state.on_sigterm(self.now, cause, self.now))

    def at(self, seconds: float) -> None:
        self.now = seconds
        self.follow(self.state.on_time(seconds))

    def idleness(self, is_idle: bool) -> None:
        self.follow(self.state.on_idleness(is_idle, self.idle, "nothing was done", self.now))

    def recorded(self, done: bool, cause: Cause | None = None) -> None:
        self.follow(self.state.on_idle_recorded(self.records[-1], done, cause, self.now))

    def end(self, status: int) -> AttemptResult:
        self.state.on_step_ended(status)
        return self.state.result


def test_a_node_that_never_comes() -> None:
    """The others don't wait for ever, and the result names the node."""
    machine = Machine(3)
    machine.report(**HERE)
    machine.at(599)
    assert not machine.sent
    machine.at(600)
    assert machine.sent == [KILL]
    result = machine.end(1)
    assert result.why == "no agent came up on n2, n3 within 600 s"
    assert result.exit_code == 1 and result.cause is None


@pytest.mark.parametrize(("by_itself", "exit_code"), [(137, 137), (0, 1), (3, 1)])
def test_a_process_that_was_killed_is_why_others_failed_sooner(
    by_itself: int, exit_code: int
) -> None:
    """Its node reports when it is told to end, and whether something failed before that."""
    machine = Machine()
    machine.report(**FAILED)
    assert machine.sent == [KILL]
    killed = {"exit_code": 137, "by_itself": by_itself, "preempted": True}
    machine.report(1, **ENDED | killed)
    assert machine.end(1).exit_code == exit_code


def test_a_node_that_fails_while_it_leaves_ends_the_others() -> None:
    """They may be in a collective with it, but may be saving, too: they get some time."""
    machine = Machine(saving=5.0)
    machine.request(Cause.PAUSE)
    machine.report(1, **FAILED | {"preempted": True})
    assert "the code on n2 failed while it left: the other nodes have 5 s" in machine.log
    machine.at(4.9)
    assert machine.sent == [PREEMPT]
    machine.at(5.0)
    assert machine.sent == [PREEMPT, KILL]
    result = machine.end(1)
    assert result.cause is Cause.PAUSE and result.exit_code == 1


@pytest.mark.parametrize(
    ("up", "srun", "cause"),
    [
        (1, "srun: error: n2: task 1: Terminated", Cause.PREEMPTION),
        (2, "srun: error: n2: task 1: Terminated", None),
        (1, "srun: error: n2: task 1: Exited with exit code 1", None),
        (1, "srun: error: n2: task 1: Out Of Memory", None),
    ],
)
def test_a_preemption_while_agents_start(up: int, srun: str, cause: Cause | None) -> None:
    """One that is still starting dies of the signal without a word, where it is no failure; but
    what has failed makes srun send the others the same signal."""
    machine = Machine()
    for node in range(up):
        machine.report(node, event="up")
    machine.report(event="preempted")
    machine.state.on_srun_line(srun)
    result = machine.end(143)
    assert result.cause is cause and result.exit_code == 143


@pytest.mark.parametrize("why", ["Communication connection failure", "Job credential expired"])
def test_a_node_that_srun_does_not_reach(why: str) -> None:
    """Slurm may take minutes to see that it is dead; and a slow one gets its credential late."""
    machine = Machine()
    machine.report(event="up")
    machine.state.on_srun_line(f"srun: error: Task launch for StepId=7.1 failed on node n2: {why}")
    machine.state.on_srun_line(f"srun: error: Application launch failed: {why}")
    result = machine.end(233)
    assert (result.unlaunched, result.exit_code, result.cause) == (["n2"], 233, None)


LATE = "srun: error: Task launch for StepId=7.1 failed on node n2: Socket timed out"


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_node_that_comes_up_after_srun_gave_it_up(gives_up: bool) -> None:
    """Its code would begin in a step that srun ends, while the same run begins in another one."""
    machine = Machine()
    machine.report(**HERE)
    if gives_up:
        machine.state.on_srun_line(LATE)
    machine.report(1, **HERE)
    assert machine.sent == ([] if gives_up else [PEERS.strip()])
    assert machine.end(233).unlaunched == (["n2"] if gives_up else [])


@pytest.mark.parametrize(("arrived", "why"), [(2, "Socket timed out"), (1, "User not found")])
def test_launches_that_fail_for_another_reason(arrived: int, why: str) -> None:
    """Those of the code's own steps, and those that will fail again."""
    machine = Machine()
    for node in range(arrived):
        machine.report(node, **HERE)
    machine.state.on_srun_line(f"srun: error: Task launch for StepId=7.2 failed on node n2: {why}")
    assert machine.end(1).unlaunched == []


@pytest.mark.parametrize(("up", "unlaunched"), [(True, []), (False, ["n1"])])
def test_a_single_node_that_srun_gives_up(up: bool, unlaunched: list[str]) -> None:
    """Its agent waits for no others: where it is up, the code may have begun, and this run must not
    begin again in another step."""
    machine = Machine(1)
    machine.state.on_srun_line(LATE.replace("n2", "n1"))
    if up:
        machine.report(event="up")
    result = machine.end(233)
    assert result.unlaunched == unlaunched and result.exit_code == 233


def test_a_request_that_is_made_again_is_logged_once() -> None:
    """By the nodes, and by Slurm when the whole job ends."""
    machine = Machine(1)
    machine.report(event="preempted")
    machine.sigterm(Cause.PREEMPTION)
    assert machine.state.result.cause is Cause.PREEMPTION
    assert machine.log == ["asking the code to stop: preemption"]
    assert machine.sent == [PREEMPT, PREEMPT]


def test_the_end_of_a_job_leaves_half_of_its_grace_to_record_it() -> None:
    """A cancelled job does not come back, though its agents saw a preemption."""
    machine = Machine(1)
    machine.report(event="preempted")
    machine.sigterm(Cause.KILL)
    result = machine.state.result
    assert result.cause is Cause.KILL and result.job_is_ending and not result.yield_allocation
    assert machine.sent[-1] == KILL
    assert machine.state.is_given_up(10.0) and not machine.state.is_given_up(9.9)


def test_code_that_does_not_leave_is_killed() -> None:
    """After the time limit for its preemption; ten seconds more, and the step is given up."""
    machine = Machine(1)
    machine.request(Cause.CANCEL)
    assert machine.state.next_deadline == 60
    machine.at(60)
    assert machine.sent == [PREEMPT, KILL]
    assert machine.log[-1] == "the code did not exit in time: killing it"
    assert machine.state.is_given_up(70)


def test_an_unknown_report_shows_that_its_agent_is_there() -> None:
    machine = Machine(1)
    machine.report(event="of a later version", exit_code="?")
    result = machine.end(1)
    assert result.began and result.agent_lost


@pytest.mark.parametrize(
    ("srun", "cause"),
    [
        (["n1: task 0: Terminated", "n2: task 1: Out Of Memory", "n1: task 0: Killed"],
         "n2: task 1: Out Of Memory"),
        ([], "the step exited with 137"),
    ],
)  # fmt: skip
def test_an_agent_that_was_killed(srun: list[str], cause: str) -> None:
    """How the code has ended is unknown. The first error of srun about an agent is repeated."""
    machine = Machine()
    for node in range(2):
        machine.report(node, event="up")
    for line in srun:
        machine.state.on_srun_line(f"srun: error: {line}")
    result = machine.end(137)
    assert result.why == f"a node agent ended without a report: {cause}"


@pytest.mark.parametrize("stands", [True, False])
def test_an_idle_run_is_paused(stands: bool) -> None:
    """By a pause of the experiment, which others see, too; it may stand though its writing
    failed."""
    machine = Machine(1, idle="pause")
    machine.idleness(True)
    assert machine.records == [("pause", "nothing was done")] and not machine.log
    machine.recorded(not stands, Cause.PAUSE)
    assert machine.log[0] == "nothing was done: pause (slurm.idle_guard)"
    assert machine.sent == [PREEMPT] and not machine.state.may_be_idle
    assert machine.end(137).cause is Cause.PAUSE


def test_an_idle_run_is_ended_at_once_where_it_is_to_begin_again() -> None:
    machine = Machine(1, idle="restart")
    machine.idleness(True)
    assert machine.sent == [KILL] and not machine.records
    result = machine.end(137)
    assert result.why == "nothing was done" and result.cause is None


def test_a_run_that_is_at_work_again() -> None:
    """Each change is recorded before it is logged."""
    machine = Machine(1, idle="warn")
    for is_idle in (True, True, False):
        machine.idleness(is_idle)
        if is_idle is not machine.state.may_be_idle or len(machine.log) < len(machine.records):
            machine.recorded(True)
    assert machine.records == [("warn", "nothing was done"), ("warn", None)]
    assert machine.log == [
        "warning: the run holds its slots idle: nothing was done",
        "the run is at work again",
    ]


@pytest.mark.parametrize("action", ["pause", "warn"])
def test_what_the_guard_cannot_record_it_does_not_do(action: str) -> None:
    """A paused run would begin again, as after a failure. It is tried again after a minute."""
    machine = Machine(1, idle=action)
    machine.idleness(True)
    machine.recorded(False)
    assert not machine.log and not machine.sent
    assert not machine.state.judges_idleness(59) and machine.state.judges_idleness(60)


CAUSES = st.sampled_from(Cause)
NODES = st.integers(0, 1)
EVENTS = st.one_of(
    st.tuples(st.just("report"), NODES, st.sampled_from(["up", "preempted", "stop", "invalid_hp"])),
    st.tuples(st.just("arrived"), NODES),
    st.tuples(st.just("ended"), NODES, st.sampled_from([0, 1, 137]), st.booleans(), st.booleans()),
    st.tuples(st.just("request"), CAUSES),
    st.tuples(st.just("sigterm"), st.none() | CAUSES),
    st.tuples(st.just("time"), st.floats(0.0, 700.0)),
    st.tuples(st.just("idleness"), st.booleans(), st.booleans()),
    st.tuples(st.just("srun"), st.sampled_from([LATE, "srun: error: n2: task 1: Terminated"])),
)


def play(machine: Machine, event: tuple[Any, ...]) -> None:
    match event:
        case "report", node, kind:
            machine.report(node, event=kind)
        case "arrived", node:
            machine.report(node, **HERE)
        case "ended", node, code, preempted, acknowledged:
            how = {"exit_code": code, "preempted": preempted, "acknowledged": acknowledged}
            machine.report(node, **ENDED | how)
        case "request", cause:
            machine.request(cause)
        case "sigterm", cause:
            machine.sigterm(cause)
        case "time", seconds:
            machine.at(machine.now + seconds)
        case "idleness", is_idle, done:
            before = len(machine.records)
            machine.idleness(is_idle)
            if len(machine.records) > before:
                machine.recorded(done)
        case "srun", line:
            machine.state.on_srun_line(line)


@given(st.lists(EVENTS, max_size=12), st.sampled_from([0, 1, 143]))
def test_any_story_has_an_end(events: list[tuple[Any, ...]], status: int) -> None:
    """Whatever comes in whatever order: what was asked for is logged and has a time limit, nodes
    meet only when all are there, and the end is a decision."""
    machine = Machine(idle="warn", rendezvous=100.0)
    machine.follow(machine.state.on_look(None, 1e9, 0.0))
    for event in events:
        play(machine, event)
        result = machine.state.result
        if PREEMPT in machine.sent:
            assert any(line.startswith("asking the code to stop") for line in machine.log)
            assert machine.state.next_deadline <= machine.now + 60
        if KILL in machine.sent:
            assert machine.state.is_given_up(machine.now + 15)
        if PEERS.strip() in machine.sent:
            assert {node for kind, node, *_ in events if kind == "arrived"} == {0, 1}
        if result.cause is Cause.KILL:
            assert KILL in machine.sent
        assert "secret" not in str(machine.log)
    ended = {event[1]: event[2] for event in events if event[0] == "ended"}
    result = machine.end(status)
    assert result.exit_code or len(ended) == 2
    assert not (result.agent_lost and len(ended) == 2)
    assert decide(result, EndFacts()).reason
