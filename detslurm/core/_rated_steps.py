"""Whether checkpoints can be rated: a validation belongs to the checkpoint of the same step."""

from __future__ import annotations

import logging

_ENOUGH = 3  # checkpoints whose validations were to come and did not

logger = logging.getLogger("detslurm.core")


class RatedSteps:
    """The steps of this run's validations and checkpoints; warns once where they never meet.

    Where validations count epochs and checkpoints batches, no checkpoint is the best, and the
    policy that keeps the best and the latest keeps the latest alone.
    """

    def __init__(self) -> None:
        self._validated: set[int] = set()
        self._saved: list[int] = []
        self._over = False

    def validated(self, steps: int) -> None:
        """There are metrics of a validation at this step."""
        if not self._over:
            self._validated.add(steps)

    def saved(self, steps: int) -> None:
        """There is a checkpoint at this step, whose validation may still be to come."""
        earlier, now = self._saved, [*self._saved, steps]
        if self._over:
            return
        if not self._validated.isdisjoint(now):
            self._over = True
        elif len(earlier) >= _ENOUGH and len(self._validated) > 1:
            self._over = True
            logger.warning(
                "no checkpoint so far has the steps of a validation (checkpoints at %s, validations"
                " at %s): none of them can be the best, and garbage collection keeps the latest;"
                " validate at steps at which you save, counted alike, in batches or in epochs",
                _few(now),
                _few(sorted(self._validated)),
            )
        self._saved = now


def _few(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:3])) + (" ..." if steps[3:] else "")
