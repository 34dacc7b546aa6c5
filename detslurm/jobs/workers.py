"""Counts missing workers, and finds runs that ended with their workers: one policy for all.

A search's own workers follow it, the runner of a custom method, and `experiment activate`. It is
applied in two steps: first the events are committed, then the missing workers are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from detslurm.searcher import State
from detslurm.slurm import JobInfo


class Workers(NamedTuple):
    """The workers of a search, by the refs of their jobs."""

    alive: frozenset[str]
    """Those that wait or run."""
    ending: frozenset[str] = frozenset()
    """Of these, those that take no further trial: their allocation ends."""
    held: frozenset[str] = frozenset()
    """Of these, those that wait for their user's release."""
    standby: frozenset[str] = frozenset()
    """Of these, those that wait for the end of all others."""
    ended: Mapping[str, str] = {}
    """Workers whose run of a trial has ended, with its outcome."""

    @classmethod
    def of(cls, jobs: Mapping[str, JobInfo]) -> Workers:
        """Return the workers as the queue shows their jobs; workers without a job are unknown."""
        return cls(
            alive=frozenset(ref for ref, job in jobs.items() if not job.final),
            ending=frozenset(
                ref for ref, job in jobs.items() if job.ending and not (job.waiting or job.final)
            ),
            held=frozenset(ref for ref, job in jobs.items() if job.held),
            standby=frozenset(
                ref for ref, job in jobs.items() if job.waiting and "Dependency" in job.reason
            ),
            ended={
                ref: outcome
                for ref, job in jobs.items()
                if (outcome := job.run_outcome) is not None
            },
        )

    def run_ended_events(self, state: State) -> list[dict[str, Any]]:
        """Return the events that take their trials from workers whose runs have ended."""
        return state.run_ended_events(self.ended)

    def missing(self, state: State, limit: int | None) -> int:
        """Return how many workers to submit for the trials that wait, after the events, of at most
        `limit` at once.

        A worker without a trial is about to take one, and a worker with nothing left to do is
        about to be free. Held and standby workers are not counted on, nor against the limit.
        """
        counted = self.alive - self.held - self.standby
        trials = (state.trials[index] for index in state.workers.values())
        free = len(counted - self.ending - state.workers.keys())
        free += sum(trial.stop or trial.settled for trial in trials)
        wanted = len(state.waiting()) - free
        return max(0, wanted if limit is None else min(wanted, limit - len(counted)))
