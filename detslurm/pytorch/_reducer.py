"""From the values of batches and ranks to one metric."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

import torch

from detslurm import InvalidHP
from detslurm.pytorch._pytree import TreePath, replaced


class Reducer(enum.Enum):
    """How the values of a validation metric in many batches become one.

    Attributes:
        AVG: Their mean.
        SUM: Their sum.
        MAX: The largest.
        MIN: The smallest.
    """

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4

    def reduce(self, values: Sequence[Any]) -> Any:
        """Return one value for many `values`; a mean weighs every value the same."""
        match self:
            case Reducer.AVG:
                return sum(values) / len(values)
            case Reducer.SUM:
                return sum(values)
            case Reducer.MAX:
                return max(values)
            case Reducer.MIN:
                return min(values)


class MetricReducer(abc.ABC):
    """A metric of your own over many batches and ranks; hand it to `context.wrap_reducer()`.

    How it collects values is up to you: call a method of yours for every batch. At each report of
    training metrics, and at the end of a validation, each rank condenses what it has in
    `per_slot_reduce()`, and `cross_slot_reduce()` makes the metric of what all ranks have.
    """

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget all values: the next report's batches, or a validation, begin."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return what this rank contributes; it must be picklable, and better small."""

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, from `per_slot_metrics`, the results of `per_slot_reduce()` by rank:
        a dict of metrics when the reducer was wrapped without a name, otherwise a single value.
        """


class FunctionReducer(MetricReducer):
    """A function of all values that `update()` was given, on all ranks, in the batches' order."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self._values: list[Any] = []

    def update(self, value: Any) -> None:
        """Add the value of one batch."""
        self._values.append(value)

    def per_slot_reduce(self) -> list[Any]:
        """All values of this rank."""
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        """The function's result. Batches are dealt to ranks in turn, and so they are put back."""
        rounds = zip_longest(*per_slot_metrics, fillvalue=_NOTHING)
        values = [v for v in chain.from_iterable(rounds) if v is not _NOTHING]
        try:
            return self._function(values)
        except Exception as err:
            if values:
                raise
            raise ValueError(
                f"{err}; it has no values, for update() was not called: wrap_reducer() takes"
                " for_training=False and for_validation=False"
            ) from err


_NOTHING = object()


class Phase(enum.Enum):
    """The kind of a set of metrics."""

    TRAINING = "training"
    VALIDATION = "validation"


@dataclass(frozen=True)
class WrappedReducer:
    """A reducer, the name of its metric, and what it is for."""

    reducer: MetricReducer
    name: str | None
    phases: frozenset[Phase]

    def __str__(self) -> str:
        return f"{type(self.reducer).__name__}(name={self.name!r})"

    @contextmanager
    def blamed(self, call: str) -> Iterator[None]:
        """Let errors name the reducer they come from."""
        try:
            yield
        except InvalidHP:
            raise
        except Exception as err:
            raise RuntimeError(f"the reducer {self} failed in {call}(): {err}") from err

    def metrics(self, contributions: list[Any]) -> dict[str, Any]:
        """The result of all ranks' contributions, by metric."""
        with self.blamed("cross_slot_reduce"):
            found = self.reducer.cross_slot_reduce(contributions)
        if self.name is None:
            assert isinstance(found, dict), (
                f"the reducer {self} was wrapped with name=None but it did not return a dict"
                f" (but a {type(found).__name__}) from cross_slot_reduce()"
            )
            return found
        assert not isinstance(found, dict), (
            f"the reducer {self} was wrapped with name set but it returned a dict anyway"
            " from cross_slot_reduce()"
        )
        return {self.name: found}


def _on_host(tree_path: TreePath, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()


@dataclass
class Reducers:
    """All the reducers of a trial; one collective serves them all.

    Data that `sends` passes to other ranks has no device, since each rank has its own.
    """

    sends: bool = False
    _all: list[WrappedReducer] = field(default_factory=list)

    def wrap(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Add a reducer, or a function of all values; returns what collects the values."""
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise TypeError(
                    "a reducer is a MetricReducer or a function of a list of values, not"
                    f" {type(reducer).__name__}"
                )
            reducer = FunctionReducer(reducer)
        wanted = {Phase.TRAINING: for_training, Phase.VALIDATION: for_validation}
        phases = frozenset(phase for phase, is_wanted in wanted.items() if is_wanted)
        self._all.append(WrappedReducer(reducer, name, phases))
        return reducer

    def of(self, phase: Phase) -> list[WrappedReducer]:
        """The reducers for one phase, in the order in which they were wrapped."""
        return [wrapped for wrapped in self._all if phase in wrapped.phases]

    def reset(self) -> None:
        """Reset all of them: a window of training or a validation begins."""
        for wrapped in self._all:
            with wrapped.blamed("reset"):
                wrapped.reducer.reset()

    def contribution(self, phase: Phase) -> list[Any]:
        """This rank's contribution to the metrics, for `metrics()` of all ranks."""
        found = []
        for wrapped in self.of(phase):
            with wrapped.blamed("per_slot_reduce"):
                own = wrapped.reducer.per_slot_reduce()
            found.append(replaced(own, _on_host) if self.sends else own)
        return found

    def metrics(self, phase: Phase, contributions: list[list[Any]]) -> dict[str, Any]:
        """The metrics, from the contributions of all ranks."""
        found: dict[str, Any] = {}
        for index, wrapped in enumerate(self.of(phase)):
            found |= wrapped.metrics([contribution[index] for contribution in contributions])
        return found
