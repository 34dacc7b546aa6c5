"""What a run uses of what it has, on a real cluster, compared with what it really did."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

# A fifth of one CPU for 20 seconds, or what a busy machine gives it, and 300 MB; then the process
# says what it has used.
LITTLE_BUSY = """\
import json, os, resource, time

began = time.monotonic()
held = b"x" * 300_000_000
while time.monotonic() < began + 20:
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    time.sleep(0.08)
own = resource.getrusage(resource.RUSAGE_SELF)
did = {
    "cpu": own.ru_utime + own.ru_stime,
    "memory": own.ru_maxrss * 1024,
    "seconds": time.monotonic() - began,
}
print("did", json.dumps(did), flush=True)
"""


def test_the_figures_are_what_the_run_did(desk: Desk) -> None:
    """CPU time and memory as the process counts its own; what the job has is Slurm's."""
    config, memory = "resources: {slots_per_trial: 2}\n", "slurm.sbatch_args=[--mem=2000]"
    project = desk.project(LITTLE_BUSY, config)
    number = desk.submit(project, memory)
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED"
    line = next(line for line in desk.log(number).splitlines() if "|| did " in line)
    did = json.loads(line.partition("|| did ")[2])

    (figures,) = unwrap(desk.run("experiment", "efficiency", str(number), "--json").stdout)
    spent = figures["cpus_used"] * figures["elapsed"]
    assert spent == pytest.approx(did["cpu"], rel=0.25, abs=0.4)
    assert figures["memory_peak"] == pytest.approx(did["memory"], rel=0.15)
    assert (figures["cpus_requested"], figures["memory_requested"]) == (2, 2000 << 20)
    assert figures["elapsed"] >= did["seconds"] and figures["queue_time"] >= 0
    assert figures["slot_hours"] == pytest.approx(2 * figures["elapsed"] / 3600)
    assert figures["gpu_percent"] is None and figures["gpu_memory_peak"] is None
    assert figures["slot_hours_wasted"] < figures["slot_hours"] / 2
    assert (figures["nodes"], figures["steps_lost"]) == (1, 0)

    table = desk.run("experiment", "efficiency", str(number)).stdout
    assert f" {figures['cpus_used']:.1f} " in table and "COMPLETED" in table
    trial = desk.trial_dir(number)
    shown = desk.run("trial", "describe", str(trial.id)).stdout
    assert "Memory Peak" in shown and "of 2.0 GiB" in shown
    assert "Elapsed" in shown and "Nodes : 1" in shown
    assert not trial.usage_path(1).exists()

    # This Slurm measures no energy, and prints 0: that is unknown.
    script = "import sys; from detslurm.slurm.detect import detect_cluster; print("
    script += "detect_cluster('auto').energy([sys.argv[1]], since=None))"
    asked = desk.user.run(sys.executable, "-c", script, desk.trial(number).runs[0].job.ref)
    assert asked.stdout == "{}\n"

    def note() -> bool:
        again = desk.run("submit", str(project), "--dry-run", "--config", memory)
        return f"trials of experiment {number} used 0." in again.stderr

    wait_for(note, PATIENCE, "a note that a fifth of one of two CPUs was used")
