"""Wrong arguments are refused before anything queues, with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.config import ConfigErrors, load_experiment
from detslurm.config.entrypoints import suggestion, with_place

BASE = {"entrypoint": "python3 t.py", "searcher": {"name": "single", "metric": "m"}}


def problems(arguments: Any, **config: Any) -> str:
    """The text of the errors; empty without any."""
    try:
        load_experiment(BASE | {"arguments": arguments} | config)
    except ConfigErrors as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("arguments", "space", "expected"),
    [
        ("flags", {"a b": 1}, "'a b' can't be a flag"),
        ("flags", {"a": {"-b=": 1}, "-x": 2}, "'-x' can't be a flag"),
        ("flags", {"a": ["--x"]}, "an item of a begins with a dash"),
        ({"flags": {"separator": "_"}}, {"a": {"b": 1}, "a_b": 2}, "a.b and a_b are both --a_b"),
        ({"flags": {"lists": "--flag=1,2"}}, {"a": ["x,y"]}, "an item of a holds a comma"),
        ({"flags": {"lists": "both"}}, {}, 'one of "--flag 1 2"'),
        ("hydra", {"1a": 1}, "'1a' can't be a key of Hydra"),
        ("hydra", {"a": [{"x y": 1}]}, "no form for the key 'x y'"),
        ("flag", {"a": 1}, "there is no form 'flag'"),
        ("--lr {lr} {b.x}", {"a": 1, "b": {"c": 2}}, "there is no hyperparameter lr, b.x"),
        ("--a {a}", {"a": 1, "b": {"c": 2}, "d": 3}, "leaves out b.c, d; add {b.c} {d}"),
        ("--a {a", {"a": 1}, "a brace has no partner"),
        ("--a '{a}", {"a": 1}, "No closing quotation"),
        ({"file": "../c.json"}, {}, "it lies in the working directory"),
        ({"file": "c.toml"}, {}, "its name ends with .json"),
        ({"flags": {}, "file": "c.json"}, {}, "either flags or file is expected"),
        ({"flags": {}, "option": "-c"}, {}, "there is no file"),
        ("flags", {"a": {"b": {"type": "categorical", "vals": 5}}}, "a list of values is expected"),
        (3, {}, "flags, hydra, a template with {name}"),
    ],
)
def test_refused(arguments: Any, space: dict[str, Any], expected: str) -> None:
    assert expected in problems(arguments, hyperparameters=space)


@pytest.mark.parametrize(
    ("arguments", "space"),
    [
        (
            "flags",
            {"a": {"b": [-1, -0.5]}, "lr": {"type": "log", "base": 10, "minval": -3, "maxval": 0}},
        ),
        (
            "hydra",
            {"+a": 1, "db/engine": "x", "b": {"type": "categorical", "vals": [{"c": 1}, None]}},
        ),
        ("--a {a} -b{b}", {"a": 1, "b": {"c": 2}}),
        ({"file": "conf/c.yaml", "option": "--config"}, {"a b": 1}),
        ({"flags": {"separator": "_", "booleans": "--flag"}}, {"a": True}),
    ],
)
def test_taken(arguments: Any, space: dict[str, Any]) -> None:
    assert problems(arguments, hyperparameters=space) == ""


def test_a_custom_search_may_have_other_names() -> None:
    searcher = {"name": "custom", "metric": "m"}
    assert problems("--a {a}", hyperparameters={}, searcher=searcher) == ""


def test_a_list_in_a_list_of_trackers_is_an_error() -> None:
    assert "record" in problems("flags", record=[["wandb"]])


def test_problems_have_their_line(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(
        "entrypoint: cd x && python3 t.py --password hush | tee log\n"
        "searcher: {name: single, metric: m}\nhyperparameters: {a: 1}\narguments: --b {b}\n"
    )
    with pytest.raises(ConfigErrors) as caught:
        load_experiment(path)
    first, second, third = str(caught.value).splitlines()
    assert first.startswith(f"{path}:1:13: entrypoint: ")
    assert first.endswith('cd x && python3 t.py --password ******** "$@" | tee log')
    assert second.startswith(f"{path}:4:12: arguments: there is no hyperparameter b")
    assert third.endswith("the template leaves out a; add {a}")


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("python3 t.py", None),
        ("python3 't;.py' \"a | b\" $(date | cat) ${X:-a;b} a\\;b x#y\n", None),
        ('python3 t.py "$@" | tee log', None),
        ("python3 t.py \\\n  --x 1 \\\n", None),
        ("python3 t.py 2>&1 | tee log", 'python3 t.py "$@" 2>&1 | tee log'),
        ("cd src; exec python3 t.py --x 1;", 'cd src; exec python3 t.py --x 1 "$@";'),
        ("make data && ./run", 'make data "$@" && ./run'),
        ("torchrun t.py > log", 'torchrun t.py "$@" > log'),
        ("module load x\npython3 t.py\n", 'module load x\npython3 t.py "$@"'),
        ("python3 t.py # fast", 'python3 t.py "$@" # fast'),
        ("(cd a && python3 t.py)", '(cd a && python3 t.py "$@")'),
    ],
)
def test_the_place_in_a_text(text: str, better: str | None) -> None:
    assert suggestion(text) == better
    assert with_place(better or text).count('"$@"') == 1
    assert "\\ " not in with_place(text)


def test_classes_and_unquoted_places_are_refused() -> None:
    for entrypoint in ("model_def:Trial", "python3 -m detslurm.launch.mpi --trial a:B"):
        assert "takes no arguments" in problems("flags", entrypoint=entrypoint)
    for place in ("$@", "$*", "${@}", '"$@" $@'):
        assert "breaks values at their spaces" in problems("flags", entrypoint=f"./run {place}")


@pytest.mark.parametrize(
    ("entrypoint", "places"),
    [
        ("python3 t.py --lr $lr --n=${lr} {m.name}", "$lr, ${lr}, {m.name}"),
        ("python3 t.py lr=$lr", "$lr"),
        (["python3", "t.py", "--lr={{ lr }}"], "{{ lr }}"),
        ("lr=3; python3 t.py --lr $lr", ""),
        ("for lr in 1 2; do python3 t.py $lr; done", ""),
        ("python3 t.py $lrx $HOME {x} $known", ""),
    ],
)
def test_a_text_that_looks_like_a_place_for_a_value_is_named(entrypoint: Any, places: str) -> None:
    variables = {"environment_variables": ["known=1"]}
    loaded = load_experiment(
        BASE
        | {"entrypoint": entrypoint, "environment": variables}
        | {"hyperparameters": {"lr": 1, "m": {"name": "x"}, "known": 2}}
    )
    expected = "nothing inserts hyperparameters here (`arguments` does): entrypoint"
    found = [warning for warning in loaded.warnings if expected in warning]
    assert [warning.rpartition(": ")[2] for warning in found] == ([places] if places else [])
