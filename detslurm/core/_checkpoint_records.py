"""The records of checkpoints in the store: begun, committed, deleted."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from detslurm.core._metrics import plain, storable
from detslurm.core._recorder import AnyRecorder
from detslurm.core._trial import mark_deleted, recorded_digests
from detslurm.storage import Digests, Resources
from detslurm.store import StoreError, TrialDir


class Outputs(NamedTuple):
    """Files of the trial's outputs that a checkpoint commits: their directory, names and sizes."""

    uuid: str
    resources: Resources


class CheckpointRecords:
    """The records of a trial's checkpoints; only a directory committed here is a checkpoint."""

    def __init__(
        self,
        recorder: AnyRecorder,
        trial: TrialDir | None = None,
        run: int | None = None,
        *,
        needs_steps: bool,
        location: Mapping[str, Any] | None = None,
    ) -> None:
        self._recorder, self._trial, self._run = recorder, trial, run
        self._needs_steps = needs_steps
        self._storage = {} if location is None else {"storage": dict(location)}
        self._begun: dict[str, float] = {}
        self._committed: dict[str, Digests] = {}

    @property
    def storage_type(self) -> str | None:
        """The type of a storage that the code has named itself."""
        return self._storage.get("storage", {}).get("type")

    def checked(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata itself. Raises `ValueError` when it lacks the steps of a trial, or has more
        than readers take."""
        steps = metadata.get("steps_completed")
        if self._needs_steps and (isinstance(steps, bool) or not isinstance(steps, int)):
            raise ValueError(
                "checkpoint metadata needs a 'steps_completed' key with an integer, "
                f"but metadata is {dict(metadata)!r}"
            )
        if isinstance(steps, int):
            storable(steps)
        return dict(metadata)

    def begin(self) -> str:
        """Choose a storage id and note it, so that the next run knows what to remove."""
        self.refuse_superseded()
        storage_id = str(uuid.uuid4())
        self._begun[storage_id] = time.monotonic()
        self._recorder.commit({"t": "checkpoint_started", "uuid": storage_id, **self._storage})
        return storage_id

    def refuse_superseded(self) -> None:
        """Raises `RuntimeError` once another run has gone on with the trial: this one's is over."""
        if self._trial is None or self._run is None:
            return
        try:
            superseded = self._trial.superseded(self._run)
        except StoreError:
            return  # unknown
        if superseded:
            raise RuntimeError(
                "this run was given up and another one goes on with the trial: it may neither save"
                " nor delete checkpoints any more"
            )

    def commit(
        self,
        storage_id: str,
        metadata: Mapping[str, Any],
        resources: Resources,
        digests: Digests,
        outputs: Outputs | None = None,
    ) -> None:
        """From here on the checkpoint exists, and files of the trial's outputs are committed."""
        self._committed[storage_id] = digests
        steps = metadata.get("steps_completed")
        self._recorder.commit(
            {
                "t": "checkpoint",
                "uuid": storage_id,
                "steps": steps if isinstance(steps, int) else 0,
                "resources": dict(sorted(resources.items())),
                "metadata": dict(metadata),
                **({"digests": dict(sorted(digests.items()))} if digests else {}),
                **({"outputs": {**outputs._asdict(), **self._storage}} if outputs else {}),
                "time": time.time(),
                **self._blocked(storage_id),
                **self._storage,
            }
        )

    def begin_in_background(self, storage_id: str) -> None:
        """Training goes on while this one is saved: the caller records the seconds that it cost."""
        if storage_id in self._begun:
            self._begun[storage_id] = math.nan

    def _blocked(self, storage_id: str) -> dict[str, float]:
        """For how long the save kept the training loop waiting; nothing where that is unknown."""
        seconds = time.monotonic() - self._begun.get(storage_id, math.nan)
        own = threading.current_thread() is threading.main_thread()
        return {"seconds": round(seconds, 3)} if own and not math.isnan(seconds) else {}

    def digests(self, storage_id: str) -> Digests | None:
        """The digests of a checkpoint's files; None where no record of this user's has any."""
        known = self._committed.get(storage_id)
        if not known and self._trial is not None:
            known = recorded_digests(self._trial, storage_id)
        return known or None

    def deleted(self, storage_id: str) -> str | None:
        """From here on the checkpoint is gone, unless something needs it: then returns what."""
        if self._trial is not None:
            return mark_deleted(self._trial, storage_id, storage_id in self._begun)
        self._recorder.commit({"t": "checkpoint_deleted", "uuid": storage_id})
        return None


def plain_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as plain data. Raises `TypeError` for anything but a mapping."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a dict, not {type(metadata).__name__}")
    return plain(metadata or {})
