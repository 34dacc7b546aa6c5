"""Exceptions of the public API."""

from __future__ import annotations


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
