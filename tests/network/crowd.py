"""One process of a crowd on several nodes: claims ids, appends to a log, says what it got.

`python3 -m tests.network.crowd STORE NAME COUNT`; the last argument is how often.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from detslurm.store import RunLog, Store
from detslurm.store.records import Created
from tests.store.test_event_log import ask, opened


def main(root: Path, name: str, count: int) -> None:
    """Claim and append, then say which ids they were and what the log holds."""
    store = Store.open(root)
    log = opened(root / "events")
    claimed = []
    for number in range(count):
        experiment = store.create_experiment(Created(name=name, trials=2), {})
        first = experiment.created().first_trial
        trial = experiment.trial(first)
        trial.open_run({"time": 1.0})
        with RunLog.open(trial.records_path(1)) as records:
            records.commit({"t": "metrics", "group": "validation", "steps": 1, "metrics": {}})
        trial.write_end(1, {"outcome": "completed", "time": 2.0})
        claimed.append((experiment.id, first))
        ask(log, name, number)
    won = store.experiment(claimed[0][0]).trial(claimed[0][1]).end(1)
    print(json.dumps({"claimed": claimed, "ended": won is not None}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
