"""An environment that borrows what is installed here, for tests that need not wait for an index."""

from __future__ import annotations

import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_venv(folder: Path, *wanted: str) -> None:
    """A new environment with links to what the requirements in `wanted` need, and nothing else.

    pip finds every requirement satisfied in it. What setup.cfg forgets to require is missing in
    it as it would be for a user.
    """
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python3*/site-packages")
    for entry in set().union(*(_entries(distribution(name)) for name in _closure(wanted))):
        (packages / entry.name).symlink_to(entry)


def _closure(wanted: Iterable[str]) -> set[str]:
    """The names of all distributions that are needed, but for detslurm itself."""
    waiting = [Requirement(text) for text in wanted]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in requirement.extras | {""}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += _needed_by(name, extra)
    return {name for name, _ in seen} - {"detslurm"}


def _needed_by(name: str, extra: str) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _entries(found: Distribution) -> set[Path]:
    """What lies in site-packages of a distribution: its folders and modules."""
    tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    return {Path(str(found.locate_file(top))) for top in tops}
