"""Errors that the public API raises, and names that scripts for Determined catch."""

from __future__ import annotations

from typing import Any


class CheckpointNotFound(Exception):
    """There is no complete checkpoint with this storage id."""


class InvalidCheckpointException(Exception):
    """A checkpoint can't be used."""


class NoDirectStorageAccess(Exception):
    """The storage of a checkpoint can't be reached from here."""


class ProxiedDownloadFailed(Exception):
    """A checkpoint could not be downloaded through a server."""


class MultipleDownloadsFailed(Exception):
    """Every way to download a checkpoint failed."""


class EnterpriseOnlyError(Exception):
    """Something asked for is there in an edition for sale only. Never raised here."""


class StopLoadingImplementation(Exception):
    """The loading of a trial's code is to stop here."""


class InvalidExperimentException(Exception):
    """The code of a trial, or its configuration, asks for something that makes no sense."""


class InternalException(Exception):
    """A method was called at a time when it has no answer."""


class InvalidConfigurationException(InvalidExperimentException):
    """The configuration of an experiment makes no sense.

    Args:
        config: The configuration.
        message: Its fault.
    """

    def __init__(self, config: dict[str, Any], message: str) -> None:
        super().__init__(config, message)

    def __str__(self) -> str:
        config, message = self.args
        return f"{message} (configuration: {config})"


class InvalidDataTypeException(InvalidExperimentException):
    """The code of a trial gave something of a type that can't be used.

    Args:
        typ: The type.
        message: Its source, or the expected type.
    """

    def __init__(self, typ: type, message: str) -> None:
        super().__init__(typ, message)

    def __str__(self) -> str:
        typ, message = self.args
        return f"{message} (type: {typ.__name__})"


class InvalidModelException(InvalidExperimentException):
    """A model of a trial can't be trained."""


class CheckpointStateException(Exception):
    """A checkpoint is not in a state for the request."""


class SkipWorkloadException(Exception):
    """A piece of training can't be done and is left out."""


class WorkerError(Exception):
    """A process of a training failed."""


class WorkerFinishedGracefully(Exception):
    """A process of a training ended as it should."""


class InvalidHP(Exception):
    """Raise it in training code if this trial's hyperparameters make no sense.

    The trial ends without a restart; the experiment goes on with its other trials.

    Args:
        msg: Their fault; a general sentence by default.

    Raises:
        TypeError: If the message is not text.
    """

    def __init__(self, msg: str = "the hyperparameters of this trial were declared invalid"):
        if not isinstance(msg, str):
            raise TypeError(f"InvalidHP takes a message (str), not {type(msg).__name__}")
        super().__init__(msg)


class MetricError(RuntimeError):
    """A validation lacks what the search goes by: the same again would not help."""
