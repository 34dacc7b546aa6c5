"""The schema of `integrations`: which of the user's notices an experiment has."""

from __future__ import annotations

from typing import Annotated

from detslurm.config.fields import IGNORED, SECRET, FrozenDict, Positive, Section, Text, deprecated


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

    pachyderm: Annotated[FrozenDict | None, IGNORED, SECRET] = None
    webhooks: Webhooks | None = None


class PBS(Section, frozen=True, kw_only=True):
    """Options for another scheduler."""

    slots_per_node: Positive | None = None
    pbsbatch_args: tuple[str, ...] = ()
