"""Refusals of a cluster: agents and runners know them, and start without any cluster."""

from __future__ import annotations

from detslurm._base.display import ShownAsText


class SlurmError(ShownAsText, Exception):
    """A cluster refused: its message, and what the user can do about it."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}\n{advice}" if advice else message)
        self.message = message
        self.advice = advice


class SubmitLimitReached(SlurmError):
    """There may be no more jobs, for now; fewer of them might have been taken."""

    @property
    def limit(self) -> str:
        """Slurm's name of the limit; empty if its message has none."""
        name, _, more = self.message.partition("\n")
        return name if more else ""
