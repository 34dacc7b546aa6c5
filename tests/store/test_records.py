"""Facts have types: what is written is checked, and what is read never breaks its reader."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm.store import ExperimentFacts, NotFound, Store, fold_experiment, fold_facts
from detslurm.store.facts import put_record
from detslurm.store.frame import decode_json, encode_json
from detslurm.store.records import Corrupt, Created, Fact, Intent, Lost, Record, plain_of, typed
from tests.store import scenes

REQUIRED: dict[str, Any] = {
    "deferred": {"first_index": 3, "count": 2},
    "sending": {"first_index": 3, "count": 2},
    "intent": {"intent": "pause"},
    "idle": {"trial": 1, "run": 2},
    "node_failed": {"node": "n1"},
    "set": {"field": "name"},
    "trials": {"first_trial": 1, "trials": 2},
    "checkpoint_kept": {"uuids": ("a",), "kept_by": "model m version 1"},
    "checkpoint_released": {"kept": 3},
    "checkpoint_files_removed": {"uuid": "a", "resources": {"weights": 5}},
    "checkpoint_metadata": {"uuid": "a"},
    "checkpoint_used": {"uuid": "a", "trial": 3},
    "checkpoint_verified": {"problems": {"a": None}},
}


@pytest.mark.parametrize("kind", get_args(Fact))
def test_each_kind_reads_back_as_it_was_written(kind: type[Record]) -> None:
    """Through JSON, as the store does it; what has its default is not written."""
    tag = str(kind.__struct_config__.tag)
    plain = {"type": tag, "n": 7, **REQUIRED.get(tag, {})}
    found = typed(plain)
    assert type(found) is kind
    assert plain_of(found) == plain
    assert typed(decode_json(encode_json(plain_of(found)))) == found


SOME = st.none() | st.booleans() | st.integers(-3, 50) | st.text(max_size=3)
VALUES = SOME | st.lists(SOME, max_size=2) | st.dictionaries(st.text("1x"), SOME, max_size=2)
FIELDS = sorted({name for kind in get_args(Fact) for name in kind.__struct_fields__} - {"n"})
TYPES = sorted(str(kind.__struct_config__.tag) for kind in get_args(Fact))
FACTS = st.lists(
    st.tuples(
        st.sampled_from([*TYPES, "of a newer version"]),
        st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
    ),
    max_size=8,
)


@given(FACTS, st.integers(0, 8))
def test_any_facts_fold_and_in_pieces_to_the_same(
    written: list[tuple[str, dict[str, Any]]], cut: int
) -> None:
    """Whatever lies there; a runner that reads on comes to what a reader of all has."""
    facts = [{"n": n, "type": kind, **more} for n, (kind, more) in enumerate(written, 1)]
    whole = ExperimentFacts().fold(facts)
    parts = ExperimentFacts().fold(facts[:cut])
    assert parts.fold(facts[cut:]) == whole
    assert whole.count == len(facts)


def test_wrong_fields_are_refused_where_they_are_written(store: Store) -> None:
    """And leave no fact behind."""
    made = scenes.experiment(store)
    with pytest.raises(ValueError, match=r"trials\[0\]"):
        made.append({"type": "lost", "trials": ["one"]})
    assert fold_facts(made).count == 1


def test_wrong_fields_are_a_problem_where_they_are_read(store: Store) -> None:
    """The fact counts for nothing, and the view says so."""
    made = scenes.experiment(store)
    put_record(made.log.name(2), {"type": "lost", "trials": ["one"]})
    made.append(Intent(intent="archive"))
    view = fold_experiment(made)
    assert (view.state, view.archived, view.fact_count) == ("ACTIVE", True, 3)
    (problem,) = view.problems
    assert problem.path == "facts/000002.json" and "trials[0]" in problem.reason


def test_an_experiment_is_created_whole(store: Store) -> None:
    """With its ids, code and configuration, and its search where it has one; visible at the end."""
    config = {"searcher": {"name": "custom"}}
    made = store.create_experiment(
        Created(name="x", trials=3, search=True, length=(1 << 64) - 1),  # a configuration may
        config,
        "text",
        freeze=lambda stage: (stage / "train.py").write_text("pass"),
    )
    again = store.experiment(made.id)
    assert (again.config(), again.created().trials, again.search.is_dir()) == (config, 3, True)
    assert (again.code / "train.py").read_text() == "pass"
    assert again.trial(again.created().first_trial + 2).path.parent.is_dir()
    assert type(made).at(made.path).created() == again.created()

    def fails(stage: object) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        store.create_experiment(Created(trials=1), config, freeze=fails)
    with pytest.raises(NotFound):
        store.experiment(made.id + 1)


def test_a_fact_of_a_newer_version_is_skipped() -> None:
    """An unknown kind, and unknown fields of a known one."""
    assert typed({"type": "of a newer version", "n": 2}) is None
    assert typed({"type": "lost", "n": 2, "trials": [1], "new": {}}) == Lost(n=2, trials=(1,))
    assert isinstance(typed({"type": "intent", "n": 2}), Corrupt)
