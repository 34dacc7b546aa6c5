"""Errors that the public API raises."""

from __future__ import annotations


class CheckpointNotFound(Exception):
    """There is no complete checkpoint with this storage id."""


class InvalidExperimentException(Exception):
    """The code of a trial, or its configuration, asks for something that makes no sense."""


class InternalException(Exception):
    """A method was called at a time when it has no answer."""


class InvalidConfigurationException(InvalidExperimentException):
    """The configuration of an experiment makes no sense."""


class InvalidDataTypeException(InvalidExperimentException):
    """The code of a trial gave something of a type that can't be used."""


class InvalidModelException(InvalidExperimentException):
    """A model of a trial can't be trained."""


class CheckpointStateException(Exception):
    """A checkpoint is not in a state for what is asked of it."""


class SkipWorkloadException(Exception):
    """A piece of training can't be done and is left out."""


class WorkerError(Exception):
    """A process of a training failed."""


class WorkerFinishedGracefully(Exception):
    """A process of a training ended as it should."""
