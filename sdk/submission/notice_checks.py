"""Checks the notices that an experiment names."""

from __future__ import annotations

from detslurm.config import ExperimentConfig, SiteProfile
from detslurm.config.errors import ConfigErrors
from detslurm.notices.definitions import definitions, unknown_notice


def notice_notes(config: ExperimentConfig, site: SiteProfile | None) -> list[str]:
    """Warnings about names without a definition, and about definitions that are wrong."""
    integrations = config.integrations
    webhooks = None if integrations is None else integrations.webhooks
    try:
        known = definitions(site)
    except ConfigErrors as error:
        return [f"no notice can be sent: {error}"]
    names = () if webhooks is None else webhooks.webhook_name
    return [f"{unknown_notice(name, known)}: nothing is sent to it" for name in names
            if name not in known]  # fmt: skip
