"""The experiments of a selftest in a store of their own: submits them, waits, and ends them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from detslurm.config import ConfigErrors
from detslurm.sdk.client import Client
from detslurm.sdk.errors import LifecycleError, SubmitError
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.jobs.queues import QUEUE_SECONDS
from detslurm.sdk.selftest.facts import StoryFacts, TrialRun
from detslurm.sdk.selftest.stories import Story
from detslurm.slurm import SlurmError
from detslurm.store import StoreError


class StoryRuns:
    """The experiments of a selftest in a store of its own."""

    def __init__(self, client: Client, code: Path, storage: Path, options: Sequence[str]) -> None:
        self._client, self._code, self._storage = client, code, storage
        self._options = options  # of sbatch, by the site
        self.open: dict[int, tuple[Story, float]] = {}
        self._refused: list[tuple[Story, StoryFacts]] = []
        self._all: list[int] = []
        self.job_count = self.job_calls = 0

    def submit(self, story: Story, pool: str | None, unfit: Sequence[str]) -> None:
        config = story.config(pool, unfit, self._storage, self._options)
        try:
            done = self._client.submit(config, self._code)
        except (SubmitError, SlurmError, ConfigErrors, StoreError) as refusal:
            self._refused.append((story, StoryFacts(refusal=str(refusal))))
            return
        self.open[done.id] = story, time.monotonic()
        self._all.append(done.id)

    def wait(self, deadline: float) -> Iterator[tuple[Story, StoryFacts]]:
        """Yield each experiment when it has ended, and at the deadline those that have not."""
        yield from self._refused
        asked = time.monotonic()
        while self.open and time.monotonic() < deadline:
            time.sleep(1)
            if time.monotonic() - asked >= QUEUE_SECONDS:
                asked, found = time.monotonic(), self._client.experiments(self.open)
            else:
                found = [self._client.stored(number) for number in self.open]
            for experiment in found:
                facts = self._facts(experiment)
                if facts.ended:
                    yield self.open.pop(experiment.id)[0], facts
        for experiment in self._client.experiments(self.open) if self.open else ():
            yield self.open[experiment.id][0], self._facts(experiment)

    def _facts(self, experiment: Experiment) -> StoryFacts:
        begun = self.open[experiment.id][1]
        rows = experiment.trial_rows
        state = experiment.state.value
        if state == "RUNNING" or not rows:
            return StoryFacts(state=state, seconds=time.monotonic() - begun, waits="it runs")
        shown = next((row for row in rows if row.state != "COMPLETED"), rows[0])
        trial = next(one for one in experiment.trials() if one.row.id == shown.id)
        runs = tuple(
            TrialRun(outcome=run.outcome, reason=run.reason or "", ref=run.job.ref)
            for run in trial.view.runs
        )
        status = trial.job_status
        job = status.job if status is not None else None
        best = trial.view.best_validation
        lines = trial.logs(tail=1, sources=["code"]) if state == "ERROR" else ()
        return StoryFacts(
            state=state,
            done=sum(row.state == "COMPLETED" for row in rows),
            trials=len(rows),
            runs=runs,
            figure=best.value if best is not None else None,
            seconds=time.monotonic() - begun,
            output="".join(line.rpartition("|| ")[2] for line in lines),
            waits=f"{job.state} {job.reason}".strip() if job is not None else "",
        )

    def end(self) -> list[str]:
        """Kill what goes on; the ids of all jobs."""
        ids: list[str] = []
        for number in self._all:
            if number in self.open:
                with suppress(SlurmError, StoreError, LifecycleError):
                    self._client.experiment(number).kill()
            with suppress(StoreError):  # what can't be read is not counted
                experiment = self._client.stored(number)
                jobs, trials = experiment.view.jobs, experiment.trials()
                ids += [str(job.job_id) for job in jobs]
                self.job_count += sum(job.count or 1 for job in jobs)
                self.job_calls += 2 * sum(len(one.view.runs) for one in trials) - len(trials)
        return ids
