"""One vocabulary, docs/glossary.md: what once had a private word keeps the field's own term."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

# One process parses all modules once.
pytestmark = pytest.mark.xdist_group("vocabulary")

REPOSITORY = Path(__file__).resolve().parents[1]
GLOSSARY = REPOSITORY / "docs" / "glossary.md"
FOLDERS = (
    "benchmarks", "detslurm", "docs", "examples", "launchers", "scripts", "sdk", "templates",
    "tests",
)  # fmt: skip
PRODUCT = ("detslurm/*", "launchers/*", "sdk/*", "templates/*")


class Rule(NamedTuple):
    """A word that was replaced, what by, and where; `but` are names that mean something else."""

    old: str
    new: str
    where: tuple[str, ...] = ("*",)
    but: tuple[str, ...] = ()


# Parts of names: `wish` is in `user_wishes` and in `WishLog`.
WORDS = (
    Rule("wish", "intent"),
    Rule("tap", "notify"),
    Rule("leg", "fencing_token"),
    Rule("life", "incarnation"),
    Rule("agenda", "trial_queue"),
    Rule("workforce", "worker_pool"),
    Rule("relief", "standby"),
    Rule("standing", "job_status", ("*",), ("standing_in",)),  # in for Determined
    Rule("hand", "unmanaged", PRODUCT),
    Rule("sight", "queue_snapshot"),
    Rule("survey", "snapshot"),
    Rule("surveyed", "snapshot"),
    Rule("bury", "mark_lost"),
    Rule("remark", "message"),
    Rule("foresight", "search_preview"),
    Rule("embedded", "unmanaged"),
    Rule("joining", "unmanaged"),
    Rule("tracked", "unmanaged", PRODUCT, ("tracked",)),  # Slurm tracks processes by cgroups
    Rule("desk", "server", PRODUCT),
    Rule("keeper", "supervisor, or method_storage", PRODUCT),
    Rule("star", "communicator"),
    Rule("team", "process_group"),
    Rule("lean", "fast_path"),
    Rule("neighbour", "local_peers", PRODUCT),
    Rule("lastword", "end_reason"),
    Rule("hopeless", "non_retryable", PRODUCT),
    Rule("patiently", "with_retries"),
    Rule("suggested", "optuna", ("detslurm/searcher/*",)),
    Rule("ticket", "next_ticket", ("detslurm/searcher/*",), ("next_ticket",)),
    Rule("heard", "metric_seen", ("detslurm/searcher/*",)),
    Rule("mark", "rung_results", ("detslurm/searcher/*",)),
    Rule("goal", "target_length", ("detslurm/searcher/*", "detslurm/core/*")),
    Rule("succession", "resubmit"),
    Rule("stretch", "contiguous_range, or metrics_window"),
    Rule("mistake", "sanity_checks", ("detslurm/pytorch/*",)),
    Rule("fetching", "download"),
    Rule("agreement", "collective"),
)

# Whole names of classes, functions, variables and attributes.
NAMES = (
    Rule("Place", "JobRef, RankTopology, LocalClusterPaths"),
    Rule("Watch", "FailureDetector, SanityChecks, ExperimentPoller"),
    Rule("Word", "SearchVerdict, ControlMessage", ("detslurm/exec/*", "detslurm/core/*")),
    Rule("Words", "LauncherArgs"),
    Rule("Slots", "InlineBuffers", ("detslurm/core/*",)),  # the local cluster's are slots
    Rule("Standing", "JobStatus"),
    Rule("Report", "AttemptResult", ("detslurm/exec/*",)),
    Rule("Ended", "AttemptFacts", ("detslurm/exec/*",)),
    Rule("Next", "Action", ("detslurm/exec/*",)),
    Rule("Ask", "WorkRequested"),
    Rule("Left", "RunEnded"),
    Rule("Node", "YamlNode", ("detslurm/config/*",)),
    Rule("Ledger", "CallSequence", ("detslurm/core/*",)),
    Rule("look_at", "attach_job_status"),
    Rule("look_again", "clear_cache"),
    Rule("heir", "inherited_owner"),
    Rule("weigh_search", "reconcile_search"),
    Rule("why_ending", "end_reason"),
    Rule("in_step", "run_collectively"),
)

# Types of facts, records and events that have other names now.
OLD_TYPES = {"wish", "ask", "left"}
# What has a type and is not a record: sections of a configuration, and the probe's own file.
NO_RECORDS = {"shared_fs", "directory", "const", "probe", "number", "categorical"}

# Modules, by folder.
MODULES = {
    "detslurm/exec": "wishes agenda searching workers control lines policies stepdesk embedded"
    " joining",
    "detslurm/cli": "experiment_wish experiment_look experiment_set remarks foresight",
    "sdk": "searching searches workforce workers standing survey foresight keepers",
    "detslurm/store": "searchend patience experimentfold trialfold eventlog runlog jobclaims"
    " outcomes overview",
    "detslurm/slurm": "lastword succession chunks shape compile",
    "detslurm/slurm/local": "keeper place",
    "detslurm/searcher": "listed suggested bridge history generators stream optuna_space",
    "detslurm/config": "nodes elsewhere fitting normal",
    "launchers": "words entry nodedesk beside",
    "detslurm/core": "_events _goals _agreement _fetching _sharding _sharded _records",
    "detslurm/core/transports": "star team lean slots watch neighbours order",
    "detslurm/pytorch": "_judge _mistakes _full _states _nested _peers",
}

# Class names that two modules have. (Sections of the configuration bear the names of what they
# configure, and are not counted.)
TWICE = {
    # What a custom method asks for, and how the search's log keeps it.
    *("Close", "Create", "Progress", "Shutdown", "ValidateAfter"),
    "Trial",  # what all model code says of itself; the SDK's view of a trial
    "Job",  # one submission, as an experiment records it; what the queue has, in the SDK
    "Record",  # Determined's unit of training; a record of the store
    "DownloadMode",  # how ranks share a download; how Determined's client fetches a checkpoint
    "TrialState",  # of a Trainer, in its checkpoints; of a trial, in Determined's client
    "Trainer",  # of a PyTorchTrial, of a DeepSpeedTrial
    "WorkerPool",  # a search's workers as one of them sees them, and as the SDK does
}

_DOTTED = re.compile(r"[\w.:]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@cache
def sources() -> tuple[str, ...]:
    """The repository's Python files, by their paths in it."""
    here = Path(__file__).resolve()
    found = [*REPOSITORY.glob("*.py")]
    for folder in FOLDERS:
        found += (REPOSITORY / folder).rglob("*.py")
    return tuple(sorted(f"{p.relative_to(REPOSITORY)}" for p in found if p != here))


@cache
def tree(source: str) -> ast.Module:
    return ast.parse((REPOSITORY / source).read_text())


@cache
def names() -> dict[str, frozenset[str]]:
    """Every name that a file has: its identifiers, strings that are names, and its own."""
    return {
        source: frozenset(
            [*Path(source).with_suffix("").parts, *_names_in(compile(tree(source), source, "exec"))]
        )
        for source in sources()
    }


def _names_in(code: CodeType) -> Iterator[str]:
    # Compiled code has every name, and is read ten times as fast as tokens are.
    yield code.co_name
    yield from (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars)
    yield from _names_of(code.co_consts)


def _names_of(constants: Iterable[object]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, tuple):  # the names of keyword arguments, among others
            yield from _names_of(constant)
        elif isinstance(constant, str) and _DOTTED.fullmatch(constant):
            yield from re.findall(r"[A-Za-z_]\w*", constant)


@cache
def parts(name: str) -> frozenset[str]:
    """The words of a name, in the singular as well."""
    found = frozenset(part.lower() for part in _PART.findall(name))
    singular = {part.removesuffix("es") for part in found} | {
        part.removesuffix("s") for part in found
    }
    return found | singular


def broken(rules: Sequence[Rule], words_of: Callable[[str], Collection[str]]) -> Iterator[str]:
    """The names that have a word of the old dialect."""
    by_word = {rule.old: rule for rule in rules}
    for source, known in names().items():
        for name in sorted(known):
            for word in by_word.keys() & words_of(name):
                rule = by_word[word]
                if name not in rule.but and any(fnmatch(source, p) for p in rule.where):
                    yield f"{source}: {name} (now {rule.new})"


def test_no_word_of_the_old_dialect_is_left() -> None:
    """Neither in a name of the code, nor of a file, nor in a string that is a name."""
    found = [*broken(WORDS, parts), *broken(NAMES, lambda name: {name})]
    assert not found, "\n".join(found)


def test_no_module_has_its_old_name_back() -> None:
    """A module is named for what it holds."""
    old = {f"{folder}/{name}.py" for folder, all in MODULES.items() for name in all.split()}
    assert not old & set(sources())


def test_one_name_for_one_class() -> None:
    """Who reads a class's name knows which one it is."""
    homes: dict[str, list[str]] = defaultdict(list)
    for source in sources():
        if any(fnmatch(source, pattern) for pattern in PRODUCT) and "/schema/" not in source:
            for node in ast.walk(tree(source)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(source)
    assert not {
        name: found for name, found in homes.items() if len(found) > 1 and name not in TWICE
    }


def test_no_record_has_an_old_type() -> None:
    """The types of facts, records and events are in the glossary."""
    types, text = record_types(), GLOSSARY.read_text()
    assert not types.keys() & OLD_TYPES, types
    assert not {kind: where for kind, where in types.items() if f"`{kind}`" not in text}


def record_types() -> dict[str, set[str]]:
    """What the product writes as the type of a record, and where."""
    found: dict[str, set[str]] = defaultdict(set)
    messages = "detslurm/exec/agent_reports.py"
    for source in sources():
        if source.startswith(("detslurm/", "sdk/")) and "/config/" not in source:
            if source == messages:
                continue
            for kind in _types_in(tree(source)):
                found[kind].add(source)
    return {kind: where for kind, where in found.items() if kind not in NO_RECORDS}


def _types_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in ("t", "e", "type"):
                    yield from _texts_in(value)
        elif isinstance(node, ast.ClassDef):
            for keyword in node.keywords:
                if keyword.arg == "tag":
                    yield from _texts_in(keyword.value)


def _texts_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_glossary_speaks_of_what_there_is() -> None:
    """Every class, function and value that it names in code style is in the code."""
    known = {name for found in names().values() for name in found}
    named = re.findall(r"`([A-Za-z_]\w*)`", GLOSSARY.read_text())
    assert {name for name in named if name not in known} == set()
