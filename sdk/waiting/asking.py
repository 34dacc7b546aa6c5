"""Finds a job in answers of the last minute, or asks the cluster again, and explains its wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from detslurm.sdk.jobs.job import Job, jobs_of
from detslurm.sdk.waiting.evidence import AnswerCache, gather
from detslurm.sdk.waiting.explain import explain, try_variants
from detslurm.sdk.waiting.explanation import Explanation
from detslurm.sdk.waiting.start_estimates import log_estimate
from detslurm.slurm import Cluster, JobInfo, scheduling_order
from detslurm.store import Store, StoreError

_CLOCKS: Final = 1.0  # by how many seconds those of file servers differ


class Inquiry:
    """A question why a job waits; `jobs` are all jobs of the cluster, `found` the chosen jobs."""

    def __init__(
        self,
        store: Store,
        where: Cluster,
        choose: Callable[[Sequence[Job]], list[Job]],
        *,
        refresh: bool,
    ) -> None:
        self._store, self._where = store, where
        self._ask(choose, refresh)
        if self._cache.was_used and (not self.found or self._has_changed()):
            self._ask(choose, True)

    def _ask(self, choose: Callable[[Sequence[Job]], list[Job]], refresh: bool) -> None:
        where, self._cache = self._where, AnswerCache(self._store, refresh=refresh)
        rows = self._cache.get(f"queue {where.name}", list[JobInfo], where.queue)
        # The tiers of partitions would cost more calls: they don't change a job's own partition.
        ordered = scheduling_order(rows, {})
        self.jobs = jobs_of(where.name, ordered, self._store)
        self.found = choose(self.jobs)

    def _has_changed(self) -> bool:
        """Whether a command has left a fact of the experiment after the queue was asked."""
        number = self.found[0].experiment_id
        if number is None:
            return False
        with suppress(OSError, StoreError):
            changed = self._store.experiment(number).log.path.stat().st_mtime
            return changed > self._cache.oldest - _CLOCKS
        return False

    def explanation(self, *, sooner: bool) -> Explanation:
        """Explain the first waiting job, or any that runs; `sooner` also tries variants."""
        job = next((job for job in self.found if job.waiting), self.found[0])
        evidence = gather(job, self.jobs, self._where, self._cache, time.time())
        known = log_estimate(self._store, evidence)
        variants = try_variants(evidence, self._where) if sooner else ()
        return explain(evidence, known, variants)
