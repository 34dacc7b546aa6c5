"""Pause and activate in quick succession, on both clusters."""

from __future__ import annotations

from tests.slurm.bench import Bench


def test_a_release_counts_before_the_held_requeue_has_ended_the_job(bench: Bench) -> None:
    """Whoever releases last wins, also while the job is still on its way out."""
    job = bench.submit()
    bench.wait_word(job, "start")
    bench.cluster.requeue(job, hold=True)
    bench.cluster.release([job])
    bench.wait_word(job, "start", times=2)
    bench.go()
    bench.wait_word(job, "done")
