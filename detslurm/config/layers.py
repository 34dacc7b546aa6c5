"""Several sources, one configuration: the common part of reading any of them."""

from __future__ import annotations

from collections.abc import Iterable

from detslurm.config.describe import found
from detslurm.config.errors import ConfigErrors, ConfigProblem
from detslurm.config.yaml_node import YamlNode


def as_mapping(root: YamlNode) -> YamlNode:
    """The document as a mapping (an empty mapping for an empty document), or ConfigErrors."""
    if root.value is None:
        return root._replace(value={})
    if root.is_mapping:
        return root
    hint = ""
    if isinstance(root.value, str) and ":" in root.value:
        hint = "a space is needed after the colon of a key"
    message = f"a mapping of keys to values is expected, found {found(root)}"
    raise ConfigErrors([ConfigProblem.at(root.at, "", message, hint)])


def order(problems: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    """Each problem once, source by source, from top to bottom."""
    once: dict[object, ConfigProblem] = {}
    for problem in problems:
        # A value that stands in one place may be checked under several paths.
        place = problem.path if problem.line is None else None
        once.setdefault((problem.position, place, problem.message), problem)
    sources = list(dict.fromkeys(problem.file for problem in once.values()))
    return sorted(once.values(), key=lambda p: (sources.index(p.file), p.line or 0, p.column or 0))
