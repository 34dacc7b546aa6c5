"""The documents that tests are made with are what they say."""

from __future__ import annotations

import msgspec

from tests.look.documents import HOSTILE, document


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
