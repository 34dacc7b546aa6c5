"""The part of `Client` that explains why a job waits."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from detslurm.store import NotFound, StoreError

if TYPE_CHECKING:
    from detslurm.sdk.jobs.job import Job, JobKind
    from detslurm.sdk.jobs.queues import Queues
    from detslurm.sdk.waiting.evidence import AnswerCache
    from detslurm.sdk.waiting.explanation import Explanation
    from detslurm.slurm import Cluster
    from detslurm.store import Store


_CLOCKS: Final = 1.0  # by how many seconds those of file servers differ
_NAME = re.compile(r"\d+(_(\d+|\[[\d,:-]+\]))?", re.ASCII)


class ExplainingJobs:
    """Explains the waits of jobs, one's own and those of others."""

    store: Store
    queues: Queues
    warn: Callable[[str], None]

    @abstractmethod
    def _experiment_id(self, word: int | str) -> int: ...

    def _meaning(self, word: str | int, kind: JobKind) -> tuple[str, JobKind]:
        """A job's name or an experiment's id, from what may be the experiment's name or `last`.
        Raises ValueError for what can't be either, NotFound for an unknown name."""
        text = str(word)
        if _NAME.fullmatch(text):
            return text, kind
        if kind == "job" or not text or text[0].isdigit():
            raise ValueError(f"{word!r} is neither a job such as 4711 or 4711_3, nor an experiment")
        return str(self._experiment_id(text)), "experiment"

    def explain_job(
        self,
        job_id: str | int,
        *,
        sooner: bool = False,
        refresh: bool = False,
        cluster: str = "auto",
        kind: JobKind = "any",
    ) -> Explanation:
        """Return why a job waits, with the evidence, also of a job that runs.

        It costs the cluster at most five calls, and what it has answered to this user within the
        last minute is used again, unless something was done to the experiment since.

        Args:
            job_id: The job, an array, or one element, such as "4711_3"; or the id or name of an
                experiment, of whose jobs the first to start is meant.
            sooner: Whether the cluster is asked what would start it sooner, with at most three
                calls more; off by default.
            refresh: Whether the cluster is asked again at once; off by default.
            kind: "experiment" or "job" where the id may be both; by default the experiment is meant
                if it has jobs in the queue, and a warning names the other meaning.

        Raises:
            NotFound: If it is not in the queue; the error has its end, as far as known.
            ValueError: If it is no such id.
        """
        from detslurm.sdk.jobs.job import named

        name, kind = self._meaning(job_id, kind)
        where = self.queues.cluster(cluster)
        choose = partial(named, name=name, kind=kind)
        found, jobs, cache = self._looked_up(where, refresh, choose)
        self._check_found(found, jobs, name, where, kind)
        return self._explained(found, jobs, where, cache, sooner)

    def explain_trial(
        self,
        experiment_id: int | str,
        trial_id: int,
        *,
        sooner: bool = False,
        refresh: bool = False,
    ) -> Explanation:
        """Return why the job of the trial `trial_id` of an experiment (`experiment_id`, or its
        name) waits, or `NotFound` if none is in the queue. The other arguments are as in
        `explain_job`."""
        from detslurm.store import fold_facts

        number = self._experiment_id(experiment_id)

        def choose(jobs: Sequence[Job]) -> list[Job]:
            mine = [job for job in jobs if job.experiment_id == number]
            return [job for job in mine if trial_id in job.trial_ids]

        facts = fold_facts(self.store.experiment(number))
        for name in dict.fromkeys(job.cluster for job in facts.jobs):
            where = self.queues.cluster(name)
            found, jobs, cache = self._looked_up(where, refresh, choose)
            if found:
                return self._explained(found, jobs, where, cache, sooner)
        raise NotFound(f"no job of trial {trial_id} is in the queue")

    def _check_found(
        self, found: Sequence[Job], jobs: Sequence[Job], name: str, where: Cluster, kind: JobKind
    ) -> None:
        """Warn where a number may mean another job, too. Raises NotFound where no job was found."""
        from detslurm.sdk.jobs.job import named, not_queued

        if kind == "experiment":
            self.store.experiment(int(name))
        experiment = kind != "job" and self._is_experiment(name)
        if not found and experiment:
            raise NotFound(
                f"experiment {name} has no job in the queue;"
                f" `detslurm experiment describe {name}` shows how it stands" + _other_kind(kind)
            )
        if not found:
            raise NotFound(not_queued(name, where.evidence([name.partition("_")[0]])))
        if kind != "any" or not experiment:
            return
        if all(str(job.experiment_id) != name for job in found):
            self.warn(f"experiment {name} has no job in the queue: this is Slurm's job {name}")
        elif named(jobs, name, "job") not in ([], found):
            self.warn(
                f"{name} is an experiment and a job: the experiment is meant" + _other_kind(kind)
            )

    def _is_experiment(self, name: str) -> bool:
        from detslurm.store import fold_facts

        with suppress(ValueError, StoreError):
            return not fold_facts(self.store.experiment(int(name))).desired.deleted
        return False

    def _looked_up(
        self, where: Cluster, refresh: bool, choose: Callable[[Sequence[Job]], list[Job]]
    ) -> tuple[list[Job], list[Job], AnswerCache]:
        """The chosen jobs and all jobs. The cluster is asked again if none is found in an answer
        from before, or something was done to their experiment since."""
        from detslurm.sdk.jobs.job import jobs_of
        from detslurm.sdk.jobs.owner import JobOwners
        from detslurm.sdk.waiting.evidence import AnswerCache
        from detslurm.slurm import JobInfo
        from detslurm.slurm.queue_listing import scheduling_order

        cache = AnswerCache(self.store, refresh=refresh)
        rows = cache.get(f"queue {where.name}", list[JobInfo], where.queue)
        # The tiers of partitions would cost more calls: they don't change a job's own partition.
        ordered = scheduling_order(rows, {})
        jobs = jobs_of(where.name, ordered, JobOwners(self.store), explain=self.explain_job)
        found = choose(jobs)
        if cache.was_used and (not found or self._changed(found[0].experiment_id, cache)):
            return self._looked_up(where, True, choose)
        return found, jobs, cache

    def _changed(self, experiment_id: int | None, cache: AnswerCache) -> bool:
        """Whether something was done to an experiment after the queue was asked: a command that
        holds, releases or ends its jobs leaves a fact."""
        if experiment_id is None:
            return False
        with suppress(OSError, StoreError):
            changed = self.store.experiment(experiment_id).log.path.stat().st_mtime
            return changed > cache.oldest - _CLOCKS
        return False

    def _explained(
        self,
        found: Sequence[Job],
        jobs: Sequence[Job],
        where: Cluster,
        cache: AnswerCache,
        sooner: bool,
    ) -> Explanation:
        """The explanation of the first waiting job, or of any of those that run."""
        from detslurm.sdk.waiting.evidence import gather
        from detslurm.sdk.waiting.explain import explain, try_variants
        from detslurm.sdk.waiting.start_estimates import log_estimate

        job = next((job for job in found if job.waiting), found[0])
        evidence = gather(job, jobs, where, cache, time.time())
        known = log_estimate(self.store, evidence)
        return explain(evidence, known, try_variants(evidence, where) if sooner else ())


def _other_kind(kind: JobKind) -> str:
    return "" if kind != "any" else '; `-j` (in Python `kind="job"`) means the job of this number'
