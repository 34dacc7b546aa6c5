"""The parts of a trial's time on a real cluster, under kills and preemptions."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

import pytest

from detslurm.exec import energy
from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_failures import pid_of_code
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

# Saves after each ten steps, which takes a fifth of a second. The first run waits after its last
# save to be killed, the second to be preempted.
WAITS_TWICE = """\
    import os, time
    import detslurm as det

    info = det.get_cluster_info()
    wait_at = {1: 15, 2: 23}.get(info.trial._trial_run_id)

    def work():
        draft = METER + ".draft"
        open(draft, "w").write(str(int(time.monotonic() * 1e8)))  # 100 watts
        os.replace(draft, METER)
        until = time.process_time() + 0.005  # it is not idle
        while time.process_time() < until:
            pass
        time.sleep(0.045)

    with det.core.init() as core:
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
        print("pid", os.getpid(), flush=True)
        while step < 30:
            step += 1
            work()
            core.train.report_training_metrics(step, {"loss": 1.0})
            while step == wait_at and not core.preempt.should_preempt():
                work()
            leaving = core.preempt.should_preempt()
            if step % 10 == 0 or leaving:
                with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "step").write_text(str(step))
                    time.sleep(0.2)
            if leaving:
                break
    """


@pytest.fixture
def meter(desk: Desk) -> Iterator[Path]:
    """The counter of a package that agents on this user's nodes take for the job's own.

    They have their modules from the cache of the store, where two constants are exchanged for
    others of the same length: the kernel's directory, and the number of CPUs for -1.
    """
    folder = Path(f"/tmp/meter-{os.urandom(4).hex()}")
    desk.cache_modules(
        {str(energy.POWERCAP): str(folder), "SC_NPROCESSORS_ONLN": "SC_XBS5_ILP32_OFF32"}
    )
    zone = folder / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text(f"{1 << 60}\n")
    (zone / "energy_uj").write_text(f"{time.monotonic() * 1e8:.0f}\n")
    desk.user.own(folder)
    yield zone / "energy_uj"
    shutil.rmtree(folder)


def test_a_kill_and_a_preemption(desk: Desk, site: Cluster, meter: Path) -> None:
    """The parts of the time sum to all of it, each loss has its cause, and each run its energy."""
    begun = time.monotonic()
    number = desk.submit(desk.project(f"METER = {str(meter)!r}\n{dedent(WAITS_TWICE)}"))
    desk.wait_for_steps(number, 15)
    os.kill(pid_of_code(desk, number), signal.SIGKILL)
    wait_for(lambda: desk.outcomes(number) == ["restart", None], PATIENCE, "the second run")
    desk.wait_for_steps(number, 23)
    desk.user.run("scancel", "--signal=TERM", "--batch", desk.job(number))
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["restart", "preempted", "completed"]

    shown = desk.run("experiment", "efficiency", str(number), "--json")
    assert "Effective Training: " in shown.stderr and "Best Save Interval: " in shown.stderr
    (figures,) = unwrap(shown.stdout)
    table: dict[str, Any] = figures["training_time"]
    runs, parts = desk.trial(number).runs, table["parts"]
    submitted = min(desk.store.experiment(number).facts(), key=lambda fact: fact["n"])["time"]
    whole = (runs[-1].ended or 0.0) - submitted
    known = {name: seconds for name, seconds in parts.items() if seconds is not None}
    assert sum(known.values()) == pytest.approx(whole, abs=1.0)
    # No data, so nothing to say: the code reports no validation, and no sample is taken so soon.
    assert known.keys() | {"validation", "idle", "start_slurm"} == parts.keys()
    assert min(known["start_code"], known["start_detslurm"], known["repeated"]) > 0
    assert known["save"] == pytest.approx(4 * 0.2, abs=0.5)  # at 10, 20, 23 and 30
    assert known["training"] >= 25 * 0.05 and known["paused"] == 0
    assert table["checkpoint"]["failures"] == 1
    assert 0 < table["ettr_submission"] <= table["ettr"] <= table["ettr_best"] <= 1

    joules = [run.usage.energy["rapl"].joules for run in runs if run.usage is not None]
    assert len(joules) == 3 and min(joules) > 0 and sum(joules) <= 100 * (time.monotonic() - begun)
    used = figures["energy"]
    assert used["kwh"] == used["sources"]["rapl"] == pytest.approx(sum(joules) / 3.6e6)
    assert not used["at_least"] and used["co2_kg"] is None

    rows = desk.run("experiment", "efficiency", str(number), "--time", "--csv").stdout
    assert rows.startswith("trial,since_start,ettr,training,")
    described = desk.run("trial", "describe", str(desk.trial(number).id)).stdout
    assert "Effective Training" in described and "Lost Time" in described
    assert "Energy" in described and ": CPUs " in described
    (row,) = unwrap(desk.run("usage", "--by", "experiment", "--json").stdout)
    spent = sum((run.ended or 0.0) - (run.started or 0.0) for run in runs)
    assert row["slot_hours"] == pytest.approx(spent / 3600, rel=0.01)
    assert row["ettr"] == pytest.approx(table["ettr"], rel=0.05)
    assert row["energy"] == used


# Kills itself after as many seconds of training as the schedule has for this run.
KILLS_ITSELF = """\
    import os, signal, time
    import detslurm as det

    SCHEDULE = {schedule}
    info = det.get_cluster_info()
    run = info.trial._trial_run_id
    with det.core.init() as core:
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
        begun = time.monotonic()
        left = SCHEDULE[run - 1] if run <= len(SCHEDULE) else 1e9

        def wait_until(moment):
            while (now := time.monotonic()) < moment:
                if now - begun > left:
                    core._recorder.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
                until = time.process_time() + 0.002  # it is not idle
                while time.process_time() < until:
                    pass
                time.sleep(0.01)

        for _ in range(3 if run > len(SCHEDULE) else 10**6):
            now = time.monotonic()
            for batch in range(1, 21):
                wait_until(now + 0.1 * batch)
                step += 1
                core.train.report_training_metrics(step, {{"loss": 1.0}})
            with core.checkpoint.store_path({{"steps_completed": step}}) as (path, _):
                (path / "step").write_text(str(step))
                wait_until(now + 2.3)
    """


@pytest.mark.nightly
def test_a_chain_of_failures(desk: Desk) -> None:
    """Failures at random, as in published studies (exponential), in small: the training time is
    within 2 % of what the schedule leaves, and detslurm's own part of a restart is seconds."""
    random = Random(1)
    schedule = [round(min(max(random.expovariate(1 / 12), 3.0), 40.0), 2) for _ in range(12)]
    project = desk.project(KILLS_ITSELF.format(schedule=schedule), "max_restarts: 20\n")
    number = desk.submit(project)
    desk.wait_for_state(number, "COMPLETED", "ERROR", timeout=900)
    assert desk.outcomes(number) == ["restart"] * len(schedule) + ["completed"]
    (figures,) = unwrap(desk.run("experiment", "efficiency", str(number), "--json").stdout)
    time = figures["training_time"]
    trial = desk.trial(number)
    saves = len(trial.checkpoints)
    assert time["parts"]["training"] == pytest.approx(saves * 20 * 0.1, rel=0.02)
    assert time["checkpoint"]["failures"] == len(schedule)
    lost = time["parts"]["repeated"] / sum(schedule)
    left = sum(one - int(one / 2.3) * 2.3 for one in schedule) / sum(schedule)
    assert lost == pytest.approx(left, abs=0.1)
    own = (time["parts"]["restart"] + time["parts"]["start_detslurm"]) / len(schedule)
    # Meta reports 7.9 hours between two failures of a job of 1,024 GPUs.
    assert own / (7.9 * 3600) < 0.03
