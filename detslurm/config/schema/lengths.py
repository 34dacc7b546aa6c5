"""Lengths of training: a number of batches, records or epochs."""

from __future__ import annotations

from detslurm.config.fields import NonNegative, Positive, Section

UNITS = ("batches", "records", "epochs")


class Length(Section, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of batches, records, epochs."""

    batches: NonNegative | None = None
    records: NonNegative | None = None
    epochs: NonNegative | None = None


class PositiveLength(Length, frozen=True, kw_only=True, omit_defaults=True):
    """A length of at least 1."""

    batches: Positive | None = None
    records: Positive | None = None
    epochs: Positive | None = None
