"""The documents that tests are made with are what they say."""

from __future__ import annotations

import msgspec

from detslurm.look.document import MAX_POINTS, Snapshot
from tests.look.documents import HOSTILE, document


def test_a_document_is_one() -> None:
    """It survives JSON, has all that is asked for, and is the same at each call."""
    snapshot = document(experiments=2, trials=12, points=200)
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot
    assert document(experiments=2) == snapshot
    assert [len(one.trials) for one in snapshot.experiments] == [12, 12]
    trials = snapshot.experiments[0].trials
    assert {trial.state for trial in trials} == {"COMPLETED", "ERROR", "RUNNING", "QUEUED"}
    assert {run.outcome for trial in trials for run in trial.runs} == {
        "completed", "preempted", "restart", "error", None
    }  # fmt: skip
    values = {str(v) for trial in trials for curve in trial.curves for v in curve.values}
    assert {"inf", "-inf", "None"} <= values
    assert all(len(c.values) <= MAX_POINTS for trial in trials for c in trial.curves)


def test_a_hostile_document_has_every_text_everywhere() -> None:
    """Names of hyperparameters, metrics and files, log lines, configuration: all are attacks."""
    hostile = document(hostile=True)
    text = msgspec.json.encode(hostile).decode()
    assert all(msgspec.json.encode(one).decode()[1:-1] in text for one in HOSTILE)
    trial = hostile.experiments[0].trials[2]
    assert not {"lr", "dropout"} & trial.hparams.keys()
    assert trial.state == "ERROR"
    names = {frozenset(one.hparams) for one in hostile.experiments[0].trials}
    assert len(names) == 1
