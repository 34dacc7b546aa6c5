"""From `experiment.yaml` to a typed configuration: read, check, merge, complete, check again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from detslurm.config.checking import Checker
from detslurm.config.defaults import default_layer, derive, without_derived
from detslurm.config.entrypoints import names_trial_class
from detslurm.config.errors import ConfigErrors, ConfigProblem, Noted, Position, in_order
from detslurm.config.experiment_rules import experiment_problems
from detslurm.config.merging import merge
from detslurm.config.misreadings import leftover_lengths, misreadings
from detslurm.config.normalize import canonical, normalize
from detslurm.config.overrides import apply_override
from detslurm.config.reading import parse_mapping, read_file
from detslurm.config.schema.experiment import FIT, ExperimentConfig
from detslurm.config.schema.site import SiteProfile
from detslurm.config.site import store_root
from detslurm.config.templates import find_template
from detslurm.config.yaml_node import YamlNode, locate

T = TypeVar("T")
STDIN = "<stdin>"
GIVEN = "<config>"
BASE = "<the other experiment>"
STOP_ONCE = YamlNode(True, Position("<derived>"))


class LoadedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, the warnings about it, and the text that it comes from.

    `given` is what the user's sources set together, without defaults.
    """

    config: ExperimentConfig
    given: dict[str, Any]
    warnings: tuple[str, ...]
    text: str


def load_experiment(
    source: str | Path | Mapping[str, Any] | YamlNode,
    *,
    overrides: Sequence[str] = (),
    template: str | Path | None = None,
    site: SiteProfile | None = None,
    root: Path | None = None,
    base: Mapping[str, Any] | None = None,
) -> LoadedExperiment:
    """The configuration in a file (`-`: standard input), a mapping or a node, merged and completed.

    `overrides` are `a.b=yaml` texts; `template` is a path or a name; `root` is the store, which has
    the templates and, by default, the checkpoints. `base` is the complete configuration of another
    experiment, which the rest changes; it has what the site had set, which is not added again.
    Raises ConfigErrors with every problem of every source.
    """
    site = SiteProfile() if base is not None else site or SiteProfile()
    load = _Load(site, root or store_root(site), based=base is not None)
    text, user = load.user(source)
    if base is not None:
        user = merge(canonical(user), locate(without_derived(base), Position(BASE)))
    for override in overrides:
        user = load.keep(lambda o=override, u=user: apply_override(u, o), user)  # type: ignore[misc]
    layers = [user]
    if template is not None:
        layers.append(load.keep(lambda: load.template(template), YamlNode({}, user.at)))
    config = load.complete(layers)
    given = reduce(merge, layers).plain()
    if base is not None:  # no user wrote the whole of it
        text = json.dumps(given, indent=2)
    return LoadedExperiment(config=config, given=given, warnings=load.warnings(), text=text)


def check_template(text: str, name: str) -> None:
    """Raise ConfigErrors with every problem of a template's YAML; `name` stands in messages."""
    checker = Checker(complete=False).check(parse_mapping(text, name), ExperimentConfig)
    if checker.problems:
        raise ConfigErrors(in_order(checker.problems))


class _Load:
    """One loading: collects problems and notes over its steps."""

    def __init__(self, site: SiteProfile, root: Path, *, based: bool = False) -> None:
        self._site, self._root, self._based = site, root, based
        self._problems: list[ConfigProblem] = []
        self._notes: dict[str, list[Noted]] = {}

    def keep(self, step: Callable[[], T], otherwise: T) -> T:
        """The step's result; its problems are kept for the end."""
        try:
            return step()
        except ConfigErrors as error:
            self._problems += error.problems
            return otherwise

    def user(self, source: str | Path | Mapping[str, Any] | YamlNode) -> tuple[str, YamlNode]:
        """The user's text and nodes; without them there is nothing more to check."""
        if isinstance(source, YamlNode):
            return json.dumps(source.plain(), indent=2), source
        if isinstance(source, Mapping):
            node = locate(source, Position(GIVEN))
            return json.dumps(node.plain(), indent=2), node
        name = STDIN if str(source) == "-" else str(source)
        text = read_file(Path(source), name)
        return text, parse_mapping(text, name)

    def template(self, template: str | Path) -> YamlNode:
        path = find_template(template, self._root)
        return parse_mapping(read_file(path), str(path))

    def complete(self, layers: list[YamlNode]) -> ExperimentConfig:
        """Check each layer on its own, merge them over site and defaults, check the whole."""
        parts = Checker(complete=False)
        for layer in layers:
            parts.check(layer, ExperimentConfig)
        merged = self._over_site(reduce(merge, [normalize(layer) for layer in layers]))
        whole = Checker(complete=True).check(merged, ExperimentConfig)
        self._problems += [*parts.problems, *whole.problems, *experiment_problems(merged)]
        if self._problems:
            raise ConfigErrors(in_order(self._problems))
        deprecated = parts.deprecated
        if names_trial_class(merged):  # there is no code that could call fit()
            deprecated = [note for note in deprecated if not note.advice.startswith(FIT)]
        leftovers = list(leftover_lengths(merged, layers))
        self._notes = {
            "accepted, but without effect on Slurm": parts.ignored,
            "deprecated": deprecated,
            **misreadings(merged, leftovers),
        }
        if leftovers:  # max_length stays: it gives operations() its lengths
            merged = merged.put("searcher", merged.value["searcher"].put("stop_once", STOP_ONCE))
        return ExperimentConfig.from_dict(derive(merged.plain()))

    def _over_site(self, config: YamlNode) -> YamlNode:
        site = Position(self._site.source or "<site>")
        # A complete one lacks fields that were left out on purpose.
        plain = {} if self._based else default_layer(self._root)
        defaults = locate(plain, Position("<defaults>"))
        below = reduce(merge, [config, *self._located(self._site.layers(""), site), defaults])
        pool = below.get("resources", "resource_pool")
        name = pool.value if pool and isinstance(pool.value, str) else ""
        return reduce(merge, [config, *self._located(self._site.layers(name), site), defaults])

    def _located(self, layers: Iterable[Mapping[str, Any]], at: Position) -> list[YamlNode]:
        return [normalize(locate(layer, at)) for layer in layers]

    def warnings(self) -> tuple[str, ...]:
        """At most one text of each kind, with all the keys that it is about."""
        texts = (_named(what, notes) for what, notes in self._notes.items())
        return tuple(filter(None, texts))


def _named(what: str, notes: Sequence[Noted]) -> str:
    """One text for all notes; places in the first source, the user's, by their line only.

    Notes on another experiment's configuration were shown when that experiment was submitted.
    """
    notes = [note for note in notes if note.at.source != BASE]
    if not notes:
        return ""
    source = notes[0].at.source
    keys = []
    for note in _once(notes):
        place = f"line {note.at.line}" if note.at.source == source and note.at.line else note.at
        keys.append(f"{note.path} ({place})" + (f": {note.advice}" if note.advice else ""))
    return f"{source}: {what}: {', '.join(keys)}"


def _once(notes: Iterable[Noted]) -> list[Noted]:
    return list({note.path: note for note in reversed(list(notes))}.values())[::-1]
