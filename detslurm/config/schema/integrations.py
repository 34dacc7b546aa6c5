"""The schema of `integrations`: which of the user's notices an experiment has."""

from __future__ import annotations

from typing import Annotated

from detslurm.config.fields import IGNORED, Section, Text, deprecated
from detslurm.config.schema.obsolete import Pachyderm


class Webhooks(Section, frozen=True, kw_only=True):
    """The notices of an experiment, by name; with `exclude` there are none at all."""

    webhook_id: Annotated[
        tuple[int, ...],
        deprecated("ids are numbers of Determined's server: name the notice in webhook_name"),
    ] = ()
    webhook_name: tuple[Text, ...] = ()
    exclude: bool = False


class Integrations(Section, frozen=True, kw_only=True):
    """Systems around an experiment."""

    pachyderm: Annotated[Pachyderm | None, IGNORED] = None
    webhooks: Webhooks | None = None
