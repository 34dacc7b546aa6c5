"""Which job goes on with another's trials, where users submit their own scripts again."""

from __future__ import annotations

from pathlib import Path

from detslurm.store.facts import put_record, read_record
from detslurm.store.store import Store


def claims_folder(store: Store) -> Path:
    """Where jobs that detslurm did not submit claim their experiments."""
    return store.own("unmanaged")


def inherit_claims(store: Store, cluster: str, job: str, first_job: str) -> None:
    """Let a new job go on with what the claims of its script's first job stand for."""
    put_record(_path(store, cluster, job), {"job": first_job})


def first_job(store: Store, cluster: str, job: str) -> str:
    """The job under whose name the claims of this one stand: mostly its own."""
    record = read_record(_path(store, cluster, job), expected=True)
    return str(record["job"]) if record else job


def _path(store: Store, cluster: str, job: str) -> Path:
    return claims_folder(store) / f"{cluster}-{job}-goes-on.json"
