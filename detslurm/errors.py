"""Errors that the public API raises."""

from __future__ import annotations


class CheckpointNotFound(Exception):
    """There is no complete checkpoint with this storage id."""


class InvalidExperimentException(Exception):
    """The code of a trial, or its configuration, asks for something that makes no sense."""


class InternalException(Exception):
    """A method was called at a time when it has no answer."""
