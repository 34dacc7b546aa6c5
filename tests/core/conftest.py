"""Fixtures of this folder."""

from tests.s3 import s3_server
from tests.temporary import temporary_folder

from .jobs import job, own_signals

__all__ = ["job", "own_signals", "s3_server", "temporary_folder"]
