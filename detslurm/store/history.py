"""A trial's inheritance from the trial that it continues: its start, and the curve up to there.

The curve is copied, so that it is whole in every reader and stays when the other trial is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from detslurm.store.curve import MetricRow
from detslurm.store.errors import CorruptRecord
from detslurm.store.frame import unframe
from detslurm.store.run_log import RunLog, lines_of
from detslurm.store.run_records import Continued
from detslurm.store.trial import HISTORY, TrialDir


def write_history(
    trial: TrialDir, begins: Continued, rows: Iterable[MetricRow], until: int | None
) -> None:
    """Write it into the directory of a new trial, before others know it: the rows of all steps, or
    `until` one of them."""
    trial.create()
    with RunLog.open(trial.records_path(HISTORY)) as log:
        log.append({"t": "continued", **begins.as_claimed()})
        log.flush()  # it has a line of its own, which `read_continued` reads alone
        for row in rows:
            if until is None or row.steps <= until:
                log.append(_record(row))


def _record(row: MetricRow) -> dict[str, Any]:
    record = {"t": "metrics", "group": row.group, "steps": row.steps, "metrics": row.metrics}
    if row.time is not None:
        record["time"] = row.time
    if row.batch is not None:
        record["batch"] = row.batch
    if row.rank:
        record["rank"] = row.rank
    return record


def read_continued(trial: TrialDir) -> Continued | None:
    """Where the trial begins if it continues another trial. Raises `CorruptRecord`."""
    name = str(trial.records_path(HISTORY))
    line = next((line for _, line in lines_of(name, None, 0, [])), None)
    if line is None:
        return None
    try:
        return msgspec.convert({**unframe(line)}, Continued, str_keys=True)
    except msgspec.ValidationError as error:
        raise CorruptRecord(f"{name}: {error}") from error
