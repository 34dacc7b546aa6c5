"""The lines about metrics in the log of a job."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from detslurm import core

from .jobs import Job


def test_a_job_logs_a_line_a_minute_and_the_last(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of each group: the first report, then one a minute, and the last when the run ends."""
    seconds = count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("detslurm.core._console_log.time", clock)
    caplog.set_level("INFO", logger="detslurm")
    with core.init() as context:
        for step in range(1, 151):
            context.train.report_training_metrics(step, {"loss": 1 / step})
        context.train.report_validation_metrics(150, {"loss": 0.5})
    lines = [r.getMessage() for r in caplog.records if "step" in r.getMessage()]
    assert lines[0] == "step 1: loss 1 (each group of metrics gets at most a line a minute)"
    assert [line.partition(":")[0] for line in lines] == [
        *("step 1", "step 61", "step 121"),
        *("validation after step 150", "step 150"),
    ]
