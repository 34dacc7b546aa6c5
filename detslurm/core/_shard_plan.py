"""Assigns the files of a sharded checkpoint to ranks: pure decisions on the ranks' proposals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Resources = dict[str, int]


class Proposal(NamedTuple):
    """A rank's proposal: its (selected) resources, and the directory they are in."""

    resources: Resources
    directory_id: tuple[int, int, int] | None
    """Node, device and inode of its directory; None when the rank has nothing to upload."""
    selective: bool
    metadata: dict[str, Any]


def shares(proposals: Sequence[Proposal]) -> list[Resources]:
    """The upload of each rank, where ranks that name the same directory count once.

    A rank with a selector always uploads its selection. Raises `RuntimeError` if no rank uploads.
    """
    if all(proposal.directory_id is None for proposal in proposals):
        raise RuntimeError(
            "cannot call .upload(ckpt_dir=None, shard=True) from all ranks; "
            "at least one rank must have a valid ckpt_dir"
        )
    seen = set()
    result: list[Resources] = []
    for proposal in proposals:
        repeated = proposal.directory_id in seen and not proposal.selective
        result.append({} if proposal.directory_id is None or repeated else proposal.resources)
        if not proposal.selective:
            seen.add(proposal.directory_id)
    return result


def contested(parts: Sequence[Resources]) -> dict[str, list[int]]:
    """Files that several ranks upload, all of the same size: their contents must decide.

    Raises `RuntimeError` for what can't agree: other sizes, or a directory of the same name.
    """
    claims = _claims(parts)
    several = {name: ranks for name, ranks in claims.items() if len(ranks) > 1 and name[-1] != "/"}
    conflicts = {
        name: ranks for name, ranks in several.items() if len({parts[r][name] for r in ranks}) > 1
    }
    for name, ranks in claims.items():
        if f"{name}/" in claims:
            conflicts[name] = sorted({*ranks, *claims[f"{name}/"]})
    refuse_conflicts("files", conflicts)
    return several


def settled(
    parts: Sequence[Resources],
    several: Mapping[str, list[int]],
    digests: Sequence[Mapping[str, str]],
) -> list[Resources]:
    """The final shares: of equal files the lowest rank's. Raises `RuntimeError` for others."""
    refuse_conflicts(
        "files",
        {n: ranks for n, ranks in several.items() if len({digests[r][n] for r in ranks}) > 1},
    )
    owners = {name: ranks[0] for name, ranks in _claims(parts).items()}
    return [
        {name: size for name, size in part.items() if owners[name] == rank}
        for rank, part in enumerate(parts)
    ]


def _claims(parts: Sequence[Resources]) -> dict[str, list[int]]:
    claims: dict[str, list[int]] = {}
    for rank, part in enumerate(parts):
        for name in part:
            claims.setdefault(name, []).append(rank)
    return claims


def refuse_conflicts(kind: str, conflicts: Mapping[str, list[int]]) -> None:
    """Raise `RuntimeError` that names each conflict and its ranks, if there are any."""
    if conflicts:
        lines = [f"    {n} uploaded by ranks {ranks}" for n, ranks in sorted(conflicts.items())]
        raise RuntimeError("\n".join([f"refusing to upload with {kind} conflicts:", *lines]))


def merged_metadata(by_rank: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One dictionary of all ranks'; equal values are fine. Raises `RuntimeError` for others."""
    conflicts: dict[str, list[int]] = {}
    merged = _merge(list(enumerate(by_rank)), "", conflicts)
    refuse_conflicts("metadata", conflicts)
    return merged


def _merge(
    given: list[tuple[int, Mapping[str, Any]]], path: str, conflicts: dict[str, list[int]]
) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for _, values in given for key in values):
        here = f"{path}/{key}"
        claims = [(rank, values[key]) for rank, values in given if key in values]
        if all(isinstance(value, Mapping) for _, value in claims):
            merged[key] = _merge(claims, here, conflicts)
        elif all(_equal(claims[0][1], value) for _, value in claims[1:]):
            merged[key] = claims[0][1]
        else:
            conflicts[here] = [rank for rank, _ in claims]
    return merged


def _equal(one: Any, other: Any) -> bool:
    # NaN is not equal to itself, but two ranks that both have NaN do agree.
    return bool(one == other) or json.dumps(one) == json.dumps(other)
