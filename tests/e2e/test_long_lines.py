"""What the code prints never stands between a preemption and its checkpoint."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

pytestmark = pytest.mark.cluster

# Prints lines of megabytes all the time, and once resumed only what it found, and a progress bar.
FLOOD = """\
    import time
    import detslurm as det

    info = det.get_cluster_info()
    with det.core.init() as core:
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                print("resumed with", (path / "lines").read_text())
            for percent in range(1001):
                print(f"\\rbar {percent / 10} %", end="")
                time.sleep(0.002)
            raise SystemExit(0)
        lines = 0
        while not core.preempt.should_preempt():
            print("x" * (5_000_000 if lines % 5 == 0 else 1_000_000))
            print("a" * 60, "!")
            lines += 1
            time.sleep(0.05)
            if lines == 3:
                core.train.report_training_metrics(3, {"lines": 3})
        with core.checkpoint.store_path({"steps_completed": lines}) as (path, _):
            (path / "lines").write_text(str(lines))
"""

# Beside the two of every experiment: one that backtracks for years on a line of many a's, and one
# that has to be found all the same.
POLICIES = """\
    log_policies:
      - {name: evil, pattern: "(a+)+$"}
      - {name: found, pattern: "resumed +with [0-9]+"}
    """


@pytest.mark.nightly
def test_a_flood_of_megabyte_lines_is_preempted_in_time(desk: Desk, slurm: Cluster) -> None:
    """A job of higher priority comes: the code hears of it within the grace, and saves. In the
    log are pieces of its lines, what the policies found, and few of a progress bar's 1,001 states.
    """
    number = desk.submit(desk.project(FLOOD, POLICIES), "resources.resource_pool=low")
    desk.wait_for_steps(number, 3)
    make_room(desk)
    desk.wait_for_state(number, "COMPLETED")
    trial, log = desk.trial(number), desk.log(number)
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert trial.restarts == 0
    assert trial.runs[1].resumed_from is not None
    assert "log policy 'evil' is no longer looked for" in log
    assert "log policy 'found' matched" in log
    assert max(map(len, log.splitlines())) < 200_000
    bars = [line for line in log.splitlines() if "|| bar " in line]
    # One a second; two seconds are more on a busy machine.
    assert bars[-1].endswith("bar 100.0 %") and len(bars) < 100
