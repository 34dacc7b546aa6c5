"""Many workers of one search report at once: ours, or Optuna's over its journal file.

`python -m benchmarks.crowd ours|optuna FOLDER WORKERS SECONDS LATENCY` lets WORKERS processes
report metrics for SECONDS, each waiting for its verdict before the next report, with LATENCY
seconds added to every call that a file server would answer. What each was told goes to stdout.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.latency import inject
from benchmarks.measure import run
from detslurm.searcher import Search, State
from detslurm.store import EventLog

RUNGS = (1, 3, 9)
Verdict = tuple[int, int, bool]  # trial, time, whether to stop
Reporter = Callable[[int], Iterator[Verdict]]


def search(workers: int) -> Search:
    """Halving with rungs at 1, 3 and 9, a trial for each worker at once, more than it can end."""
    searcher = {
        "name": "async_halving", "metric": "loss", "time_metric": "batches", "max_time": 9,
        "num_rungs": 3, "divisor": 3, "max_trials": 1_000_000, "max_concurrent_trials": workers,
    }  # fmt: skip
    space = {"x": {"type": "double", "minval": 0, "maxval": 1}}
    return Search({"searcher": searcher, "hyperparameters": space})


def our_reporter(folder: Path, workers: int) -> Reporter:
    """A worker over our log."""
    here = folder / "search"
    here.mkdir()
    made = search(workers)

    def reports(number: int) -> Iterator[Verdict]:
        return talk(EventLog(here, made), random.Random(number), f"1_{number}")

    def talk(log: EventLog[State], metrics: random.Random, ref: str) -> Iterator[Verdict]:
        last: list[dict[str, Any]] = []
        while True:
            state = log.commit([*last, log.state.request_event(ref, ref)])
            index = state.assignment(ref)
            assert index is not None
            token = state.trials[index].fencing_token
            for at in RUNGS:
                loss = metrics.random()
                event = {"e": "validated", "trial": index, "time": at, "metric": loss}
                event["fencing_token"] = token
                stop = log.commit([event]).trials[index].stop
                yield index, at, stop
                if stop:
                    break
            ended = {"e": "run_ended", "trial": index, "worker": ref, "outcome": "stopped"}
            last = [{**ended, "fencing_token": token}]

    return reports


def optunas_reporter(folder: Path, workers: int) -> Reporter:
    """A worker over Optuna's journal, as its documentation sets it up."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = str(folder / "journal")

    def study(number: int) -> optuna.Study:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(path)), study_name="s", load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(seed=number),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        )  # fmt: skip

    study(0)

    def reports(number: int) -> Iterator[Verdict]:
        return talk(study(number), random.Random(number))

    def talk(mine: optuna.Study, metrics: random.Random) -> Iterator[Verdict]:
        while True:
            trial = mine.ask()
            trial.suggest_float("x", 0, 1)
            for at in RUNGS:
                loss = metrics.random()
                trial.report(loss, at)
                stop = trial.should_prune()
                yield trial.number, at, stop
                if stop:
                    break
            if stop:
                mine.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                mine.tell(trial, loss)

    return reports


def crowd(reporter: Reporter, workers: int, seconds: float, latency: float) -> dict[str, Any]:
    """Let all begin at once; what each was told, and how long it took in all."""
    fork = multiprocessing.get_context("fork")
    ready, told = fork.Barrier(workers + 1), fork.SimpleQueue()

    def work(number: int) -> None:
        verdicts: list[Verdict] = []
        waits: list[float] = []

        def next_verdict() -> None:
            began = time.monotonic()
            verdicts.append(next(reports))
            waits.append(time.monotonic() - began)

        try:
            reports = reporter(number)
            inject(latency)
            ready.wait()
            until = time.monotonic() + seconds
            next_verdict()  # everybody's first, however long it waits for a core
            while time.monotonic() < until:
                next_verdict()
        finally:
            told.put((verdicts, waits))

    processes = [fork.Process(target=work, args=(number,)) for number in range(workers)]
    for process in processes:
        process.start()
    ready.wait()
    began = time.monotonic()
    results = [told.get() for _ in processes]
    elapsed = time.monotonic() - began
    for process in processes:
        process.join()
        assert process.exitcode == 0
    verdicts, waits = zip(*results, strict=True)
    return {
        "seconds": elapsed,
        "verdicts": verdicts,
        "waits": sorted(wait for each in waits for wait in each),
    }


def measured(
    whose: str, folder: Path, workers: int, seconds: float, latency: float
) -> dict[str, Any]:
    """The same in a process of its own, which has no threads when it forks."""
    arguments = [whose, folder, workers, seconds, latency]
    done = run([sys.executable, "-m", "benchmarks.crowd", *map(str, arguments)])
    result: dict[str, Any] = json.loads(done.output)
    return result


def rate(result: dict[str, Any]) -> float:
    """Verdicts a second, of all workers together."""
    return sum(map(len, result["verdicts"])) / float(result["seconds"])


def wait(result: dict[str, Any], share: float) -> float:
    """The seconds that this share of all verdicts came within."""
    waits: list[float] = result["waits"]
    return waits[min(int(share * len(waits)), len(waits) - 1)]


def main(argv: list[str]) -> int:
    """Measure one of the two."""
    whose, folder, workers = argv[0], Path(argv[1]), int(argv[2])
    make = {"ours": our_reporter, "optuna": optunas_reporter}[whose]
    print(json.dumps(crowd(make(folder, workers), workers, float(argv[3]), float(argv[4]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
