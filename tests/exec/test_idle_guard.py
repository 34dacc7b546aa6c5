"""When a run counts as idle: by what its nodes measured and by what it reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detslurm.exec.idle_guard import IdleGuard, NodeActivity, RecordsNews, idle_seconds
from detslurm.store import RunLog, StoreFault
from detslurm.store.run_usage import is_idle

IDLE = {"seconds": 15.0, "cpu": 0.1}
BUSY = {"seconds": 15.0, "cpu": 14.0}


@pytest.mark.parametrize(
    ("sample", "slots", "expected"),
    [
        (IDLE, 1, True),
        (BUSY, 1, False),
        ({"seconds": 15.0, "cpu": 1.0}, 1, False),  # 7 % of a CPU: something is going on
        ({"seconds": 15.0, "cpu": 1.0}, 8, True),  # of eight ranks, each of which looks around
        ({"seconds": 15.0, "cpu": 4.0}, 64, False),  # code with one busy thread is never idle
        ({"seconds": 15.0}, 1, None),
        ({**IDLE, "starved": 1}, 1, None),  # it waits for a CPU that others have
        ({**IDLE, "gpus": [{"percent": 0}, {"percent": 0}]}, 2, True),
        ({**IDLE, "gpus": [{"percent": 0}, {"percent": 3}]}, 2, False),
        ({**BUSY, "gpus": [{"percent": 0}]}, 1, False),  # the CPUs compute, silently
        ({**IDLE, "gpus": [{"percent": 0}, {}]}, 2, None),  # unavailable is not zero
    ],
)
def test_what_a_node_does(sample: dict[str, Any], slots: int, expected: bool | None) -> None:
    """Where it can't be known, it is unknown."""
    assert is_idle(sample, slots) is expected


def test_all_nodes_must_be_known_to_be_idle() -> None:
    """From when the last of them began, or from the last report, and as far as each is known."""
    here, there = NodeActivity(1000, 100), NodeActivity(990, 300)
    assert idle_seconds({0: here, 1: there}, 2, reported=0, now=1000) == 690
    assert idle_seconds({0: here, 1: there}, 2, reported=900, now=1000) == 90
    assert idle_seconds({0: here, 1: there}, 2, reported=995, now=1000) == 0
    assert idle_seconds({0: here}, 2, reported=0, now=1000) == 0
    assert idle_seconds({0: here, 1: NodeActivity(990, None)}, 2, reported=0, now=1000) == 0
    assert idle_seconds({0: here, 1: NodeActivity(900, 300)}, 2, reported=0, now=1000) == 0


@pytest.mark.parametrize("gap", [70.0, 7200.0])
def test_a_job_that_was_suspended_was_not_idle(gap: float) -> None:
    """Over a gap nothing is known: the sample that ends it says what was not done."""
    watch = guard()
    for node in (0, 1):
        watch.on_sample(node, {"seconds": gap, "cpu": 0.1}, gap)
    assert not watch.is_idle(gap)


def guard(has_news: Callable[[], bool] = lambda: False) -> IdleGuard:
    """One for two nodes, with a limit of a minute."""
    return IdleGuard(60.0, "warn", nodes=["n1", "n2"], slots=2, has_news=has_news)


def feed(watch: IdleGuard, seconds: range, **more: int) -> None:
    """Idle samples of both nodes."""
    for now in seconds:
        for node in (0, 1):
            watch.on_sample(node, {**IDLE, **(more if node else {})}, float(now))


def test_an_idle_run_is_found_after_the_limit() -> None:
    """And what has happened is named."""
    watch = guard()
    feed(watch, range(15, 60, 15), stopped=1)
    assert not watch.is_idle(59.0)
    feed(watch, range(60, 75, 15), stopped=1)
    assert watch.is_idle(60.0)
    assert watch.text() == (
        "nothing was computed, printed or reported for 1 minute;"
        " processes on n2 are stopped (SIGSTOP)"
    )
    watch.on_output(61.0)
    assert not watch.is_idle(62.0)
    watch.on_resumed()
    feed(watch, range(75, 195, 15))
    assert not watch.is_idle(181.0)
    feed(watch, range(195, 210, 15))
    assert watch.is_idle(195.0)


def test_a_node_that_falls_silent_is_not_known_to_be_idle() -> None:
    """Of a starved node one idle sample came; what it does since then its next one may tell."""
    watch = guard()
    watch.on_sample(0, IDLE, 15.0)
    for now in (15.5, 30.5, 45.5, 60.5, 75.5):
        watch.on_sample(1, IDLE, now)
        assert not watch.is_idle(now)


def test_the_code_of_a_node_that_has_ended_is_no_news() -> None:
    """That of another may hang at its end."""
    watch = guard()
    feed(watch, range(15, 30, 15), stopped=1)
    watch.on_end(0, 20.0)
    for now in range(30, 75, 15):
        watch.on_sample(1, IDLE, float(now))
        assert watch.is_idle(float(now)) == (now >= 60)
    watch.on_end(1, 61.0)
    assert not watch.is_idle(61.0)


@pytest.mark.parametrize("known", [True, False])
def test_others_have_waited_for_a_node_that_was_at_work(known: bool) -> None:
    """Until its end, or for as long as nothing was measured there."""
    watch = guard()
    for now in range(15, 120, 15):
        if known:
            watch.on_sample(0, BUSY, float(now))
        watch.on_sample(1, IDLE, float(now))
    watch.on_end(0, 106.0)
    for now in range(120, 180, 15):
        watch.on_sample(1, IDLE, float(now))
        assert watch.is_idle(float(now)) == (now >= 166), now


def test_what_was_reported_meanwhile_counts() -> None:
    """Also where it can't be read: it may be a report."""
    news = [True, False, False]
    watch = guard(lambda: news.pop(0))
    feed(watch, range(15, 75, 15))
    assert not watch.is_idle(60.0)
    feed(watch, range(75, 135, 15))
    assert watch.is_idle(120.0)

    def unreadable() -> bool:
        raise StoreFault("away", 5, "run-1.jsonl")

    watch = guard(unreadable)
    feed(watch, range(15, 75, 15))
    assert not watch.is_idle(60.0)


def test_what_was_reported_before_it_hung_does_not_count_at_the_limit() -> None:
    """But about when it came, so that a hang is found before twice the time."""
    news = iter([True])
    watch = guard(lambda: next(news, False))
    for now in range(15, 120, 15):
        feed(watch, range(now, now + 1))
        assert watch.is_idle(float(now)) == (now >= 75)


def test_the_profiler_s_figures_are_no_news(tmp_path: Path) -> None:
    """They come from a thread, also where the code hangs."""
    path = tmp_path / "run-1.jsonl"
    news = RecordsNews(str(path))
    assert not news()
    with RunLog.open(path) as log:
        log.append({"t": "profile", "group": "cpu", "metrics": {"n1": {"x": 1}}, "time": 1.0})
        log.flush()
        assert not news()
        log.append({"t": "metrics", "group": "training", "steps": 1, "metrics": {"loss": 1.0}})
        log.flush()
        assert news()
        assert not news()
