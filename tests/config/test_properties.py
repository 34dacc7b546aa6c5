"""Whatever comes in, a configuration or ConfigErrors comes out; merging keeps its laws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detslurm.config import ConfigErrors, ExperimentConfig, load_experiment
from detslurm.config.errors import Position
from detslurm.config.merging import merge
from detslurm.config.normalize import normalize
from detslurm.config.reading import parse
from detslurm.config.schema.site import SiteProfile
from detslurm.config.writing import as_yaml
from detslurm.config.yaml_node import YamlNode, locate
from tests.config.full import FULL
from tests.config.strategies import BENT_DATA, CONFIGS, PARTIALS

SOUND = {"entrypoint": "a", "searcher": {"name": "single", "metric": "m"}}
UNIONS = {"searcher", "checkpoint_storage", "hyperparameters", "data"}
SITE = SiteProfile(root="/nowhere")
TEXTS = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
    | st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%?,<= \n\t\r\x85\u20280.1e~@`\\x_"), max_size=40)
    | st.from_regex(r"[-+.0-9_exoEinfa]{1,8}", fullmatch=True)
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXTS, children, max_size=3),
    max_leaves=8,
)


def outcome(source: Any, **options: Any) -> ExperimentConfig | str:
    """The configuration, or the text of the errors, which fits one screen."""
    try:
        return load_experiment(source, site=SITE, **options).config
    except ConfigErrors as errors:
        text = str(errors)
        assert errors.problems
        assert len(text.splitlines()) <= 21
        assert all(line.isprintable() for line in text.splitlines())
        return text


def read(text: str) -> object:
    """The plain data of a text, or the text of its errors."""
    try:
        return parse(text, "f").plain()
    except ConfigErrors as errors:
        return str(errors)


@given(st.text(max_size=60))
@example("a: " + "[" * 5000)
@example("1" * 10000)
@example("\ud800")
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the reader do anything but return data or raise ConfigErrors."""
    read(text)


@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%?,<= \n\t0.1e~@`\\x"), max_size=40))
@settings(max_examples=200)
def test_any_text_of_yaml_signs_is_read_or_refused(text: str) -> None:
    """The same for texts that consist of what YAML gives a meaning to."""
    read(text)


@given(st.binary(max_size=60))
def test_any_file_is_loaded_or_refused(tmp_path_factory: Any, data: bytes) -> None:
    """No bytes in a file give a traceback."""
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    outcome(path)


@given(BENT_DATA)
@settings(max_examples=250)
def test_any_data_is_a_configuration_or_refused(data: Any) -> None:
    """Known keys in wrong places with values of all kinds are named, never crash."""
    if isinstance(data, dict):
        outcome(data)
        outcome(SOUND | data)


@given(BENT_DATA, BENT_DATA)
def test_any_template_merges_or_is_refused(tmp_path_factory: Any, high: Any, low: Any) -> None:
    """The same where a bent template lies below a bent configuration."""
    path = tmp_path_factory.getbasetemp() / "template.yaml"
    path.write_text(json.dumps(low))
    outcome(SOUND | high if isinstance(high, dict) else SOUND, template=path)


@given(st.text(max_size=20), BENT_DATA)
def test_any_override_is_applied_or_refused(key: str, value: Any) -> None:
    """No `--config` gives a traceback."""
    outcome(SOUND, overrides=[key, f"{key}={value!r}", f"data.{key}={value}"])


@given(CONFIGS)
@settings(max_examples=200)
def test_sound_configurations_load_and_survive_as_plain_data(plain: dict[str, Any]) -> None:
    """A sound configuration loads; plain data through JSON gives it back, equal."""
    config = outcome(plain)
    assert isinstance(config, ExperimentConfig), config
    again = ExperimentConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.to_dict() == config.to_dict()


@given(CONFIGS)
def test_a_resolved_configuration_resolves_to_itself(plain: dict[str, Any]) -> None:
    """Loading what `to_dict` gave changes nothing."""
    config = outcome(plain)
    assert isinstance(config, ExperimentConfig)
    assert outcome(config.to_dict()) == config


@given(CONFIGS)
def test_yaml_and_data_give_the_same(plain: dict[str, Any]) -> None:
    """A mapping and its YAML text are the same configuration, up to what chance and time fill."""
    plain = plain | {"name": "x", "reproducibility": {"experiment_seed": 1}}
    text = yaml.safe_dump(plain, allow_unicode=True)
    assert outcome(plain) == outcome(parse(text, "f").plain())


@given(st.dictionaries(TEXTS, PLAIN, max_size=4))
@settings(max_examples=500)
@example({"k" * 2000: "x " * 2000, "<<": ["a\n\n b\n", " ", "- x", "a #b", "?", "\ufeff"]})
def test_what_is_written_is_read_as_the_same(plain: dict[str, Any]) -> None:
    """Texts stay texts, whatever they look like."""
    assert repr(parse(as_yaml(plain), "f").plain()) == repr(plain)


def node(plain: Any) -> YamlNode:
    return normalize(locate(plain, Position("x")))


@given(PARTIALS, PARTIALS, PARTIALS)
@settings(max_examples=200)
def test_merging_is_associative_where_kinds_agree(a: Any, b: Any, c: Any) -> None:
    """Lists and plain sections don't depend on which two of three layers are merged first."""
    a, b, c = ({k: v for k, v in layer.items() if k not in UNIONS} for layer in (a, b, c))
    left = merge(merge(node(a), node(b)), node(c)).plain()
    right = merge(node(a), merge(node(b), node(c))).plain()
    assert left == right


@given(PARTIALS)
def test_nothing_is_neutral_in_merging(a: Any) -> None:
    """A layer over nothing, and nothing over a layer, is the layer."""
    assert merge(node(a), node({})).plain() == node(a).plain()
    assert merge(node({}), node(a)).plain() == node(a).plain()


@given(PARTIALS, PARTIALS)
def test_the_higher_layer_keeps_its_scalars(a: Any, b: Any) -> None:
    """What the user wrote as a plain value is what results."""
    high, merged = node(a).plain(), merge(node(a), node(b)).plain()
    assert set(merged) == set(high) | set(node(b).plain())
    if "max_restarts" in high:
        assert merged["max_restarts"] == high["max_restarts"]


def test_a_text_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    """A file of several MiB is refused before it is parsed."""
    path = tmp_path / "big.yaml"
    path.write_text("a: " + "x" * (5 << 20))
    assert "bigger than" in str(outcome(path))


def routes(data: Any, route: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every value in plain data."""
    found = [route] if route else []
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return found + [below for key, value in items for below in routes(value, (*route, key))]


FULL_DATA = parse(FULL, "f").plain()
ROUTES = routes(FULL_DATA)


@given(st.lists(st.tuples(st.sampled_from(ROUTES), BENT_DATA), min_size=1, max_size=4))
@settings(max_examples=300)
def test_a_full_configuration_with_a_few_bent_values_never_crashes(changes: Any) -> None:
    """Each value of a full configuration may become anything."""
    data = json.loads(json.dumps(FULL_DATA))
    for route, value in changes:
        target: Any = data
        for key in route[:-1]:
            target = target[key] if isinstance(target, dict | list) and has(target, key) else {}
        if isinstance(target, dict) or (isinstance(target, list) and has(target, route[-1])):
            target[route[-1]] = value
    outcome(data)


def has(container: Any, key: Any) -> bool:
    return (
        key in container
        if isinstance(container, dict)
        else isinstance(key, int) and key < len(container)
    )
