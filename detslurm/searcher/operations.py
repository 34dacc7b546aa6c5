"""The operations that a search method of the user's own asks for; the search's log keeps them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

import msgspec


class Operation(msgspec.Struct, frozen=True, tag_field="op"):
    """An operation that a search method asks for."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as the search's log keeps it."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_numpy_number)
        return plain


class Create(Operation, frozen=True, tag="create"):
    """Add a trial; it waits for its first `ValidateAfter`.

    Attributes:
        request_id: The trial's name for the method, a `uuid.uuid4()`.
        hparams: The trial's hyperparameters.
        checkpoint: The checkpoint that the trial starts from, as a mapping with a `uuid`; by
            default the trial starts from the beginning.
    """

    request_id: UUID
    hparams: dict[str, Any]
    checkpoint: dict[str, Any] | None = None


class ValidateAfter(Operation, frozen=True, tag="validate_after"):
    """Let a trial train to a length and report its metric.

    Attributes:
        request_id: The trial's name.
        length: The length, counted from the beginning of the trial, in the search's unit.
    """

    request_id: UUID
    length: int


class Close(Operation, frozen=True, tag="close"):
    """Ask nothing more of a trial: it closes once its last `ValidateAfter` is completed.

    Attributes:
        request_id: The trial's name.
    """

    request_id: UUID


class Progress(Operation, frozen=True, tag="progress"):
    """Report which part of the search is done; the runner sends it after each event.

    Attributes:
        progress: From 0 to 1.
    """

    progress: float


class Shutdown(Operation, frozen=True, tag="shutdown"):
    """End the search: completed, unless an argument sets another verdict.

    Attributes:
        cancel: Whether it counts as canceled; off by default.
        failure: Whether it counts as failed; off by default.
    """

    cancel: bool = False
    failure: bool = False


def read_operation(plain: Mapping[str, Any]) -> Operation | None:
    """The operation that the log keeps as this plain data; None if a value can't be."""
    try:
        operation: Operation = msgspec.convert(
            plain, Create | ValidateAfter | Close | Progress | Shutdown
        )
    except (msgspec.ValidationError, TypeError):
        return None
    return operation


def problem_of(operations: Iterable[Mapping[str, Any]], known: Collection[str]) -> str | None:
    """The first operation that can have no effect, for people; None if all have an effect.

    `known` are the request ids of the trials that exist.
    """
    created = set(known)
    for plain in operations:
        match read_operation(plain):
            case None:
                return f"an operation with a wrong value: {plain}"
            case Create(request_id=request_id, hparams=hparams):
                try:
                    msgspec.msgpack.encode(hparams)
                except OverflowError:
                    return f"a hyperparameter beyond 64 bits: {plain}"
                created.add(str(request_id))
            case ValidateAfter() | Close() as operation if str(operation.request_id) not in created:
                kind = type(operation).__name__
                return f"{kind} of a trial that it has not created: {plain}"
            case ValidateAfter(length=length) if length < 1:
                return f"a length below 1: {plain}"
    return None


def _numpy_number(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"an operation can't hold {value!r}: JSON has no {type(value).__name__}")
