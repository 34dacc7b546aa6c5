"""From `experiment.yaml` to a typed configuration: read, check, merge, complete, check again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from detslurm.config.checking import Checker, Noted
from detslurm.config.defaults import default_layer, derive, without_derived
from detslurm.config.errors import ConfigErrors, ConfigProblem, Position
from detslurm.config.experiment_rules import experiment_problems
from detslurm.config.foreign_ranges import alike_trials
from detslurm.config.layers import as_mapping, order
from detslurm.config.merging import merge
from detslurm.config.misreadings import (
    boolean_words,
    leftover_lengths,
    unexpanded_variables,
    uninserted_values,
    values_as_exponents,
)
from detslurm.config.normalize import canonical, normalize
from detslurm.config.overrides import apply_override
from detslurm.config.reading import parse, read_file
from detslurm.config.schema.experiment import FIT, ExperimentConfig
from detslurm.config.schema.site import SiteProfile
from detslurm.config.site import store_root
from detslurm.config.templates import find_template
from detslurm.config.trial_class import names_trial_class
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


class _Load:
    """One loading: collects problems and notes over its steps."""

    def __init__(self, site: SiteProfile, root: Path, *, based: bool = False) -> None:
        self._site, self._root, self._based = site, root, based
        self._problems: list[ConfigProblem] = []
        self._ignored: list[Noted] = []
        self._deprecated: list[Noted] = []
        self._words: list[Noted] = []
        self._unexpanded: list[Noted] = []
        self._exponents: list[Noted] = []
        self._leftovers: list[Noted] = []
        self._alike: list[Noted] = []
        self._uninserted: list[Noted] = []

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
        return text, as_mapping(parse(text, name))

    def template(self, template: str | Path) -> YamlNode:
        path = find_template(template, self._root)
        return as_mapping(parse(read_file(path), str(path)))

    def complete(self, layers: list[YamlNode]) -> ExperimentConfig:
        """Check each layer on its own, merge them over site and defaults, check the whole."""
        for layer in layers:
            self._note(Checker(complete=False).check(layer, ExperimentConfig))
        merged = reduce(merge, [normalize(layer) for layer in layers])
        merged = self._over_site(merged)
        self._problems += Checker(complete=True).check(merged, ExperimentConfig).problems
        self._problems += experiment_problems(merged)
        if self._problems:
            raise ConfigErrors(order(self._problems))
        self._words = list(boolean_words(merged))
        self._unexpanded = list(unexpanded_variables(merged))
        self._exponents = list(values_as_exponents(merged))
        self._alike = list(alike_trials(merged))
        self._uninserted = list(uninserted_values(merged))
        if names_trial_class(merged):  # there is no code that could call fit()
            self._deprecated = [n for n in self._deprecated if not n.advice.startswith(FIT)]
        self._leftovers = list(leftover_lengths(merged, layers))
        if self._leftovers:  # max_length stays: it gives operations() its lengths
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

    def _note(self, checker: Checker) -> None:
        self._problems += checker.problems
        self._ignored += checker.ignored
        self._deprecated += checker.deprecated

    def warnings(self) -> tuple[str, ...]:
        """At most one text of each kind, with all the keys that it is about."""
        texts = (
            _named("accepted, but without effect on Slurm", self._ignored),
            _named("deprecated", self._deprecated),
            _named("text, not a boolean (write true or false, or quotes)", self._words),
            _named(
                "nothing expands the $ in these (export them in startup-hook.sh)", self._unexpanded
            ),
            _named("minval and maxval of type log are exponents of base", self._exponents),
            _named("max_time with this counts, not the deprecated max_length", self._leftovers),
            _named("nothing inserts hyperparameters here (`arguments` does)", self._uninserted),
            _named("all trials of the search have the same hyperparameters", self._alike),
        )
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
