"""Errors for users of the SDK."""

from __future__ import annotations

from detslurm._base.display import ShownAsText


class SubmitError(ShownAsText, Exception):
    """An experiment can't be submitted; nothing was queued. Its text names the remedy."""


class LifecycleError(ShownAsText, Exception):
    """The experiment, trial or job can't do that now; the message has the reason and a remedy."""


class BundleError(LifecycleError):
    """An experiment can't be bundled, or a bundle can't be imported; nothing was changed."""
