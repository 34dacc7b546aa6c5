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
    """Add the trial `request_id`, a `uuid.uuid4()`, with `hparams`; it waits for its first
    `ValidateAfter`. It starts from the `checkpoint`, a mapping with a `uuid`; by default from the
    beginning."""

    request_id: UUID
    hparams: dict[str, Any]
    checkpoint: dict[str, Any] | None = None


class ValidateAfter(Operation, frozen=True, tag="validate_after"):
    """Let the trial `request_id` train to a `length`, counted from its beginning in the search's
    unit, and report its metric."""

    request_id: UUID
    length: int


class Close(Operation, frozen=True, tag="close"):
    """Ask nothing more of the trial `request_id`: it closes once its last `ValidateAfter` is
    completed."""

    request_id: UUID


class Progress(Operation, frozen=True, tag="progress"):
    """Report the `progress` of the search, from 0 to 1; the runner sends it after each event."""

    progress: float


class Shutdown(Operation, frozen=True, tag="shutdown"):
    """End the search: completed by default, canceled with `cancel`, failed with `failure`."""

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
