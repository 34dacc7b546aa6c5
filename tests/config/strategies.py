"""Hypothesis strategies for configurations: sound ones, bent ones, and no configurations at all."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import inspect as schema

from detslurm.config.schema.experiment import ExperimentConfig

NAMES = st.text("abcxyz_", min_size=1, max_size=6)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 200)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["single", "grid", "random", "shared_fs", "int", "log", "best", "a=b", "/a"])
)
DATA = st.recursive(
    SCALARS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(NAMES, children, max_size=3),
    max_leaves=6,
)


def _keys(kind: schema.Type, found: set[str]) -> set[str]:
    if isinstance(kind, schema.Metadata):
        return _keys(kind.type, found)
    for member in getattr(kind, "types", ()):
        _keys(member, found)
    if isinstance(kind, schema.VarTupleType):
        _keys(kind.item_type, found)
    if isinstance(kind, schema.StructType):
        found |= {field.encode_name for field in kind.fields} | {str(kind.tag_field or "name")}
        for field in kind.fields:
            _keys(field.type, found)
    return found


KEYS = sorted(_keys(schema.type_info(ExperimentConfig), set()))
BENT_DATA = st.recursive(
    SCALARS,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | NAMES, children, max_size=5)
    ),
    max_leaves=25,
)
"""Data of the right keys in the wrong places, with values of all kinds."""

FINITE = st.floats(-1e6, 1e6)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | FINITE
    | st.text("ab é", max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(NAMES, children, max_size=3),
    max_leaves=6,
)


@st.composite
def _range(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["int", "double", "log", "categorical", "const"]))
    if kind == "const":
        return {"type": kind, "val": draw(JSON)}
    if kind == "categorical":
        return {"type": kind, "vals": draw(st.lists(JSON, min_size=1, max_size=3))}
    numbers = st.integers(-20, 20) if kind == "int" else st.floats(-20, 20)
    low, high = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    spec = {"type": kind, "minval": low, "maxval": high, "count": draw(st.integers(1, 5))}
    return spec | (
        {"base": draw(st.floats(0.5, 10).filter(lambda base: base != 1))} if kind == "log" else {}
    )


def _with_choices(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Groups, and choices between whatever hyperparameters may be."""
    vals = st.lists(children, min_size=1, max_size=2)
    choices = st.fixed_dictionaries({"type": st.just("choice"), "vals": vals})
    return st.dictionaries(NAMES, children, max_size=2) | choices


SCALAR_CONSTANTS = st.integers(-9, 9) | FINITE | st.booleans() | st.text("ab", max_size=3)
SPACES = st.dictionaries(
    NAMES,
    st.recursive(
        SCALAR_CONSTANTS | _range(),
        _with_choices,
        max_leaves=4,
    ),
    max_size=4,
)
LENGTHS = st.builds(
    lambda unit, n: {unit: n}, st.sampled_from(["batches", "records", "epochs"]), st.integers(1, 99)
)
SEARCHERS = st.one_of(
    st.fixed_dictionaries(
        {"name": st.just("single"), "metric": NAMES}, optional={"max_length": LENGTHS}
    ),
    st.fixed_dictionaries(
        {"name": st.just("random"), "metric": NAMES, "max_trials": st.integers(1, 99)},
        optional={"max_concurrent_trials": st.integers(0, 9), "smaller_is_better": st.booleans()},
    ),
    st.fixed_dictionaries(
        {
            "name": st.just("adaptive_asha"),
            "metric": NAMES,
            "max_trials": st.integers(1, 99),
            "max_length": LENGTHS,
        },
        optional={"mode": st.sampled_from(["aggressive", "standard", "conservative"])},
    ),
    st.fixed_dictionaries(
        {
            "name": st.just("pbt"),
            "metric": NAMES,
            "population_size": st.integers(2, 99),
            "num_rounds": st.integers(1, 9),
            "length_per_round": LENGTHS,
        },
        optional={"explore_function": st.just({"perturb_factor": 0.5})},
    ),
    st.fixed_dictionaries(
        {"name": st.just("optuna"), "metric": NAMES, "max_trials": st.integers(1, 99)},
        optional={
            "sampler": st.sampled_from(["tpe", "random"]),
            "sampler_args": st.dictionaries(NAMES, JSON, max_size=2),
            "pruner": st.sampled_from(["median", "hyperband"]),
            "pruner_args": st.dictionaries(NAMES, JSON, max_size=2),
        },
    ),
)
VARIABLES = st.lists(st.builds("{}={}".format, NAMES, st.text("a =\"'\n$", max_size=5)), max_size=3)
STORAGES = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("shared_fs"), "host_path": st.just("/data")},
        optional={"storage_path": st.just("a/b"), "save_trial_best": st.integers(0, 5)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("s3"), "bucket": NAMES},
        optional={"secret_key": NAMES, "save_experiment_best": st.integers(0, 5)},
    ),
    st.fixed_dictionaries({}, optional={"save_trial_latest": st.integers(0, 5)}),
)
PARTS = {
    "hyperparameters": SPACES,
    "searcher": SEARCHERS,
    "labels": st.lists(NAMES, max_size=4),
    "data": st.dictionaries(NAMES, JSON, max_size=3),
    "checkpoint_storage": STORAGES,
    "max_restarts": st.integers(0, 9) | st.none(),
    "resources": st.fixed_dictionaries(
        {}, optional={"slots_per_trial": st.integers(0, 9), "priority": st.integers(1, 99)}
    ),
    "environment": st.fixed_dictionaries(
        {},
        optional={
            "environment_variables": VARIABLES | st.fixed_dictionaries({"cuda": VARIABLES}),
        },
    ),
    "bind_mounts": st.lists(
        st.fixed_dictionaries(
            {"host_path": st.sampled_from(["/a", "/b"]), "container_path": NAMES}
        ),
        max_size=3,
        unique_by=lambda mount: mount["container_path"],
    ),
    "log_policies": st.lists(
        st.fixed_dictionaries(
            {"name": NAMES},
            optional={"pattern": NAMES, "action": st.sampled_from(["exclude_node"])},
        ),
        max_size=3,
        unique_by=lambda policy: policy["name"],
    ),
    "slurm": st.fixed_dictionaries(
        {},
        optional={
            "time": st.integers(3, 99),
            "setup": st.lists(NAMES, max_size=2),
            "modules": st.lists(NAMES, max_size=2, unique=True),
        },
    ),
}
PARTIALS = st.fixed_dictionaries({}, optional=PARTS)
"""Sound parts of a configuration, as templates are."""

CONFIGS = st.fixed_dictionaries(
    {"entrypoint": st.sampled_from(["python3 t.py", ["a", "b c"]]), "searcher": SEARCHERS},
    optional={key: part for key, part in PARTS.items() if key != "searcher"},
)
"""Sound, complete configurations."""
