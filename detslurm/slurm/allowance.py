"""What QOS and associations allow of one kind of job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Charge:
    """Whose limits count for a job: names of QOS in their order, and an association."""

    user: str
    account: str
    partition: str
    qos: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Charge:
        """What `to_dict` made; fields of a newer version are skipped."""
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        return cls(**{**known, "qos": tuple(data["qos"])})


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is allowed of one kind of job; None and empty where no limit is known.

    Attributes:
        room: How many more may be submitted now; each element of an array is one.
        limit: The limit that `room` comes from.
        at_once: How many may run at once.
        at_once_limit: The limit that `at_once` comes from.
        problem: Why not even one could ever start.
        charge: Whose limits these are.
    """

    room: int | None = None
    limit: str = ""
    at_once: int | None = None
    at_once_limit: str = ""
    problem: str | None = None
    charge: Charge | None = None
