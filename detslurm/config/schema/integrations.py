"""The user's notices of an experiment, and keys of other systems without effect on Slurm."""

from __future__ import annotations

from typing import Annotated

from detslurm.config.fields import IGNORED, SECRET, Positive, Section, Text, deprecated


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


class PBS(Section, frozen=True, kw_only=True):
    """Options for another scheduler."""

    slots_per_node: Positive | None = None
    pbsbatch_args: tuple[str, ...] = ()


class Kerberos(Section, frozen=True, kw_only=True):
    """Where Kerberos is configured."""

    config_file: str


class Security(Section, frozen=True, kw_only=True):
    """Authentication inside containers."""

    kerberos: Kerberos | None = None


class Pachd(Section, frozen=True, kw_only=True):
    """The daemon of Pachyderm."""

    host: str
    port: int


class PachydermProxy(Section, frozen=True, kw_only=True):
    """The proxy of Pachyderm."""

    scheme: str
    host: str
    port: int


class PachydermDataset(Section, frozen=True, kw_only=True):
    """A dataset in Pachyderm."""

    project: str
    repo: str
    commit: str
    branch: str
    token: Annotated[str, SECRET]


class Pachyderm(Section, frozen=True, kw_only=True):
    """Data from Pachyderm."""

    pachd: Pachd
    proxy: PachydermProxy
    dataset: PachydermDataset
