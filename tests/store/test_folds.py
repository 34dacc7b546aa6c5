"""Views follow from facts: terminal states win, intents count, oddities are skipped."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm._base.states import FINISHED, TERMINAL, UNKNOWN
from detslurm.store import (
    DesiredState,
    ExperimentFacts,
    FoldContext,
    RunLog,
    Store,
    TrialView,
    fold_experiment,
    fold_trial,
)
from detslurm.store.checkpoint_fold import CheckpointFacts
from detslurm.store.experiment_fold import experiment_state
from detslurm.store.frame import frame
from detslurm.store.reading import started_checkpoints
from detslurm.store.run_records import EndRecord, StartRecord, well_formed
from detslurm.store.trial_fold import RunFacts, trial_view
from tests.store import scenes

TRIAL_STATES = ("QUEUED", "RUNNING", "PAUSED", "COMPLETED", "ERROR", "CANCELED", UNKNOWN)
OUTCOMES = st.sampled_from(
    [*TERMINAL, "restart", "preempted", "time_limit", "paused", "node_failed", "lost", "new"]
)
ENDS = st.none() | st.builds(lambda outcome: {"outcome": outcome, "time": 5.0}, OUTCOMES)
EVIDENCE = st.sampled_from([None, "NODE_FAIL"])


def view(*runs: RunFacts, **context: Any) -> TrialView:
    """The view of trial 1 with these runs."""
    return trial_view(1, 1, runs, FoldContext(metric="loss", **context))


def run_facts(number: int, start: object = None, end: object = None, **log: Any) -> RunFacts:
    """A run as read, with records of these fields."""
    begin = msgspec.convert(start or {}, StartRecord)
    return RunFacts(number=number, start=begin, end=msgspec.convert(end, EndRecord | None), **log)


def ended(*outcomes: str | None) -> list[RunFacts]:
    """Runs with these end records."""
    return [
        run_facts(number=n, start={"time": float(n)}, end={"outcome": outcome} if outcome else None)
        for n, outcome in enumerate(outcomes, 1)
    ]


@pytest.mark.parametrize(("trained", "steps"), [((1, 2), 2), ((), 5_000)])
def test_other_groups_may_count_something_else(trained: tuple[int, ...], steps: int) -> None:
    """Tokens, say: they are the steps of code that reports nothing else."""
    found = view(run_facts(number=1, training_steps=trained, other_steps=[4_000, 5_000]))
    assert (found.steps, found.runs[0].steps) == (steps, steps)
    resumed = {"resume": {"uuid": "c", "steps": 1}}
    second = run_facts(number=2, start=resumed, other_steps=[6_000])
    found = view(run_facts(number=1, training_steps=(1, 2), other_steps=[4_000]), second)
    assert (found.steps, found.runs[1].steps) == (2, 1)


@given(st.lists(ENDS, max_size=6), st.booleans(), EVIDENCE)
def test_a_terminal_end_record_wins(
    ends: list[dict[str, Any] | None], stopping: bool, lost: str | None
) -> None:
    """Once a run ended for good nothing changes the state: no intent, no queue, no later run."""
    runs = [run_facts(number=n, end=end) for n, end in enumerate(ends, 1)]
    desired = DesiredState(stopping="kill" if stopping else None)
    found = view(*runs, desired=desired, lost=lost)
    assert found.state in TRIAL_STATES
    words = [end["outcome"] for end in ends if end and end["outcome"] in TERMINAL]
    assert found.final == bool(words)
    if words:
        assert found.state == TERMINAL[words[0]]
        assert found == view(*runs, desired=DesiredState(paused=True))
        assert found.ended == 5.0
    assert found.restarts == sum((end or {}).get("outcome") == "restart" for end in ends)


def test_a_checkpoint_that_the_time_limit_just_let_through_counts() -> None:
    """The runner decides before the code has been killed, which may save until then."""
    end = {"outcome": "restart", "cause": "time_limit", "exit_code": 137}
    late = {"t": "checkpoint", "uuid": "a", "steps": 10, "resources": {}}
    for records, cause, used in (
        ([late], end, 0),
        ([], end, 1),
        ([late], {**end, "cause": None}, 1),
        ([late], {**end, "exit_code": 1}, 1),  # an error of its own
    ):
        assert view(run_facts(number=1, end=cause, records=records)).restarts == used
    resumed = run_facts(number=2, start={"resume": {"steps": 10}}, end=end, records=[late])
    assert view(resumed).restarts == 1


def test_a_run_that_continues_the_trial_opens_it_again() -> None:
    """A later run that says so is no zombie."""
    first, second = ended("completed", None)
    second.start = StartRecord(continues=True)
    assert view(first, second).state == "RUNNING"


@pytest.mark.parametrize(
    ("outcomes", "context", "state"),
    [
        ([], {}, "QUEUED"),
        ([None], {}, "RUNNING"),
        (["preempted"], {}, "QUEUED"),
        (["restart", None], {}, "RUNNING"),
        (["paused"], {"desired": DesiredState(paused=True)}, "PAUSED"),
        ([], {"desired": DesiredState(paused=True)}, "PAUSED"),
        ([None], {"desired": DesiredState(paused=True)}, "RUNNING"),
        ([], {"desired": DesiredState(stopping="cancel")}, "CANCELED"),
        (["preempted"], {"desired": DesiredState(stopping="kill")}, "CANCELED"),
        ([None], {"desired": DesiredState(stopping="kill")}, "RUNNING"),
        ([None], {"desired": DesiredState(stopping="kill"), "lost": "NODE_FAIL"}, "CANCELED"),
        ([None], {"desired": DesiredState(killed_trials=frozenset({2}))}, "RUNNING"),
        ([], {"desired": DesiredState(killed_trials=frozenset({1}))}, "CANCELED"),
        ([None], {}, "RUNNING"),
        ([None], {"lost": "NODE_FAIL"}, "ERROR"),
        ([], {"lost": "NODE_FAIL"}, "ERROR"),
        (["invalid_hp"], {}, "COMPLETED"),
        (["killed"], {}, "CANCELED"),
    ],
)
def test_states_of_trials(outcomes: list[Any], context: dict[str, Any], state: str) -> None:
    """A trial is dead only on evidence, stops only when its run is over, and waits otherwise."""
    assert view(*ended(*outcomes), **context).state == state


@pytest.mark.parametrize("context", [{}, {"desired": DesiredState(stopping="kill")}])
def test_a_run_without_an_end_record_ended_with_its_last_one(context: dict[str, Any]) -> None:
    """Where its job is gone for good: no duration grows on, and the run is not shown as running."""
    run = run_facts(number=1, start={"time": 1.0}, last_time=70.0)
    found = view(run, lost="NODE_FAIL", **context)
    assert found.ended == found.runs[0].ended == 70.0
    assert (found.runs[0].outcome, found.runs[0].reason) == ("lost", "NODE_FAIL")
    assert view(run, **context).runs[0].ended is None
    assert view(run, closed="error", **context).runs[0].ended == 70.0, "by its search"
    assert view(run, closed="completed", **context).runs[0].ended is None, "it may be leaving"
    silent = run_facts(number=1, start={"time": 1.0})
    assert view(silent, lost="NODE_FAIL").runs[0].ended == 1.0


def test_a_run_that_was_found_lost_ended_before_that() -> None:
    """The next run may begin hours later."""
    lost = run_facts(
        number=1, start={"time": 1.0}, end={"outcome": "lost", "time": 9e4}, last_time=7.0
    )
    found = view(lost, run_facts(number=2, start={"time": 9e4}))
    assert [run.ended for run in found.runs] == [7.0, None]


INTENTS = st.sampled_from(["pause", "activate", "cancel", "kill", "archive", "unarchive"])


def _folded(intents: list[str]) -> DesiredState:
    facts = [{"n": n, "type": "intent", "intent": intent} for n, intent in enumerate(intents, 2)]
    return ExperimentFacts().fold(facts).desired


@given(st.lists(INTENTS), st.randoms())
def test_stopping_does_not_depend_on_the_order_of_intents(intents: list[str], random: Any) -> None:
    """Kill beats cancel, neither is taken back; pausing and archiving take the latest."""
    folded = _folded(intents)
    shuffled = list(intents)
    random.shuffle(shuffled)
    assert _folded(shuffled).stopping == folded.stopping
    assert folded.stopping == (
        "kill" if "kill" in intents else "cancel" if "cancel" in intents else None
    )
    pauses = [intent for intent in intents if intent in ("pause", "activate")]
    assert folded.paused == (pauses[-1:] == ["pause"])
    archives = [intent for intent in intents if "archive" in intent]
    assert folded.archived == (archives[-1:] == ["archive"])


@given(st.lists(st.sampled_from(TRIAL_STATES)), st.sampled_from([None, "cancel", "kill"]))
def test_an_experiment_is_over_when_all_its_trials_are(
    states: list[str], stopping: str | None
) -> None:
    """Its state is final exactly then, does not depend on the trials' order, and is an error
    only if no trial completed."""
    state = experiment_state(DesiredState(stopping=stopping), states)
    assert state == experiment_state(DesiredState(stopping=stopping), states[::-1])
    over = bool(states) and FINISHED.issuperset(states)
    assert (state in FINISHED) == over
    if state == "ERROR":
        assert "COMPLETED" not in states
    if not over and stopping is None:
        assert state == "ACTIVE"
        assert experiment_state(DesiredState(paused=True), states) == "PAUSED"
    assert experiment_state(DesiredState(deleted=True), states) == "DELETED"


def test_a_trial_that_failed_by_no_fault_of_its_code_is_told_apart() -> None:
    """Its code never began, or its job was lost; an experiment that lacks it is not complete."""
    begun, failed = {"outcome": "restart", "began": False}, {"outcome": "error"}
    never = [run_facts(number=1, end=begun), run_facts(number=2, end=failed | {"began": False})]
    assert view(*never).interrupted
    assert view(run_facts(number=1), lost="its job is gone").interrupted
    assert view(closed="error").interrupted
    for runs in (ended("error"), ended("completed"), ended(None), [never[0], *ended("error")]):
        assert not view(*runs).interrupted
    states = ["COMPLETED", "ERROR"]
    assert experiment_state(DesiredState(), states) == "COMPLETED"
    assert experiment_state(DesiredState(), states, interrupted=True) == "ERROR"


def test_a_trial_that_fails_on_two_nodes_counts_for_neither() -> None:
    """Then the trial is to blame; a run whose node is to blame uses no restart."""
    failed = [("n2", [(1, 1), (2, 1)]), ("n3", [(2, 2)]), ("n4", [(2, 3)])]
    facts = [{"type": "node_failed", "n": 2, "node": n, "runs": runs} for n, runs in failed]
    facts.append({"type": "node_failed", "n": 5, "node": "n2", "jobs": ["7_1"], "excluded": True})
    folded = ExperimentFacts().fold(facts)
    assert (folded.failing_nodes, folded.excluded) == ({"n2": 2}, {"n2"})
    assert view(run_facts(number=1, end={"outcome": "restart", "bad_node": "n2"})).restarts == 0


@pytest.mark.parametrize(("kind", "used"), [("container", 2), ("startup-hook", 3), ("0f3a", 3)])
def test_the_first_failure_of_the_site_in_a_row_uses_no_restart(kind: str, used: int) -> None:
    """The same failure once more uses one, or a container that never begins has no last run."""
    end = {"outcome": "restart", "failure": {"error": "it failed", "digest": kind}}
    assert view(*(run_facts(number=n, end=end) for n in (1, 2, 3))).restarts == used


JUNK = st.dictionaries(
    st.sampled_from(["t", "group", "steps", "metrics", "uuid", "value", "text", "data", "reason"]),
    st.none()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["metrics", "validation", "checkpoint", "progress", "completed"])
    | st.dictionaries(st.just("loss"), st.floats() | st.text(max_size=2), max_size=1),
)


@given(st.lists(JUNK, max_size=8))
def test_no_record_however_odd_breaks_a_view(records: list[dict[str, Any]]) -> None:
    """What does not have the shape of its kind is left out before folding; all else folds."""
    sound = [record for record in records if well_formed(record)]
    found = view(run_facts(number=1, records=sound))
    assert found.state == "RUNNING"
    assert 0 <= found.progress <= 1


def test_odd_lines_are_reported_and_skipped(store: Store) -> None:
    """Unknown kinds are passed over in silence; malformed and damaged lines are problems."""
    trial = scenes.trial(store)
    odd = [
        {"t": "from the future"},
        {"t": "metrics", "steps": "x"},
        {"no": "kind"},
        scenes.checkpoint("c", 3),
    ]
    number = scenes.run(trial, odd, "preempted")
    with trial.records_path(number).open("ab") as file:
        file.write(b"garbage\n" + frame(scenes.metrics(9, loss=1)) + b"torn")
    found = fold_trial(trial)
    assert [checkpoint.uuid for checkpoint in found.checkpoints] == ["c"]
    assert [p.reason for p in found.problems] == [
        "malformed record",
        "checksum differs",
        "torn tail",
    ]
    assert found.steps == 9


def test_the_tail_of_a_log_that_is_being_written_is_no_problem(store: Store) -> None:
    """A half record of a live run may just be on its way."""
    trial = scenes.trial(store)
    number = scenes.run(trial, [scenes.metrics(1, loss=1)])
    with trial.records_path(number).open("ab") as file:
        file.write(b"0000")
    assert not fold_trial(trial).problems
    trial.write_end(number, {"outcome": "completed"})
    assert [problem.reason for problem in fold_trial(trial).problems] == ["torn tail"]


def test_damaged_facts_are_reported_and_skipped(store: Store) -> None:
    """A fact that cannot be read is named; the facts after it count."""
    made = scenes.finished(store)
    number = made.append({"type": "note"})
    made.append({"type": "set", "field": "name", "value": "new"})
    made.log.name(number).write_bytes(b"damaged\n")
    found = fold_experiment(made)
    assert found.name == "new"
    assert [problem.path for problem in found.problems] == [str(made.log.name(number))]


def test_the_latest_checkpoint_is_the_newest_runs(store: Store) -> None:
    """Epochs count, not steps; deleted and unfinished ones do not."""
    trial = scenes.trial(store)
    started = {"t": "checkpoint_started", "uuid": "half"}
    scenes.run(
        trial, [scenes.checkpoint("a", 100), scenes.checkpoint("b", 200), started], "restart"
    )
    scenes.run(trial, [scenes.checkpoint("c", 50)], "preempted", {"uuid": "a", "steps": 40})
    found = fold_trial(trial)
    assert found.latest_checkpoint is not None
    assert found.latest_checkpoint.uuid == "c"
    assert list(started_checkpoints(trial, 1)) == ["a", "b", "half"]
    assert found.restarts == 1
    scenes.run(trial, [{"t": "checkpoint_deleted", "uuid": "c"}])
    found = fold_trial(trial)
    assert found.latest_checkpoint is not None
    assert found.latest_checkpoint.uuid == "b"
    context = FoldContext(checkpoints=CheckpointFacts(deletions={"a": 1.0, "b": 2.0}))
    assert fold_trial(trial, context).latest_checkpoint is None
    assert len(fold_trial(trial, context).checkpoints) == 3


def test_a_zombies_checkpoint_is_superseded(store: Store) -> None:
    """What an old run writes after the next one began does not count."""
    trial = scenes.trial(store)
    number = scenes.run(trial, [scenes.checkpoint("a", 10)])
    with RunLog.open(trial.records_path(number)) as zombie:
        trial.open_run({"resume": {"uuid": "a", "steps": 10}})
        zombie.commit(scenes.checkpoint("late", 99))
        zombie.commit(scenes.metrics(99, "validation", loss=0.0))
    found = fold_trial(trial, FoldContext(metric="loss"))
    assert [checkpoint.uuid for checkpoint in found.checkpoints] == ["a"]
    assert list(started_checkpoints(trial, 2)) == ["a", "late"]
    assert found.best_validation is None
    assert found.steps == 10


VALUES = st.floats() | st.integers(-5, 5)


@given(st.lists(VALUES, min_size=1), st.booleans())
def test_the_best_validation_is_the_first_of_the_best(values: list[float], smaller: bool) -> None:
    """NaN is the worst of all, infinities are worse than any other number, whichever direction is
    better, and equals keep the earlier one."""
    records = [scenes.metrics(n, "validation", loss=value) for n, value in enumerate(values)]
    best = view(run_facts(number=1, records=records), smaller_is_better=smaller).best_validation
    assert best is not None
    finite = [value for value in values if math.isfinite(value)]
    infinite = [value for value in values if math.isinf(value)]
    if finite:
        wanted = min(finite) if smaller else max(finite)
    else:
        wanted = infinite[0] if infinite else values[0]
    assert best.value is wanted or best.value == wanted
    assert best.steps == values.index(wanted)


def test_a_validation_without_the_metric_is_never_best() -> None:
    """Other metrics alone, or words, cannot win."""
    records = [
        scenes.metrics(1, "validation", other=1),
        scenes.metrics(2, "validation", loss="low"),
        scenes.metrics(3, "validation", loss=7),
    ]
    best = view(run_facts(number=1, records=records)).best_validation
    assert best is not None
    assert best.steps == 3


def test_a_views_small_print(store: Store) -> None:
    """Status, progress, metadata, length, early exit and hyperparameters are the newest ones."""
    trial = scenes.trial(store)
    scenes.run(
        trial,
        [
            {"t": "progress", "value": 0.25},
            {"t": "status", "text": "warming up"},
            {"t": "run_metadata", "data": {"a": 1}},
            {"t": "completed", "length": 7, "metric": 0.5},
            {"t": "early_exit", "reason": "invalid_hp"},
        ],
        "error",
        reason="lr < 0",
        exit_code=0,
    )
    found = fold_trial(trial)
    assert (found.progress, found.status, found.metadata) == (0.25, "warming up", {"a": 1})
    assert found.length is not None
    assert found.length["length"] == 7
    assert (found.early_exit, found.end_reason, found.exit_code) == ("invalid_hp", "lr < 0", 0)
    assert found.hparams == {"lr": 0.1}
    assert found.row().id == found.id


@pytest.mark.parametrize(
    ("length", "records", "progress"),
    [
        (10, [scenes.metrics(4, "training", loss=1)], 0.4),
        (10, [scenes.metrics(4, "training", loss=1), scenes.checkpoint("c", 6)], 0.6),
        (10, [scenes.metrics(11, "validation", loss=1)], 1.0),  # reported every few batches
        (10, [scenes.metrics(500, "validation", loss=1)], 0.0),  # batches, of 10 epochs
        (10, [scenes.metrics(500, "validation", loss=1), {"t": "completed", "length": 10}], 1.0),
        (10, [{"t": "progress", "value": 0.25}, scenes.metrics(4, "validation", loss=1)], 0.25),
        (None, [scenes.metrics(4, "validation", loss=1)], 0.0),
    ],
)
def test_the_progress_of_code_that_reports_none(
    length: int | None, records: list[dict[str, Any]], progress: float
) -> None:
    """Its steps and checkpoints of the configured length, where they count the same."""
    found = view(run_facts(number=1, records=records), length=length)
    assert found.progress == progress


def test_a_resubmission_gives_lost_trials_another_chance() -> None:
    """Evidence of death holds until a later fact submits the trial again."""
    facts: list[dict[str, Any]] = [
        {"type": "created", "first_trial": 5, "trials": 3},
        {"type": "submitted", "jobs": [{"cluster": "slurm", "job_id": "1", "count": 3}]},
        {"type": "lost", "trials": [5, 6], "reason": "NODE_FAIL"},
        {"type": "submitted", "jobs": [{"job_id": "2", "first_index": 1, "new": "field"}]},
        {"type": "trials", "first_trial": 20, "trials": 2},
    ]
    for number, fact in enumerate(facts, 1):
        fact["n"] = number
    found = ExperimentFacts().fold(facts)
    assert found.lost == {5: "NODE_FAIL"}
    assert found.trial_ids == [5, 6, 7, 20, 21]
    assert [job.job_id for job in found.jobs] == ["1", "2"]
    assert found.submitted_after(2) == {6}
    assert found.context(5).lost == "NODE_FAIL"
