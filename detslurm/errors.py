"""Errors that the public API raises."""

from __future__ import annotations


class CheckpointNotFound(Exception):
    """There is no complete checkpoint with this storage id."""
