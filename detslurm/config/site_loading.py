"""Read and check a site profile."""

from __future__ import annotations

from pathlib import Path

import msgspec

from detslurm.config.checking import Checker
from detslurm.config.errors import ConfigErrors, in_order
from detslurm.config.fields import freeze
from detslurm.config.normalize import normalize, without_nulls
from detslurm.config.reading import parse_mapping, read_file
from detslurm.config.schema.experiment import ExperimentConfig
from detslurm.config.schema.site import SiteProfile
from detslurm.config.schema.slurm import canonical_limit
from detslurm.config.yaml_node import YamlNode, key_path


def read_site(path: Path) -> SiteProfile:
    """The profile in a file, or ConfigErrors."""
    root = parse_mapping(read_file(path), str(path))
    checker = Checker(complete=True).check(root, SiteProfile)
    problems = checker.problems + [
        problem
        for where, node in _defaults(root)
        for problem in Checker(complete=False).check(node, ExperimentConfig, where).problems
    ]
    if problems:
        raise ConfigErrors(in_order(problems))
    plain = _normalized(root).plain()
    profile = {**plain, "source": str(path)}
    return msgspec.convert(profile, SiteProfile, dec_hook=lambda kind, value: freeze(value))


def _normalized(root: YamlNode) -> YamlNode:
    """Forms as in an experiment: a profile has the same keys in other places."""
    root = _section(without_nulls(root))
    if partitions := root.get("partitions"):
        named = {name: _section(node) for name, node in partitions.value.items()}
        root = root.put("partitions", partitions._replace(value=named))
    return root


def _section(node: YamlNode) -> YamlNode:
    if limit := node.get("time"):
        node = node.put("time", limit._replace(value=canonical_limit(limit.value)))
    if defaults := node.get("defaults"):
        node = node.put("defaults", normalize(defaults))
    if storage := node.get("checkpoint_storage"):
        wrapped = normalize(node._replace(value={"checkpoint_storage": storage}))
        node = node.put("checkpoint_storage", wrapped.value["checkpoint_storage"])
    return node


def _defaults(root: YamlNode) -> list[tuple[str, YamlNode]]:
    found = [("defaults", root.get("defaults"))]
    partitions = root.get("partitions")
    if partitions and partitions.is_mapping:
        for name, partition in partitions.value.items():
            where = key_path(key_path("partitions", name), "defaults")
            found.append((where, partition.get("defaults")))
    return [(where, node) for where, node in found if node and node.is_mapping]
