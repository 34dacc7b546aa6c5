"""The checkpoints of an experiment or of one of its trials: in order, the best, copies of them.

Methods import the modules that do their work: lists and the queue load few of them (tests/perf).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.base import ExperimentBase
from detslurm.store import StoreError

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.store import SavedCheckpoints


class CheckpointChoice:
    """The methods of everything that has checkpoints. They raise `LifecycleError` where no
    checkpoint has a validation with the metric."""

    @abstractmethod
    def checkpoints(self) -> list[Checkpoint]:
        """Return them, oldest first."""

    def list_checkpoints(
        self,
        sort_by: str | Any | None = None,
        order_by: str | Any | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Return the checkpoints in an order, by default the best searcher metric first.

        `sort_by` is the name of a validation metric, or a `CheckpointSortBy`, by default the
        searcher's metric; with it goes `order_by`, an `OrderBy`, "asc" or "desc" (by default
        neither is given). Only one of the two is a `ValueError`, as is a negative `max_results`,
        the largest number of checkpoints to return; by default all.
        """
        from detslurm.sdk.checkpoints.choosing import best_first, in_order

        if (sort_by is None) != (order_by is None):
            raise ValueError("sort_by and order_by are given together, or neither of them")
        if max_results is not None and max_results < 0:
            raise ValueError(f"max_results is {max_results}: it can't be negative")
        found = self.checkpoints()
        if sort_by is None:
            rated = best_first(found)
            chosen = rated + [one for one in found if one not in rated]
        else:
            chosen = in_order(found, _name(sort_by), descending=_is_descending(order_by))
        return chosen[:max_results]

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the best checkpoint.

        By default the searcher's metric decides, else that of the name `sort_by`; with it goes
        `smaller_is_better`, whether the smallest is the best. Only one of the two is a
        `ValueError`. Where a search has several metrics or constraints, this is by default the
        best of `pareto_checkpoints()` by the first metric.

        Example:
            import detslurm as det
            from detslurm.sdk import Client

            with det.core.init() as core:
                core.train.report_validation_metrics(1, {"loss": 0.5})
                with core.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
                    (path / "weights").write_text("1.5")
            client = Client()
            experiment = client.experiment(client.checkpoint(uuid).experiment_id)
            best = experiment.top_checkpoint("loss", smaller_is_better=True)
            assert (best.download("copy") / "weights").read_text() == "1.5"
        """
        return self.top_n_checkpoints(1, sort_by, smaller_is_better)[0]

    def pareto_checkpoints(self) -> list[Checkpoint]:
        """Return the complete checkpoints that no other checkpoint beats in a searcher's metric
        without a loss in another, by the first metric. They keep all constraints: it is a
        `LifecycleError` if none does. With a single metric these are all with its best value."""
        from detslurm.sdk.checkpoints.choosing import best_first, front_of, unrated

        every = self._candidates()
        if found := front_of(every):
            return found
        broken = "no checkpoint that keeps all constraints" if best_first(every) else unrated(every)
        raise LifecycleError(f"{self._named} has {broken}")

    @property
    def best_checkpoint(self) -> Checkpoint:
        """The best checkpoint by the searcher's metric: `top_checkpoint()`."""
        return self.top_checkpoint()

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Return at most `limit` checkpoints, which is 1 or more (else it is a `ValueError`), the
        best first; other arguments are as in `top_checkpoint`."""
        from detslurm.sdk.checkpoints.choosing import best_first, unrated

        if limit < 1:
            raise ValueError(f"limit is {limit}: it must be at least 1")
        every = self._candidates()
        found = best_first(every, sort_by, smaller_is_better)
        if not found:
            raise LifecycleError(f"{self._named} has {unrated(every, sort_by)}")
        return found[:limit]

    def _candidates(self) -> list[Checkpoint]:
        """The checkpoints from which the best are chosen."""
        return self.checkpoints()

    @property
    @abstractmethod
    def _named(self) -> str:
        """Its name in messages."""


class ExperimentCheckpoints(CheckpointChoice, ExperimentBase):
    """The part of `Experiment` for its checkpoints."""

    def checkpoints(self) -> list[Checkpoint]:
        """Return the committed checkpoints, by trial, oldest first, without deleted ones; the state
        "DELETED" means that the files were removed from the disk otherwise."""
        return self._checkpoints_of(None)

    def _candidates(self) -> list[Checkpoint]:
        """Its own, and those of the searches that it goes on with: their trials are its trials."""
        from detslurm.sdk.checkpoints.catalog import of_snapshot
        from detslurm.sdk.experiments.snapshot import read

        found, created = self.checkpoints(), self._snapshot.facts.created
        while created.search and created.origin == "continue" and created.parent is not None:
            try:
                before = read(self._directory.store.experiment(created.parent))
            except StoreError:  # nothing needed its checkpoints: it may have been deleted
                break
            found += self._objects(of_snapshot(before))
            created = before.facts.created
        return found

    def _checkpoints_of(self, trial_ids: Iterable[int] | None) -> list[Checkpoint]:
        from detslurm.sdk.checkpoints.catalog import of_snapshot

        return self._objects(of_snapshot(self._snapshot, trial_ids))

    def _objects(self, saved: SavedCheckpoints) -> list[Checkpoint]:
        from detslurm.sdk.checkpoints.choosing import as_stored, objects

        store = self._snapshot.directory.store
        return as_stored(store, [c for c in objects(store, [saved]) if c.state != "DELETED"])

    @property
    def _named(self) -> str:
        return f"experiment {self.id}"


def _name(sort_by: Any) -> str:
    """The name of a metric, or of a member of `CheckpointSortBy`."""
    return str(getattr(sort_by, "name", sort_by))


def _is_descending(order_by: Any) -> bool:
    name = str(getattr(order_by, "name", order_by)).lower()
    if name not in _ORDERS:
        raise ValueError(f'order_by is {order_by!r}: it must be "asc" or "desc"')
    return name in _ORDERS[2:]


_ORDERS: Sequence[str] = ("asc", "ascending", "desc", "descending")
