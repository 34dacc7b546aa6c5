"""Where checkpoints are stored, and how many of them are kept."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Annotated, Any

from detslurm.config.fields import IGNORED, SECRET, NonNegative, Section, Text, deprecated, must


def absolute(value: Any) -> str | None:
    """Wants an absolute path."""
    return None if value.startswith("/") else ""


def _host_path(value: Any) -> str | None:
    path = os.path.expandvars(value)
    return "names a variable that isn't set" if path.startswith("$") else absolute(path)


def _prefix(value: Any) -> str | None:
    parts = PurePosixPath(value).parts
    return "must not contain .. as a part" if ".." in parts else None


AbsolutePath = Annotated[Text, must(absolute, "an absolute path")]
Prefix = Annotated[str | None, must(_prefix)]
OldPath = Annotated[str | None, deprecated("now called storage_path")]


class Storage(Section, frozen=True, kw_only=True):
    """The checkpoints to keep when an experiment ends: common to all types."""

    save_experiment_best: NonNegative = 0
    save_trial_best: NonNegative = 1
    save_trial_latest: NonNegative = 1


class SharedFS(Storage, frozen=True, kw_only=True, tag_field="type", tag="shared_fs"):
    """A directory that all nodes share."""

    host_path: Annotated[Text, must(_host_path, "an absolute path")]
    storage_path: str | None = None
    propagation: Annotated[str, IGNORED] = "rprivate"
    container_path: Annotated[str | None, IGNORED] = None
    checkpoint_path: OldPath = None
    tensorboard_path: Annotated[str | None, IGNORED] = None

    @property
    def path(self) -> str:
        """The directory that the checkpoints' own directories are in."""
        return str(PurePosixPath(self.host_path) / (self.storage_path or ""))


class Directory(Storage, frozen=True, kw_only=True, tag_field="type", tag="directory"):
    """A directory as the training code sees it."""

    container_path: AbsolutePath


class S3(Storage, frozen=True, kw_only=True, tag_field="type", tag="s3"):
    """A bucket on S3 or on anything that speaks its protocol."""

    bucket: Text
    access_key: Annotated[str | None, SECRET] = None
    secret_key: Annotated[str | None, SECRET] = None
    endpoint_url: str | None = None
    prefix: Prefix = None


class GCS(Storage, frozen=True, kw_only=True, tag_field="type", tag="gcs"):
    """A bucket on Google Cloud Storage."""

    bucket: Text
    prefix: Prefix = None


class Azure(Storage, frozen=True, kw_only=True, tag_field="type", tag="azure"):
    """A container on Azure Blob Storage."""

    container: Text
    connection_string: Annotated[str | None, SECRET] = None
    account_url: str | None = None
    credential: Annotated[str | None, SECRET] = None


CheckpointStorage = SharedFS | Directory | S3 | GCS | Azure
