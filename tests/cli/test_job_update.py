"""`detslurm job update` and `update-batch`: what they tell, and that they change all or nothing."""

from __future__ import annotations

from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene
from tests.sdk.test_job_update import order, row


def test_a_change_is_told_with_the_place_that_it_gave(scene: Scene, detslurm: Detslurm) -> None:
    """One line; several changes of a job are made in the order of their names' list."""
    scene.queue.rows = [row("1"), row("2"), row("3", user="bob")]
    done = detslurm("job", "update", "2", "--ahead-of", "1")
    assert done.status == 0
    assert done.out == (
        "Moved job 2 ahead of job 1: job 2 is now 1st of your 2 pending jobs in main; no jobs of"
        " others stand before it\n"
    )
    again = detslurm("job", "update", "2", "--ahead-of", "1")
    assert again.out.startswith("Left job 2, which is ahead of job 1 already: job 2 is now 1st")
    done = detslurm("j", "update", "1", "-w", "2.5", "--json")
    assert done.data[0]["change"] == "1.weight=2.5"
    assert done.data[0]["message"].startswith("Set `weight` of job 1 to 2.5: job 1 is now 1st")
    assert detslurm("job", "update", "3", "--ahead-of", "1").status == 1


def test_a_batch_is_checked_whole(scene: Scene, detslurm: Detslurm) -> None:
    """Wrong syntax is a usage error, an impossible change a refusal; nothing was changed then."""
    scene.queue.rows = [row("1"), row("2"), row("3")]
    wrong = detslurm("job", "update-batch", "3.priority=1", "2.prio=1", "x")
    assert wrong.status == 2
    assert "'prio' can't be changed of a job; there are priority, weight" in wrong.err
    assert "x: a change is written ID.NAME=VALUE" in wrong.err
    refused = detslurm("job", "update-batch", "3.priority=1", "4.priority=1", "2.ahead-of=9")
    assert refused.status == 1
    assert "no job 4" in refused.err and "no job 9" in refused.err
    assert scene.queue.calls == []
    done = detslurm("job", "update-batch", "3.priority=1", "2.behind-of=1", '1.resource-pool="low"')
    assert done.status == 2  # a shell takes the quotes away
    done = detslurm("job", "update-batch", "3.priority=1", "2.ahead-of=1")
    assert (done.status, len(done.out.splitlines())) == (0, 2)
    assert order(scene) == ["3", "2", "1"]


def test_a_failure_stops_no_other_change(scene: Scene, detslurm: Detslurm) -> None:
    """Each result is told; the exit status is 1."""
    scene.queue.rows = [row("1"), row("2")]
    done = detslurm("job", "update-batch", "1.max-slots=3", "2.priority=1")
    assert done.status == 1
    assert "ArrayTaskThrottle" in done.err
    assert done.out.startswith("Set `priority` of job 2 to 1: job 2 is now 1st of your 2 pending")
