"""Recorded values become reports: their groups, their steps, and what comes twice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.config.schema.recording import VALIDATION
from detslurm.exec import line_matcher
from detslurm.record.groups import Groups
from detslurm.record.steps import Gatherer, Message, message_of

Reports = list[tuple[str, int, dict[str, float]]]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("val_loss", "validation"),
        ("val/loss", "validation"),
        ("Loss/Val", "validation"),
        ("eval/accuracy", "validation"),
        ("test_acc", "validation"),
        ("score", "validation"),  # the searcher's metric
        ("latency_ms", "validation"),  # another one
        ("train/loss", "training"),
        ("interval", "training"),
        ("lr", "training"),
    ],
)
def test_names_decide_the_group(name: str, group: str) -> None:
    """A pattern matches the whole name, or a part between slashes."""
    assert Groups(["score", "latency_ms"], VALIDATION).of(name) == group


def test_patterns_of_the_user_replace_the_default_ones() -> None:
    """The searcher's metric is a validation metric all the same."""
    groups = Groups(["val_loss"], ["dev*"])
    assert [groups.of(name) for name in ("dev/f1", "val_acc", "val_loss")] == [
        "validation",
        "training",
        "validation",
    ]


def gathered(*messages: Message) -> Reports:
    """All reports of the messages, and of the flush at the end."""
    gatherer = Gatherer(Groups(["val_loss"], VALIDATION).of)
    found = [report for message in messages for report in gatherer.take(message)]
    return [(r.group, r.step, r.values) for r in [*found, *gatherer.flush()]]


def one(step: int | None, source: str = "tensorboard", **values: float) -> Message:
    return Message(source, step, values)


def test_values_of_a_step_are_one_report() -> None:
    """A report is complete when its own group goes on; the other group has steps of its own."""
    assert gathered(one(0, loss=3.0), one(0, lr=0.1), one(0, val_loss=2.0), one(1, loss=1.0)) == [
        ("training", 0, {"loss": 3.0, "lr": 0.1}),
        ("validation", 0, {"val_loss": 2.0}),
        ("training", 1, {"loss": 1.0}),
    ]


def test_a_value_that_comes_through_two_trackers_counts_once() -> None:
    """Also where the report of its step is complete already."""
    messages = [one(s, of, loss=1.0) for s in (1, 2) for of in ("tensorboard", "wandb")]
    late = one(1, "mlflow", loss=1.0)
    assert gathered(*messages, late) == [
        ("training", 1, {"loss": 1.0}),
        ("training", 2, {"loss": 1.0}),
    ]


def test_without_a_step_each_name_is_counted() -> None:
    """By source, so that the second tracker of a value has the same count."""
    messages = [one(None, of, loss=float(n)) for n in (1, 2) for of in ("wandb", "mlflow")]
    assert gathered(*messages) == [
        ("training", 1, {"loss": 1.0}),
        ("training", 2, {"loss": 2.0}),
    ]


def test_a_count_that_begins_again_counts_on() -> None:
    """As the number of the batch in each epoch does; the epoch's own count is unharmed."""
    messages = [one(batch, loss=1.0) for _ in range(2) for batch in range(3)]
    assert [step for _, step, _ in gathered(*messages)] == [0, 1, 2, 3, 4, 5]
    epochs = [one(epoch, val_loss=1.0) for epoch in range(2)]
    assert [step for _, step, _ in gathered(messages[0], *epochs, *messages[1:3])] == [
        0,
        0,
        1,
        1,
        2,
    ]


def test_ranks_that_print_the_same_count_once() -> None:
    """In a run of several slots a step that comes again in the log is another rank's."""
    lines = [Message("log0", step, {"acc": 1.0}, "validation") for step in (1, 2, 1, 2)]
    for several, steps in ((True, [1, 2]), (False, [1, 2, 3, 4])):
        gatherer = Gatherer(Groups(["acc"], VALIDATION).of, several_ranks=several)
        found = [report for line in lines for report in gatherer.take(line)]
        assert [report.step for report in [*found, *gatherer.flush()]] == steps


@pytest.mark.parametrize("step", [None, -1, 1.5e300, float("nan"), "7", True])
def test_what_is_no_step_is_counted(step: object) -> None:
    """A broken line changes nothing, and text is no number."""
    message = message_of({"s": "wandb", "k": step, "v": {"a": 1, "b": "x"}})
    assert message is not None and message.step in (None, 1) and message.values == {"a": 1}
    assert message_of({"v": []}) is None and message_of([]) is None


PATTERN = r"epoch (?P<step>\d+).* val_loss=(?P<loss>\S+)(?: f1=(?P<f1>\S+))?"


def test_the_log_s_matcher_writes_the_numbers_of_a_match() -> None:
    """Punctuation behind a number is not part of it; groups without a number are left out."""
    lines = ["epoch 3: val_loss=0.25, f1=none", "epoch 4", "epoch 5 val_loss=nan f1=0.5)"]
    argv = [sys.executable, "-I", "-S", str(Path(line_matcher.__file__))]
    given = "\n".join([json.dumps(["validation", PATTERN, 0]), *lines])
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == {"s": "log0", "k": 3.0, "v": {"loss": 0.25}, "g": "validation"}
    assert (second["k"], second["v"]["f1"], second["v"]["loss"]) == (
        5,
        0.5,
        pytest.approx(float("nan"), nan_ok=True),
    )
    assert re.compile(PATTERN).groups == 3
