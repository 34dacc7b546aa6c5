"""What can go wrong for a user of the SDK."""

from __future__ import annotations


class SubmitError(Exception):
    """An experiment can't be submitted; nothing was queued. Says what to do."""


class LifecycleError(Exception):
    """The experiment or trial can't do that now; the message has the reason and a remedy."""
