"""Completes a configuration: the layer below all others, and derived values."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm.config.schema.recording import DEFAULT_POLICIES


def default_layer(root: Path) -> dict[str, Any]:
    """Defaults that depend on more than the schema: the store, the shell, the time, chance."""
    pool = os.environ.get("SBATCH_PARTITION")
    return {
        **({"resources": {"resource_pool": pool}} if pool else {}),
        "name": f"Experiment ({pet_name()})",
        "reproducibility": {"experiment_seed": int(time.time()) & 0xFFFFFFFF},
        "checkpoint_storage": {
            "type": "shared_fs",
            "host_path": str(root),
            "storage_path": "checkpoints",
        },
        "log_policies": [{"name": p.name, "pattern": p.pattern} for p in DEFAULT_POLICIES],
    }


def derive(config: dict[str, Any]) -> dict[str, Any]:
    """Fill the fields that follow from others, in a checked configuration."""
    config = dict(config)
    config["searcher"] = _both_generations(config["searcher"])
    config["log_policies"] = [p for p in config["log_policies"] if p.get("pattern") is not None]
    if "labels" in config:
        config["labels"] = list(dict.fromkeys(config["labels"]))
    storage = config.get("checkpoint_storage", {})
    if "host_path" in storage:  # by the variables of who submits: others who look have other ones
        paths = {key: storage[key] for key in ("host_path", "storage_path") if storage.get(key)}
        known = {key: os.path.expandvars(path) for key, path in paths.items()}
        config["checkpoint_storage"] = {**storage, **known}
    config["slurm"] = _on_one_node(config.get("slurm", {}), config.get("resources", {}))
    return config


def without_derived(config: Mapping[str, Any]) -> dict[str, Any]:
    """A derived configuration without the keys that only follow from others.

    A change of the other keys would contradict these; `derive` fills them again.
    """
    searcher, slurm = config["searcher"], config.get("slurm", {})
    if searcher.get("metrics"):
        of_first = ("metric", "smaller_is_better")
        searcher = {key: value for key, value in searcher.items() if key not in of_first}
    bare = {key: searcher[key] for key in searcher if key not in ("time_metric", "max_time")}
    plain = {key: slurm[key] for key in slurm if key != "slots_per_node"}
    return {
        **config,
        "searcher": bare if _both_generations(bare) == searcher else searcher,
        "slurm": plain if _on_one_node(plain, config.get("resources", {})) == slurm else slurm,
    }


def _on_one_node(slurm: Mapping[str, Any], resources: Mapping[str, Any]) -> Mapping[str, Any]:
    if not resources.get("is_single_node") or "slots_per_node" in slurm:
        return slurm
    return {**slurm, "slots_per_node": max(resources.get("slots_per_trial", 1), 1)}


def _both_generations(searcher: dict[str, Any]) -> dict[str, Any]:
    length = searcher.get("max_length")
    if searcher["name"] not in ("async_halving", "adaptive_asha") or not isinstance(length, dict):
        return searcher
    unit, units = next(iter(length.items()))
    return {**searcher, "time_metric": unit, "max_time": units}


# -- names for experiments that were given none ---------------------------------------------------

_ADJECTIVES = """
able amber bold brave bright brisk calm clever cosy curious daring eager early fair famous
fast fine fond free fresh gentle glad golden grand happy hardy honest humble jolly keen
kind lively loyal lucky merry mighty modest neat nimble noble patient polite prime proud
quick quiet rapid ready robust royal sharp shy silent smart smooth snug solid spry steady
sunny sure sweet swift tidy upright vivid warm wise witty young
"""
_ANIMALS = """
ant badger bat bear beaver bee bison boar buzzard camel cat cod crab crane crow deer dingo
dove duck eagle eel elk falcon ferret finch fox frog gecko goat goose gull hare hawk heron
horse ibex jackal jay kiwi koala lark lemur lion llama lynx magpie marten mole moose moth
mouse newt otter owl panda perch pike pony puffin quail rabbit raven robin rook salmon
seal shrew skink sloth snail sparrow squid stoat stork swan tapir tern tiger toad trout
turtle vole walrus wasp whale wolf wombat wren yak zebra
"""

ADJECTIVES = tuple(_ADJECTIVES.split())
ANIMALS = tuple(_ANIMALS.split())


def pet_name() -> str:
    """A name such as `quiet-otter`."""
    return f"{_pick(ADJECTIVES)}-{_pick(ANIMALS)}"


def _pick(words: Sequence[str]) -> str:
    # Not `random` and not `secrets`: both import more than all of this package.
    return words[int.from_bytes(os.urandom(4), "little") % len(words)]
