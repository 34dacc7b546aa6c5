"""Who uploads what of a sharded checkpoint: the rules alone, without files."""

from __future__ import annotations

from typing import Any

import pytest

from detslurm.core._shard_plan import Proposal, contested, merged_metadata, settled, shares

HERE, THERE = (0, 8, 1), (0, 8, 2)


def proposal(
    resources: dict[str, int],
    directory_id: tuple[int, int, int] | None = HERE,
    selective: bool = False,
) -> Proposal:
    """A rank's proposal without metadata."""
    return Proposal(resources, directory_id, selective, {})


def test_the_same_numbers_on_another_node_are_another_directory() -> None:
    """Local disks of two nodes may share device and inode numbers."""
    there = proposal({"a": 1}, (1, 8, 1))
    assert shares([proposal({"a": 1}), there]) == [{"a": 1}, {"a": 1}]


def test_ranks_with_selectors_always_upload_their_selection() -> None:
    """Of one directory, each selection counts, and everything once besides."""
    first, second = proposal({"a": 1}, selective=True), proposal({"b": 2}, selective=True)
    whole = proposal({"a": 1, "b": 2})
    assert shares([first, second, whole, whole]) == [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}, {}]


@pytest.mark.parametrize(
    "parts", [[{"a": 1}, {"a": 2}], [{"a": 0}, {"a/": 0}], [{"a/": 0}, {"a": 0}]]
)
def test_other_sizes_and_kinds_conflict_without_reading(parts: list[dict[str, int]]) -> None:
    """A file can't be two sizes, nor a file and a directory."""
    with pytest.raises(
        RuntimeError,
        match=r"(?s)refusing to upload with files conflicts:\n    a uploaded by ranks \[0, 1\]",
    ):
        contested(parts)


def test_equal_contents_are_no_conflict() -> None:
    """The lowest rank's file is stored, once."""
    parts = [{}, {"a": 1, "b": 1}, {"a": 1, "c": 1}]
    several = contested(parts)
    assert several == {"a": [1, 2]}
    assert settled(parts, several, [{}, {"a": "x"}, {"a": "x"}]) == [{}, {"a": 1, "b": 1}, {"c": 1}]


@pytest.mark.parametrize(
    ("by_rank", "merged"),
    [
        ([{"a": 1}, {"b": 2}, {}], {"a": 1, "b": 2}),
        ([{"a": 1}, {"a": 1}], {"a": 1}),
        ([{"a": [1, {"x": 2}]}, {"a": [1, {"x": 2}]}], {"a": [1, {"x": 2}]}),
        ([{"a": {"b": 1}}, {"a": {"c": 2, "d": {}}}], {"a": {"b": 1, "c": 2, "d": {}}}),
        ([{"a": None}, {"a": None}], {"a": None}),
    ],
)
def test_metadata_merges(by_rank: list[dict[str, Any]], merged: dict[str, Any]) -> None:
    """Dictionaries merge at every depth; equal values agree."""
    assert merged_metadata(by_rank) == merged


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ({"a": 1}, {"a": 2}, "/a"),
        ({"a": {"c": 1}}, {"a": {"c": 2}}, "/a/c"),
        ({"a": [1]}, {"a": [1, 2]}, "/a"),
        ({"a": {"b": 1}}, {"a": 1}, "/a"),
        ({"a": []}, {"a": {}}, "/a"),
        ({"a": None}, {"a": 0}, "/a"),
    ],
)
def test_metadata_conflicts(one: dict[str, Any], other: dict[str, Any], path: str) -> None:
    """Each conflict is named by its full path with the ranks that contradict each other."""
    with pytest.raises(
        RuntimeError, match=rf"metadata conflicts:\n    {path} uploaded by ranks \[0, 2\]"
    ):
        merged_metadata([one, {}, other])
