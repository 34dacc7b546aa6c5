"""What can go wrong when an experiment is looked at or told something."""

from __future__ import annotations


class LifecycleError(Exception):
    """The experiment or trial can't do that now; the text says why and what helps."""
