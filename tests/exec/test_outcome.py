"""The precedence of outcomes, as a table."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from detslurm._base.states import FailureKind
from detslurm.exec import outcome
from detslurm.exec.failure import Failure
from detslurm.exec.outcome import (
    Action,
    AttemptResult,
    Cause,
    Decision,
    EndFacts,
    describe_exit,
    meaning,
)


def decide(**about: Any) -> Decision:
    """The decision by fields of the attempt's result and by facts of the run."""
    result = {name: about.pop(name) for name in AttemptResult.__struct_fields__ if name in about}
    return outcome.decide(AttemptResult(**result), EndFacts(**about))


def outcome_of(**about: Any) -> tuple[str, Action]:
    decision = decide(**about)
    return decision.outcome, decision.action


@pytest.mark.parametrize("exit_code", [0, 1, 137, 143])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_kill_by_the_user_outranks_everything(exit_code: int, acknowledged: bool) -> None:
    """Whatever the code did, a killed trial is killed and uses no restart."""
    facts = {"exit_code": exit_code, "acknowledged": acknowledged, "refusal": "bad"}
    assert outcome_of(cause=Cause.KILL, **facts) == ("killed", Action.STOP)


@pytest.mark.parametrize("exit_code", [0, 1, 3, 139])
def test_acknowledged_preemption_uses_no_restart(exit_code: int) -> None:
    """Code that acknowledged goes on later whatever its exit code."""
    for cause, expected in {
        Cause.PREEMPTION: ("preempted", Action.REQUEUE),
        Cause.TIME_LIMIT: ("time_limit", Action.REQUEUE),
        Cause.PAUSE: ("paused", Action.HOLD),
        Cause.CANCEL: ("canceled", Action.STOP),
    }.items():
        assert outcome_of(exit_code=exit_code, cause=cause, acknowledged=True) == expected


def test_no_progress_at_the_time_limit_uses_restarts() -> None:
    """Other causes say nothing of the code; the last restart is the end."""
    won_nothing = {"exit_code": 0, "acknowledged": True, "stalled": True}
    assert outcome_of(cause=Cause.TIME_LIMIT, **won_nothing) == ("restart", Action.REQUEUE)
    assert outcome_of(cause=Cause.PREEMPTION, **won_nothing) == ("preempted", Action.REQUEUE)
    last = decide(cause=Cause.TIME_LIMIT, restarts=5, **won_nothing)
    assert (last.outcome, last.action) == ("error", Action.STOP)
    assert "without a checkpoint and no further than before" in last.reason


def test_exit_0_without_acknowledgement_completes_the_trial() -> None:
    """Code that ends by itself is done, even while it was asked to stop."""
    for cause in (None, Cause.PREEMPTION, Cause.PAUSE, Cause.CANCEL, Cause.TIME_LIMIT):
        assert outcome_of(exit_code=0, cause=cause) == ("completed", Action.STOP)


def test_a_completed_trial_that_was_asked_to_stop_says_so() -> None:
    """A script with a SIGTERM handler of its own saves and exits with 0, as if it were done."""
    plain = "the code exited with 0"
    for cause, reason in {
        None: plain,
        Cause.PAUSE: plain,
        Cause.PREEMPTION: f"{plain} after it was asked to stop, without should_preempt()",
        Cause.TIME_LIMIT: f"{plain} after it was asked to stop, without should_preempt()",
    }.items():
        assert decide(exit_code=0, cause=cause).reason == reason


def test_a_job_that_slurm_ends_without_a_reason_is_never_requeued() -> None:
    """It may have been cancelled; the trial is not over, for Slurm may start it again."""
    for code in (0, 1, 137, 143):
        decided = outcome_of(exit_code=code, cause=Cause.ENDING, acknowledged=True)
        assert decided == ("ended", Action.STOP)
    assert outcome_of(exit_code=143, cause=Cause.ENDING) == ("ended", Action.STOP)
    assert outcome_of(exit_code=1, cause=Cause.ENDING) == ("restart", Action.STOP)


def test_an_error_restarts_until_the_restarts_are_used() -> None:
    """max_restarts: 2 allows three runs."""
    following = [outcome_of(exit_code=1, restarts=n, max_restarts=2) for n in range(3)]
    assert following == [
        ("restart", Action.RETRY),
        ("restart", Action.RETRY),
        ("error", Action.STOP),
    ]


def test_a_node_that_can_not_begin_gets_time_or_gives_way() -> None:
    """Where its disk is full all restarts would be used within a minute."""
    assert outcome_of(exit_code=1, unprepared=True) == ("restart", Action.REQUEUE)
    assert outcome_of(exit_code=1, unprepared=True, cause=Cause.PAUSE) == ("restart", Action.HOLD)


def test_a_success_is_doubted_where_something_speaks_against_it() -> None:
    """SIGINT, or processes that were killed for lack of memory, though the code exited with 0."""
    doubted = decide(exit_code=0, got_sigint=True, oom_kills=2)
    assert doubted.outcome == "completed"
    assert "SIGINT had come before" in doubted.reason
    assert "killed 2 of its processes for lack of memory" in doubted.reason
    assert "for lack of memory" in decide(exit_code=137, oom_kills=1).reason


def test_a_run_whose_node_is_to_blame_goes_elsewhere() -> None:
    """Whatever restarts are left, and though its code failed so before; not if its user wants."""
    failure = Failure("ImportError: no mount", "digest")
    facts = {"exit_code": 1, "bad_node": "n2", "restarts": 5, "failure": failure}
    decided = decide(**facts, earlier=failure)
    assert (decided.outcome, decided.action) == ("restart", Action.REQUEUE)
    assert "on n2, while other nodes work" in decided.reason
    assert outcome_of(**facts, non_retryable="no srun") == ("restart", Action.REQUEUE)
    assert outcome_of(**facts, cancel_retries="policy") == ("error", Action.STOP)


@pytest.mark.parametrize(
    ("ended_by", "reason"),
    [
        ("preempted", "preempted by Slurm"),
        ("requeued", "requeued by its user, an administrator or its own code"),
        ("node_failed", "a node of its job failed"),
        (None, "preempted by Slurm"),
    ],
)
def test_why_a_job_gives_way(ended_by: str | None, reason: str) -> None:
    """A node that fails is no preemption to its users."""
    facts = {"cause": Cause.PREEMPTION, "acknowledged": True, "ended_by": ended_by}
    assert decide(exit_code=0, **facts) == Decision("preempted", reason, Action.REQUEUE)


def test_an_error_while_giving_way_restarts_elsewhere() -> None:
    """A restart is used, but not in an allocation that is about to end."""
    assert outcome_of(exit_code=1, cause=Cause.PREEMPTION) == ("restart", Action.REQUEUE)
    assert outcome_of(exit_code=1, cause=Cause.PAUSE) == ("restart", Action.HOLD)
    assert outcome_of(exit_code=1, cause=Cause.CANCEL) == ("canceled", Action.STOP)


def test_an_error_while_giving_way_without_a_store_is_none_of_the_code() -> None:
    """It could not save, or report. A run that was not asked to leave is restarted as ever."""
    away: dict[str, object] = {"exit_code": 1, "store_failed": True}
    assert outcome_of(**away, cause=Cause.PREEMPTION) == ("preempted", Action.REQUEUE)
    assert outcome_of(**away, cause=Cause.TIME_LIMIT) == ("time_limit", Action.REQUEUE)
    assert outcome_of(**away, cause=Cause.PAUSE) == ("paused", Action.HOLD)
    ending = {"cause": Cause.ENDING, "store_failed": True}  # its cause is often not known either
    for code in (1, 143):
        assert outcome_of(exit_code=code, **ending) == ("ended", Action.STOP)
    stalled = outcome_of(**away, cause=Cause.TIME_LIMIT, stalled=True)
    assert stalled == ("restart", Action.REQUEUE)
    assert outcome_of(**away) == ("restart", Action.RETRY)
    done = outcome_of(exit_code=0, store_failed=True, cause=Cause.PREEMPTION)
    assert done == ("completed", Action.STOP)


def test_death_by_the_signal_of_the_preemption_is_no_error() -> None:
    """Code that did not react in time loses its work since the checkpoint, not a restart."""
    for code in (137, 143):
        assert outcome_of(exit_code=code, cause=Cause.PREEMPTION) == ("preempted", Action.REQUEUE)
        assert outcome_of(exit_code=code, cause=Cause.PAUSE) == ("paused", Action.HOLD)


def test_a_segment_without_a_checkpoint_counts_as_a_restart() -> None:
    """A script that never saves is not chained for ever."""
    killed = {"exit_code": 137, "cause": Cause.TIME_LIMIT}
    assert outcome_of(**killed, new_checkpoint=True) == ("time_limit", Action.REQUEUE)
    assert outcome_of(**killed) == ("restart", Action.REQUEUE)
    assert outcome_of(**killed, restarts=5, max_restarts=5) == ("error", Action.STOP)


def test_a_container_that_can_not_begin_is_tried_once_more_and_uses_no_restart() -> None:
    """Its words may differ: they name a process."""
    why, kind = "the container could not begin; ", FailureKind.CONTAINER
    first, second = (Failure(f"{why}{n}", kind) for n in (1, 2))
    about = {"exit_code": 125, "unprepared": True, "why": first.error, "max_restarts": 0}
    once = decide(failure=first, **about)
    assert (once.outcome, once.action) == ("restart", Action.REQUEUE)
    assert once.reason == f"{first.error}; trying once more"
    again = {"failure": second, "earlier": first, **about}
    assert outcome_of(**again) == ("error", Action.STOP)
    # The user wants restarts after the same failure: each uses one, so that they come to an end.
    assert outcome_of(**again, restart_repeated=True) == ("error", Action.STOP)
    limit = again | {"max_restarts": 1}
    assert outcome_of(**limit, restart_repeated=True) == ("restart", Action.REQUEUE)


def test_invalid_hp_ends_the_trial_without_a_restart() -> None:
    """The report counts, not the exit code."""
    for code in (0, 1):
        assert outcome_of(exit_code=code, refusal="bad") == ("invalid_hp", Action.STOP)


def test_a_log_policy_forbids_the_restart() -> None:
    """cancel_retries makes the next failure final and is named in the reason."""
    decision = decide(exit_code=1, cancel_retries="CUDA OOM")
    assert (decision.outcome, decision.action) == ("error", Action.STOP)
    assert "CUDA OOM" in decision.reason


def test_what_would_fail_again_is_not_tried_again() -> None:
    """The reason is the code's own."""
    decision = decide(exit_code=1, non_retryable="there is no metric 'acc'")
    assert (decision.outcome, decision.action) == ("error", Action.STOP)
    assert decision.reason == "there is no metric 'acc'; a restart would not help"


def test_an_error_of_the_code_is_tried_twice() -> None:
    """Whoever wants more says so; another error, or one after work was done, is a restart."""
    failure, other = Failure("KeyError: 'lr'", "1"), Failure("KeyError: 'lr'", "2")
    assert outcome_of(exit_code=1, failure=failure) == ("restart", Action.RETRY)
    decision = decide(exit_code=1, failure=failure, earlier=failure, restarts=1)
    assert (decision.outcome, decision.action) == ("error", Action.STOP)
    assert decision.reason.startswith(
        "KeyError: 'lr'; the last two runs failed with the same error"
    )
    for facts in (
        {"failure": other, "earlier": failure},
        {"earlier": failure},
        {"failure": failure, "earlier": failure, "restart_repeated": True},
    ):
        assert outcome_of(exit_code=1, restarts=1, **facts) == ("restart", Action.RETRY)


def test_the_exception_comes_first() -> None:
    """Before the exit code and the restarts, which are the same for every failure."""
    decision = decide(exit_code=1, error="OSError: gone", max_restarts=0)
    assert decision.reason == "OSError: gone; the code exited with 1 after 0 of 0 restarts"


def test_every_combination_has_an_outcome() -> None:
    """No combination of facts is left undecided, and only errors can use restarts."""
    for cause, ack, code, hp in itertools.product(
        [None, *Cause], [True, False], [0, 1, 137], [None, "bad"]
    ):
        decision = decide(exit_code=code, cause=cause, acknowledged=ack, refusal=hp)
        assert decision.reason
        if decision.outcome == "restart":
            assert code != 0 and not (ack and cause)


def test_how_it_ended_where_the_exit_code_does_not_tell() -> None:
    """Neither a time limit nor a failed hook looks like something else."""
    limited = decide(exit_code=137, cause=Cause.TIME_LIMIT, restarts=5)
    assert "memory" not in limited.reason and "time limit" in limited.reason
    hook = decide(exit_code=3, why="startup-hook.sh exited with 3")
    assert hook.reason == "startup-hook.sh exited with 3; restart 1 of 5"


def test_exits_are_described_for_people() -> None:
    """Signals are named."""
    assert describe_exit(3) == "exited with 3"
    assert describe_exit(143) == "was killed by SIGTERM"
    assert describe_exit(137) == "was killed by SIGKILL (out of memory?)"
    assert describe_exit(255) == "exited with 255"


@pytest.mark.parametrize("exit_code", [0, 1, 137, 143])
def test_what_the_search_has_stopped_is_completed(exit_code: int) -> None:
    """Whatever the code says to it, and although it acknowledged: nobody goes on with it."""
    for acknowledged in (True, False):
        facts = {"exit_code": exit_code, "acknowledged": acknowledged}
        assert outcome_of(cause=Cause.STOP, **facts) == ("completed", Action.STOP)
    for cause in Cause:
        strongest = cause if cause in (Cause.CANCEL, Cause.KILL) else Cause.STOP
        expected = meaning(strongest).decision
        assert decide(cause=cause, stopped=True, acknowledged=True) == expected


def test_the_causes_have_an_order() -> None:
    """Of two causes that come in any order the same one counts."""
    assert len({meaning(cause).rank for cause in Cause}) == len(Cause)


def test_a_trial_that_may_be_promoted_rests() -> None:
    """It exits with 0 as a completed one does; everything else is as ever."""
    assert outcome_of(exit_code=0, resting=True) == ("out_of_ops", Action.STOP)
    assert outcome_of(exit_code=1, resting=True) == ("restart", Action.RETRY)
    preempted = {"cause": Cause.PREEMPTION, "acknowledged": True}
    assert outcome_of(exit_code=0, resting=True, **preempted) == ("preempted", Action.REQUEUE)
