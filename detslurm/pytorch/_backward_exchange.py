"""Send gradients while the backward pass goes on, where ranks may begin sums in any order.

An optimizer's parameters are in buckets, which each are one sum. A bucket's content follows from
the model alone, and so does the order in which numbers are added: the result has the same bits
whenever it was sent. That is as soon as all of its gradients have come; a bucket that lacks some is
sent at the step.

Gradients that change after they were sent, by another backward pass or the trial's own code, have
to be sent again, by all ranks. Whether a trial does that shows in its first step, about which the
ranks agree: if so, its optimizer's gradients are sent at its steps from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from detslurm.pytorch._data_parallel import FlatGradients, SumsByName
from detslurm.pytorch._ddp import is_sharded

_CHANGED = (
    "gradients changed after they had been sent, by another backward pass of the batch or by the"
    " trial's code, which they did not in the first step: use context.wrap_optimizer(optimizer,"
    " backward_passes_per_step=2), and they are sent at the step"
)


class Bucket:
    """Parameters whose gradients are one sum."""

    def __init__(self, name: str, parameters: Sequence[Any]) -> None:
        self._name, self.parameters = name, parameters
        self.reset()

    def reset(self) -> None:
        """Nothing of the next step has come, and nothing of the last step is kept."""
        self._missing = {id(parameter) for parameter in self.parameters}
        self._seen: list[tuple[Any, int]] = []
        self._flat: FlatGradients | None = None
        self._wait: Callable[[], None] | None = None

    def came(self, parameter: Any) -> bool:
        """Take note of a gradient; whether none is missing any more."""
        self._missing.discard(id(parameter))
        return not self._missing

    def send(self, sums: SumsByName, size: int, *, compressed: bool) -> None:
        """Begin the sum of the present gradients, unless that was done."""
        if self._flat is None:
            self._seen = [_contents(parameter) for parameter in self.parameters]
            self._flat = FlatGradients(self.parameters, size, compressed=compressed)
            self._wait = sums.begin(self._flat.sent, self._name)

    def wait(self) -> None:
        """Wait for the end of the sum."""
        assert self._wait is not None
        self._wait()

    @property
    def has_changed(self) -> bool:
        """Whether this rank's gradients are others than those it sent."""
        now = [_contents(parameter) for parameter in self.parameters]
        both = zip(now, self._seen, strict=True)
        return any(grad is not sent or version != then for (grad, version), (sent, then) in both)

    def put_back(self) -> None:
        """Replace gradients by averages."""
        assert self._flat is not None
        self._flat.put_back()


def _contents(parameter: Any) -> tuple[Any, int]:
    """A gradient and the number of changes that were made to it in place."""
    return parameter.grad, 0 if parameter.grad is None else parameter.grad._version


class BackwardExchange:
    """The gradients of one optimizer; all ranks make the same calls."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[Any],
        sums: SumsByName,
        size: int,
        *,
        compressed: bool,
    ) -> None:
        self._sums, self._size, self._compressed, self._name = sums, size, compressed, name
        own = [p for p in parameters if p.requires_grad and not is_sharded(p)]
        self._buckets = [
            Bucket(f"{name}.{number}", alike)
            for number, alike in enumerate(in_buckets(own, sums.bucket_bytes))
        ]
        self._bucket_of = {id(p): b for b in self._buckets for p in b.parameters}
        self._hooks = [p.register_post_accumulate_grad_hook(self._came) for p in own]
        self._in_backward = True
        self._is_proven = False
        self._armed = False

    def close(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks:
            hook.remove()

    def begin_batch(self, *, steps: bool) -> None:
        """Send gradients of this batch's backward pass if the optimizer `steps` after it."""
        if self._armed:  # the batch before ended without a step: its sums must be joined
            self._sum()
            self._in_backward = False
            self._reset()
        self._armed = steps and self._in_backward

    def _came(self, parameter: Any) -> None:
        if self._armed and (bucket := self._bucket_of[id(parameter)]).came(parameter):
            self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        bucket.send(self._sums, self._size, compressed=self._compressed)

    def _sum(self) -> None:
        for bucket in self._buckets:
            self._send(bucket)
        for bucket in self._buckets:
            bucket.wait()

    def _reset(self) -> None:
        for bucket in self._buckets:
            bucket.reset()

    def others(self, parameters: Sequence[Any]) -> list[Any]:
        """Parameters that came later, or whose gradients were not wanted then."""
        return [p for p in parameters if id(p) not in self._bucket_of]

    def average(self) -> None:
        """Let gradients be averages over all ranks. Raises `RuntimeError` for changed ones."""
        self._sum()
        if self._armed and self._has_changed():
            self._in_backward = self._armed = False
            self._reset()
            self._sum()
        for bucket in self._buckets:
            bucket.put_back()
        self._reset()
        self._armed = False

    def _has_changed(self) -> bool:
        """Whether gradients changed on any rank after they were sent, in the first step."""
        changed = any(bucket.has_changed for bucket in self._buckets)
        if self._is_proven and changed:
            raise RuntimeError(_CHANGED)
        if self._is_proven:
            return False
        self._is_proven = True
        count = torch.tensor([float(changed)])
        self._sums.begin(count, f"{self._name}.changed")()
        return bool(count.item())


def in_buckets(parameters: Sequence[Any], limit: int) -> list[list[Any]]:
    """Parameters by type and device, in the order in which their gradients come, roughly the
    reverse; each bucket is as large as `limit` bytes, or one parameter."""
    found: list[list[Any]] = []
    open_ones: dict[Any, tuple[list[Any], int]] = {}
    for parameter in reversed(parameters):
        kind = (parameter.dtype, parameter.device)
        bucket, size = open_ones.get(kind, ([], 0))
        if not bucket or size + parameter.nbytes > limit:
            bucket, size = [], 0
            found.append(bucket)
        bucket.append(parameter)
        open_ones[kind] = bucket, size + parameter.nbytes
    return found
