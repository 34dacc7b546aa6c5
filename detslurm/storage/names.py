"""Choosing among the resources of a checkpoint by selector or pattern; no files are touched."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from detslurm.storage.interface import Digests, Resources, Selector

logger = logging.getLogger("detslurm.storage")


def with_parents(resources: Mapping[str, int]) -> Resources:
    """The resources and every directory above them, in order."""
    found = dict(resources)
    for name in resources:
        for parent in PurePosixPath(name).parents:
            if parent != PurePosixPath("."):
                found[f"{parent}/"] = 0
    return dict(sorted(found.items()))


def without_files(resources: Mapping[str, int]) -> set[str]:
    """The directories among the resources that have no file among them."""
    files = {name: size for name, size in resources.items() if not name.endswith("/")}
    return resources.keys() - with_parents(files)


def recorded(resources: Mapping[str, int], digests: Digests | None) -> Resources:
    """The resources without the files that have no digest; all of them without digests."""
    if digests is None:
        return dict(resources)
    return {n: size for n, size in resources.items() if n.endswith("/") or n in digests}


def selected(resources: Mapping[str, int], selector: Selector | None) -> Resources:
    """The selection of a selector; a selected file brings its directories."""
    if selector is None:
        return dict(resources)
    return with_parents({name: size for name, size in resources.items() if selector(name)})


def matching(resources: Iterable[str], globs: Iterable[str]) -> set[str]:
    """The resources that match a pattern, or lie in a directory that does."""
    patterns = [PurePosixPath(glob).parts for glob in globs if _inside(glob)]
    return {
        name
        for name in resources
        if any(
            _matches(PurePosixPath(name).parts[:depth], pattern)
            for pattern in patterns
            for depth in range(1, len(PurePosixPath(name).parts) + 1)
        )
    }


def _inside(glob: str) -> bool:
    path = PurePosixPath(glob)
    if path.is_absolute() or ".." in path.parts:
        logger.warning("the pattern %r leads out of the checkpoint: ignored", glob)
        return False
    return True


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
