"""What searches cost, and what a crowd of workers may never do to one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.crowd import measured, search
from benchmarks.latency import counted
from benchmarks.searches import LongSearch
from detslurm.searcher import State
from detslurm.store import EventLog
from detslurm.store.facts import FactLog
from tests.counting import calls

DECISIONS = 64


def calls_of_a_decision(folder: Path, trials: int) -> Counter[str]:
    folder.mkdir()
    long = LongSearch(folder, trials)
    long.decide(1)
    return counted(lambda: long.decide(DECISIONS)) - counted(long.open)


def test_a_decision_costs_few_calls_however_long_the_search(tmp_path: Path) -> None:
    """At most 8 calls with a path and 1 fsync, as many after 3,000 trials as after 50."""
    few, many = (calls_of_a_decision(tmp_path / f"{n}", n) for n in (50, 3000))
    assert many["fsync"] == few["fsync"] == DECISIONS
    assert many.total() - many["fsync"] <= 4 * DECISIONS
    assert abs(many.total() - few.total()) <= DECISIONS / 8


def test_a_long_search_is_opened_from_few_files(tmp_path: Path) -> None:
    """The cache and what came after it: no fact is read twice by anybody, and what is computed
    hardly grows with the search."""
    long = LongSearch(tmp_path, 3000)
    assert sum(counted(long.open).values()) <= 600
    _, spent = calls(long.open)
    assert spent < 3000


def test_no_verdict_of_a_crowd_is_lost_or_doubled(tmp_path: Path) -> None:
    """200 processes report at once on a slow file system: each report is in the log once, and
    each worker was told what the log says at that place."""
    told = measured("ours", tmp_path, 200, 1.0, 0.002)["verdicts"]
    facts = list(FactLog(tmp_path / "search").facts())
    made = search(200)
    state = made.initial()
    marks: set[str] = set()
    verdicts: Counter[tuple[int, int, bool]] = Counter()
    for fact in facts:
        requests = [(fact["id"], fact["events"])]
        requests += [(mark, events) for mark, _, events in fact.get("others", ())]
        assert marks.isdisjoint(mark for mark, _ in requests)
        marks.update(mark for mark, _ in requests)
        told_now = [event for _, events in requests for event in events]
        made.apply(state, told_now)
        for event in told_now:
            if event["e"] == "validated":
                index = event["trial"]
                verdicts[index, event["time"], state.trials[index].stop] += 1
    assert [fact["n"] for fact in facts] == list(range(1, len(facts) + 1))
    assert verdicts == Counter(tuple(verdict) for worker in told for verdict in worker)
    assert set(verdicts.values()) == {1}
    assert len(told) == 200 and all(told)
    log: EventLog[State] = EventLog(tmp_path / "search", made)
    assert made.dump(log.catch_up()) == made.dump(state)
    trials = [index for _, index in state.assigned().items()]
    assert len(trials) == len(set(trials))
