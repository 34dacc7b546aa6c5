"""The fold of what happened to an experiment's checkpoints after they were saved. Pure.

All of it are facts of the experiment, numbered one after the other: that order decides whether a
checkpoint was kept before a user deleted it, or deleted before a user could keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from typing import Any

import msgspec

from detslurm.store.records import (
    CheckpointDeleted,
    CheckpointFilesRemoved,
    CheckpointKept,
    CheckpointMetadata,
    CheckpointReleased,
    CheckpointUsed,
    CheckpointVerified,
)
from detslurm.store.views import CheckpointView

CheckpointFact = (
    CheckpointDeleted
    | CheckpointKept
    | CheckpointReleased
    | CheckpointFilesRemoved
    | CheckpointMetadata
    | CheckpointVerified
    | CheckpointUsed
)

DELETED = "DELETED"
PARTIALLY_DELETED = "PARTIALLY_DELETED"


class CheckpointFacts(msgspec.Struct):
    """The state of an experiment's checkpoints.

    `deletions` has the times of deletions, `kept` the facts that protect some, by number; `closed`:
    the experiment was deleted, so that nothing of it can be kept any more.
    """

    deletions: dict[str, float | None] = msgspec.field(default_factory=dict)
    kept: dict[int, CheckpointKept] = msgspec.field(default_factory=dict)
    resources: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    metadata: dict[str, list[CheckpointMetadata]] = msgspec.field(default_factory=dict)
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    used: list[CheckpointUsed] = msgspec.field(default_factory=list)
    closed: bool = False

    @property
    def deleted(self) -> KeysView[str]:
        """The ids of those that were deleted."""
        return self.deletions.keys()

    def apply(self, fact: CheckpointFact) -> None:
        """Take in the next fact."""
        match fact:
            case CheckpointKept() if not self.closed and self.deleted.isdisjoint(fact.uuids):
                self.kept[fact.n] = fact
            case CheckpointReleased():
                self.kept.pop(fact.kept, None)
            case CheckpointDeleted():
                for uuid in self.unprotected({*fact.uuids, *filter(None, [fact.uuid])}):
                    self.deletions.setdefault(uuid, fact.time)
            case CheckpointFilesRemoved() if self.unprotected([fact.uuid]):
                self.resources[fact.uuid] = fact.resources
            case CheckpointMetadata():
                self.metadata.setdefault(fact.uuid, []).append(fact)
            case CheckpointVerified():
                known = {**self.problems, **fact.problems}
                self.problems = {uuid: text for uuid, text in known.items() if text}

            case CheckpointUsed():
                self.used.append(fact)

    def protection(self, uuid: str) -> CheckpointKept | None:
        """The fact that forbids to delete a checkpoint, None where nothing does."""
        return next((fact for fact in self.kept.values() if uuid in fact.uuids), None)

    def unprotected(self, uuids: Iterable[str]) -> set[str]:
        """Those that may be deleted."""
        return set(uuids).difference(*(fact.uuids for fact in self.kept.values()))

    def applied(self, checkpoint: CheckpointView) -> CheckpointView:
        """A checkpoint as it is now; twice is the same as once."""
        uuid, changed = checkpoint.uuid, dict[str, Any]()
        if uuid in self.resources:
            changed["resources"] = left = self.resources[uuid]
            if not checkpoint.resources.keys() <= left.keys():
                changed["state"] = PARTIALLY_DELETED
        if uuid in self.deleted:
            changed |= {"state": DELETED, "deleted_time": self.deletions[uuid]}
        if uuid in self.problems:
            changed["problem"] = self.problems[uuid]
        if uuid in self.metadata:
            changed["metadata"] = _edited(checkpoint.metadata, self.metadata[uuid])
        return msgspec.structs.replace(checkpoint, **changed) if changed else checkpoint


def _edited(metadata: dict[str, Any], edits: Iterable[CheckpointMetadata]) -> dict[str, Any]:
    for edit in edits:
        rest = {key: value for key, value in metadata.items() if key not in edit.remove}
        metadata = {**rest, **edit.set}
    return metadata
