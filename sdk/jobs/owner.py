"""Finds the experiment and trial of a job in the queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from detslurm.sdk.jobs.status import JobRef
from detslurm.store.unmanaged import claimed_experiment, claims_by_job

if TYPE_CHECKING:
    from detslurm.slurm import JobInfo
    from detslurm.store import ExperimentFacts, Store


class Owners:
    """Finds experiments of jobs by where they work, or by what unmanaged jobs have claimed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # A path may lead to the store through a link: Slurm knows it as it was given.
        self._roots = {PurePath(store.path), PurePath(store.path.resolve())}
        self._facts: dict[int, ExperimentFacts | None] = {}
        self._trials: dict[int, dict[JobRef, list[int]]] = {}

    def experiment_id(self, row: JobInfo) -> int | None:
        """The experiment in this store; None for jobs of other stores, and of other programs."""
        found = experiment_at(PurePath(row.folder), self._roots)
        return found or claimed_experiment(self._claims, row.job_id)

    @cached_property
    def _claims(self) -> Mapping[str, Path]:
        return claims_by_job(self._store)

    def trial_ids(self, cluster: str, experiment_id: int, refs: Collection[str]) -> list[int]:
        """The trials of these jobs; none of an experiment that can't be read."""
        if experiment_id not in self._trials:
            self._trials[experiment_id] = self._refs(experiment_id)
        known = self._trials[experiment_id]
        return sorted(trial for ref in refs for trial in known.get(JobRef(cluster, ref), ()))

    def pause_reason(self, experiment_id: int) -> str | None:
        """Why an experiment is paused, if it is and not by its user."""
        facts = self._read(experiment_id)
        return facts.desired.pause_reason if facts is not None and facts.desired.paused else None

    def _refs(self, experiment_id: int) -> dict[JobRef, list[int]]:
        from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
        from detslurm.store import StoreError

        found: dict[JobRef, list[int]] = {}
        facts = self._read(experiment_id)
        if facts is None:
            return found
        with suppress(StoreError):  # a search's are in its log
            known = ExperimentSnapshot(self._store.experiment(experiment_id), facts, {}).job_refs
            for trial, job_ref in known.items():
                found.setdefault(job_ref, []).append(trial)
        return found

    def _read(self, experiment_id: int) -> ExperimentFacts | None:
        from detslurm.store import StoreError, fold_facts

        if experiment_id not in self._facts:
            with suppress(StoreError):
                self._facts[experiment_id] = fold_facts(self._store.experiment(experiment_id))
        return self._facts.setdefault(experiment_id, None)


def experiment_at(folder: PurePath, roots: Collection[PurePath]) -> int | None:
    """The experiment whose jobs work in this directory of any of these stores."""
    parts = folder.parts[-3:]
    if len(parts) < 3 or parts[0] != "experiments" or parts[2] != "jobs":
        return None
    if folder.parents[2] not in roots or not parts[1].isdigit():
        return None
    return int(parts[1])
