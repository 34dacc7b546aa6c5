"""The meter of a run: shares are recorded in time, and one pause comes of many that cross."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

import pytest

from detslurm.exec.budget import Meter, share_seconds
from detslurm.exec.intents import Intents
from detslurm.exec.signals import awake_clock
from detslurm.slurm import JobInfo, SlurmError
from detslurm.store import ExperimentDir
from detslurm.store.records import Intent, Set
from detslurm.store.spending import Spending
from tests.sdk.scenes import Scene

HOUR = 3600.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def meters(
    scene: Scene, count: int, clock: Callable[[], float], budget: float | None = 1.0
) -> list[Meter]:
    """Runs of one experiment with 2 slots each, each with its own view of the facts."""
    about = {"slots": 2, "workers": count, "budget": budget}
    experiment = scene.experiment(count, about=about)
    found = []
    for index in range(count):
        intents = Intents(experiment)
        intents.refresh()
        meter = Meter(intents, index + 1, scene.queue, clock=clock)
        meter.begin(1)
        found.append(meter)
    return found


def pauses(experiment: ExperimentDir) -> list[str]:
    return [fact["reason"] for fact in experiment.facts() if fact.get("intent") == "pause"]


def test_shares_that_are_not_recorded_are_small_beside_what_is_left() -> None:
    """All runs together keep back a fiftieth of the budget or a quarter of the rest at most."""
    for used in (0, 50, 90, 99):
        budget, slots, at_once = 100 * HOUR, 4, 10
        kept_back = share_seconds(budget, used * HOUR, slots, at_once) * slots * at_once
        assert kept_back <= max(budget / 50, slots * at_once * 60)
        assert kept_back <= max((budget - used * HOUR) / 4, slots * at_once * 5)
    assert share_seconds(HOUR, 2 * HOUR, 1, 1) == 5


def test_a_run_records_its_shares_and_its_rest(scene: Scene) -> None:
    """The sum is what it used, to the second; between shares nothing is written."""
    clock = Clock()
    [meter] = meters(scene, 1, clock)
    spending = Spending(scene.store.experiment(1))
    meter.poll()
    assert spending.total() == 0
    clock.now += meter.seconds_to_look()
    meter.poll()
    assert spending.total() == 2 * 60
    clock.now += 7
    meter.end()
    assert spending.total() == 2 * 67
    assert not pauses(scene.store.experiment(1))


def test_the_experiment_is_paused_once(scene: Scene) -> None:
    """Four runs find the budget used at the same moment: one intent, with its reason."""
    clock, experiment = Clock(), None
    four = meters(scene, 4, clock)
    clock.now += 451  # 4 x 2 x 451 s > 1 h
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Meter.poll, four))
    for meter in four:
        meter.poll()
    experiment = scene.store.experiment(1)
    [reason] = pauses(experiment)
    assert reason.startswith("its budget is used (") and "of 1 slot-hours)" in reason
    assert Spending(experiment).total() == pytest.approx(4 * 2 * 451)
    assert ("hold", "7") in scene.queue.calls and ("notify", "7") in scene.queue.calls


def test_a_run_alone_stops_at_its_budget(scene: Scene) -> None:
    """It looks when it has used the rest itself; and while it saves, shares are as usual."""
    clock = Clock()
    [meter] = meters(scene, 1, clock)
    experiment, looks = scene.store.experiment(1), 0
    while not pauses(experiment):
        clock.now += meter.seconds_to_look()
        meter.poll()
        looks += 1
    assert looks < 60
    assert 1800 <= clock.now - 100 <= 1801
    facts = len(list((experiment.path / "spending").iterdir()))
    for _ in range(4):
        clock.now += meter.seconds_to_look()
        meter.poll()
    assert meter.seconds_to_look() == 5
    assert len(list((experiment.path / "spending").iterdir())) == facts + 4


def test_a_raised_budget_goes_on_and_none_counts_nothing(scene: Scene) -> None:
    """A look reads the budget as it was set last; after `activate` the same total counts on."""
    clock = Clock()
    [meter] = meters(scene, 1, clock)
    experiment = scene.store.experiment(1)
    experiment.append(Set(field="budget", value=2.0))
    clock.now += HOUR / 2 + 1
    meter._intents.refresh()
    meter.poll()
    assert not pauses(experiment)
    experiment.append(Set(field="budget", value=None))
    meter._intents.refresh()
    clock.now += 10 * HOUR
    meter.poll()
    meter.end()
    assert Spending(experiment).total() == HOUR + 2
    experiment.append(Set(field="budget", value=1.0))
    meter._intents.refresh()
    meter.poll()
    assert len(pauses(experiment)) == 1
    experiment.append(Intent(intent="activate"))
    meter._intents.refresh()
    assert meter._intents.cause is None


def test_what_a_job_does_while_it_is_suspended_is_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A night, or each other half minute where jobs take turns; but not an hour without the store,
    in which the code goes on."""
    clock, late = Clock(), iter([0.0, 12 * HOUR, 30.0, 14.0])
    monkeypatch.setattr(awake_clock, "_monotonic", clock)
    monkeypatch.setattr(awake_clock, "_suspended", 0.0)
    [meter] = meters(scene, 1, awake_clock, budget=9.0)

    def select(seconds: float) -> str:
        clock.now += seconds + next(late)
        return "ready"

    for seconds in (5.0, 60.0, 60.0, 60.0):
        assert awake_clock.wait(select, seconds) == "ready"
    clock.now += HOUR
    meter.poll()
    assert Meter(meter._intents, 1, scene.queue)._clock is awake_clock
    used = 5 + 15 + 15 + 15 + 14 + HOUR
    assert Spending(scene.store.experiment(1)).total() == 2 * used
    assert not pauses(scene.store.experiment(1))


def test_a_pause_that_is_taken_back_at_once_holds_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that answers late has the hold after the release of who raised the budget."""
    clock = Clock()
    [meter] = meters(scene, 1, clock)
    experiment, hold = scene.store.experiment(1), scene.queue.hold

    def late(refs: Collection[str]) -> None:
        experiment.append(Set(field="budget", value=9.0))
        experiment.append(Intent(intent="activate"))
        hold(refs)

    monkeypatch.setattr(scene.queue, "hold", late)
    clock.now += HOUR
    meter.poll()
    assert len(pauses(experiment)) == 1 and not scene.queue.jobs["7"].held


def test_other_jobs_under_ids_of_its_own_are_left_alone(scene: Scene) -> None:
    """As those of the store that this one is a copy of, or of a cluster that counts anew."""
    clock, queue = Clock(), scene.queue
    [meter] = meters(scene, 1, clock)
    experiment = scene.store.experiment(1)
    for job in ("8", "9"):
        scene.submitted(experiment, job, 0, 1)
    meter._intents.refresh()
    queue.put("8", "RUNNING", folder="/home/ada/elsewhere")
    del queue.jobs["9"]  # an element of another's array may have it: the queue shows those by array
    clock.now += HOUR
    meter.poll()
    assert queue.calls == [("hold", "7"), ("notify", "7")]


def test_without_the_queues_word_no_job_is_held(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose they are is unknown then; their runners find the pause."""
    clock = Clock()
    [meter] = meters(scene, 1, clock)

    def silent(job_ids: Collection[str]) -> dict[str, JobInfo]:
        raise SlurmError("Unable to contact slurm controller (connect failure)")

    monkeypatch.setattr(scene.queue, "query", silent)
    clock.now += HOUR
    meter.poll()
    assert len(pauses(scene.store.experiment(1))) == 1 and scene.queue.calls == []


def test_a_record_that_cant_be_read_takes_no_budget_back(scene: Scene) -> None:
    """The totals before it stand, also for a process that begins after it."""
    experiment = scene.experiment()
    spending = Spending(experiment)
    for _ in range(3):
        spending.add(5.0)
    (experiment.path / "spending" / "000003.json").write_text("torn")
    assert Spending(experiment).total() == 10
    assert Spending(experiment).add(1.0) == 11


def test_a_lost_record_takes_no_budget_back(scene: Scene) -> None:
    """The next record has the total, and the lost number is not given again."""
    experiment = scene.experiment()
    spending = Spending(experiment)
    for _ in range(4):
        spending.add(5.0)
    lost = experiment.path / "spending" / "000002.json"
    lost.unlink()
    assert Spending(experiment).total() == 20
    assert Spending(experiment).add(1.0) == 21
    assert not lost.exists()


def test_processes_add_to_one_sum(scene: Scene) -> None:
    """Racing additions are all in the total."""
    experiment = scene.experiment()
    each = [Spending(experiment) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda s: [s.add(1.0) for _ in range(25)], each))
    assert Spending(experiment).total() == 100
