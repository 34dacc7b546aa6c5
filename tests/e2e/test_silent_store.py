"""A store that can't be reached for a while: where jobs begin, and where they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from detslurm.slurm.allocation import SLURM_OUTPUT_FD
from tests.cluster import Cluster, nodes
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_search import project

pytestmark = pytest.mark.cluster

# Reports its length at once.
TRAINS = """\
    import detslurm as det

    with det.core.init() as core:
        for op in core.searcher.operations():
            core.train.report_validation_metrics(op.length, {"loss": 1.0})
            op.report_completed(1.0)
    """

SEARCH = """\
    searcher:
      name: async_halving
      metric: loss
      max_length: 4
      max_trials: 2
      num_rungs: 1
      max_concurrent_trials: 2
    """


@contextmanager
def unreadable(desk: Desk) -> Iterator[None]:
    """The file server lets no user into the store."""
    desk.store.path.chmod(0)
    try:
        yield
    finally:
        desk.store.path.chmod(0o700)


def refused(cluster: Cluster) -> list[int]:
    """The processes of jobs that could not open their output in the store, and wait for it."""
    return [pid for pid in nodes.job_processes(cluster.layout) if "denied" in slurm_output(pid)]


def slurm_output(pid: int) -> str:
    """What is in the output that Slurm opened for the job of this process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/fd/{SLURM_OUTPUT_FD}").read_text()
    return ""


def test_jobs_that_begin_while_the_store_is_away_wait_for_it(desk: Desk, site: Cluster) -> None:
    """All workers of a search and the one that waits for their end begin in that moment. They
    wait, train, and leave nothing on their nodes."""
    options = 'slurm.sbatch_args=["--hold"]'
    number = desk.submit(project(desk, TRAINS, SEARCH, name="search"), options)
    jobs = [str(job.job_id) for job in desk.view(number).jobs]
    with unreadable(desk):
        desk.user.run("scontrol", "release", *jobs)
        wait_for(lambda: len(refused(site)) >= 2, PATIENCE, "two jobs that wait for the store")
        held = site.command("squeue", "-hr", "-j", ",".join(jobs), "-t", "R", "-o", "%i").split()
        assert len(held) >= 2
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert [trial.state for trial in desk.view(number).trials] == ["COMPLETED"] * 2
    names = [site.job(job).get("StdOut", "") for job in jobs]
    assert all("/detslurm-" in name and not Path(name).exists() for name in names), names
