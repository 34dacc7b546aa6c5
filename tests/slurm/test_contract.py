"""What every cluster promises, shown on the local one and on a real Slurm."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from detslurm.slurm import JobInfo, SlurmError
from tests.cluster import wait_for
from tests.slurm.bench import Bench

NASTY = "$(touch pwned) `touch pwned` ' \" \\ # %j\n#SBATCH --no-such\ttouch pwned"


def test_a_job_runs_with_its_arguments_and_name_as_given(bench: Bench) -> None:
    """Quotes, newlines, dollars and percent signs reach the job unharmed and run nothing.

    Nor does it matter how long a comment is, or that it ends with a backslash.
    """
    bench.go()
    job = bench.submit("a b", NASTY, "", name=f"{NASTY}\\", comment=60 * NASTY + "\\")
    bench.wait_state(job, "COMPLETED")
    start = bench.log(job)[0]
    assert start["argv"] == ["a b", NASTY, ""]
    assert start["ref"] == job
    assert not list(bench.folder.glob("**/pwned"))


def test_any_folder_will_do(bench: Bench) -> None:
    """Spaces, quotes, percent and dollar signs in the folder's name do no harm."""
    bench.folder = bench.folder / "a b'c\"d 100%j $(touch pwned)"
    bench.folder.mkdir()
    bench.go()
    job = bench.submit(setup=("echo said by setup",))
    bench.wait_state(job, "COMPLETED")
    assert bench.words(job) == ["start", "done"]
    assert "said by setup" in (bench.folder / f"slurm-{job}.out").read_text()
    assert not list(bench.folder.parent.glob("**/pwned"))


def test_the_job_gets_the_submitting_python_and_no_other_jobs_identity(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python3` is the submitting one; a job that submits passes no SLURM_ variables on."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "7")
    bench.go()
    job = bench.submit()
    bench.wait_state(job, "COMPLETED")
    start = bench.log(job)[0]
    assert Path(start["python"]).parent == Path(sys.executable).parent
    assert start["restarts"] == 0
    assert start["leaked"] == []


def test_a_job_is_found_by_the_mark_of_its_request(bench: Bench) -> None:
    """The id of a job may be lost with the process that submitted it."""
    request = bench.request(mark="announced-3-0", hold=True)
    assert bench.cluster.submitted(request.folder, "announced-3-0") is None
    job = bench.cluster.submit(request)
    assert bench.cluster.submitted(request.folder, "announced-3-0") == job
    assert bench.cluster.submitted(request.folder, "announced-3-1") is None
    bench.cluster.cancel([job])


def test_an_array_runs_all_elements_and_keeps_its_throttle(bench: Bench) -> None:
    """Five elements, two at a time."""
    job = bench.submit(count=5, throttle=2)
    for number in range(5):
        running = wait_for(lambda: _running(bench, job), 180, "an element that runs")
        assert len(running) <= 2
        bench.wait_word(sorted(running)[0], "start")
        bench.go(sorted(running)[0])
        bench.wait_word(sorted(running)[0], "done")
        wait_for(partial(_has_done, bench, job, number + 1), 180)
    assert _done(bench, job) == {f"{job}_{i}" for i in range(5)}


def test_an_array_may_have_gaps(bench: Bench) -> None:
    """Only the named elements exist."""
    bench.go()
    job = bench.submit(indices=(2, 5, 6))
    assert set(bench.cluster.query([job])) == {f"{job}_2", f"{job}_5", f"{job}_6"}
    wait_for(lambda: len(_done(bench, job)) == 3, 180)


def test_a_failure_is_told_with_its_exit_code(bench: Bench) -> None:
    """FAILED, by the queue and by the evidence."""
    bench.go()
    job = bench.submit("fail")
    assert bench.wait_state(job, "FAILED").final
    known = wait_for(lambda: bench.cluster.evidence([job]).get(job), 180)
    assert known is not None
    assert known.state == "FAILED"


def test_unknown_jobs_are_absent_and_disturb_nothing(bench: Bench) -> None:
    """Absence means unknown; the others of the same query are told."""
    bench.go()
    job = bench.submit()
    assert set(bench.cluster.query([job, "777777", "888888_4"])) == {job}
    assert bench.cluster.query(["777777"]) == {}
    assert bench.cluster.query([]) == {}
    assert bench.cluster.evidence(["777777"]) == {}


def test_cancel_ends_what_runs_and_what_waits(bench: Bench) -> None:
    """The job gets SIGTERM and can read why; cancelling again is no error."""
    job = bench.submit("child", count=2, throttle=1)
    ref = _first_running(bench, job)
    bench.wait_word(ref, "start")
    bench.cluster.cancel([job])
    wait_for(lambda: all(i.final for i in bench.cluster.query([job]).values()), 180)
    states = {info.state for info in bench.cluster.query([job]).values()}
    assert states == {"CANCELLED"}
    term = [e for e in bench.log(ref) if e["word"] == "SIGTERM"]
    assert "cancelled" in {e["why"] for e in term}
    bench.cluster.cancel([job, "777777"])


def test_cancel_of_pending_elements_leaves_the_running_ones(bench: Bench) -> None:
    """pending_only is what a gentle end of a search needs."""
    job = bench.submit(count=3, throttle=1)
    ref = _first_running(bench, job)
    bench.wait_word(ref, "start")
    bench.cluster.cancel([job], pending_only=True)
    refs = {f"{job}_{i}" for i in range(3)} - {ref}
    wait_for(lambda: {i.state for i in bench.cluster.query(refs).values()} == {"CANCELLED"}, 180)
    assert set(bench.cluster.query(refs)) == refs
    wait_for(lambda: bench.cluster.evidence(refs).keys() == refs, 180, "evidence of their end")
    assert {i.state for i in bench.cluster.evidence(refs).values()} == {"CANCELLED"}
    bench.go()
    bench.wait_word(ref, "done")
    assert "SIGTERM" not in bench.words(ref)


def test_notify_reaches_the_batch_process_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGUSR2 goes to the runner, not to what it started."""
    # A busy machine may take longer; a notification that came to nothing is the runner's look away.
    monkeypatch.setattr("detslurm.slurm.cluster.NOTIFY_PATIENCE", 60.0)
    job = bench.submit("child")
    bench.wait_word(job, "start")
    bench.wait_word(job, "child")
    bench.cluster.notify([job, "777777"])
    bench.wait_word(job, "SIGUSR2")
    bench.go()
    bench.wait_state(job, "COMPLETED")
    pids = {entry["word"]: entry["who"] for entry in bench.log(job) if "who" in entry}
    assert bench.words(job).count("SIGUSR2") == 1
    assert pids["SIGUSR2"] == pids["start"]


def test_requeue_restarts_exactly_one_element(bench: Bench) -> None:
    """The element runs again, counted, its log appended to; its neighbour never notices."""
    job = bench.submit(count=2)
    first, second = f"{job}_0", f"{job}_1"
    for ref in (first, second):
        bench.wait_word(ref, "start")
    bench.cluster.requeue(second)
    bench.wait_word(second, "start", times=2)
    assert [e["restarts"] for e in bench.log(second) if e["word"] == "start"] == [0, 1]
    bench.go()
    wait_for(lambda: len(_done(bench, job)) == 2, 180)
    assert bench.words(first) == ["start", "done"]
    assert [e.get("why") for e in bench.log(second) if e["word"] == "SIGTERM"] == ["requeued"]


def test_a_held_requeue_waits_for_its_release(bench: Bench) -> None:
    """Pause and activate of one array element."""
    job = bench.submit(count=2)
    ref = f"{job}_1"
    bench.wait_word(ref, "start")
    bench.cluster.requeue(ref, hold=True)
    wait_for(partial(_is_held, bench, ref), 180, "held")
    assert bench.words(ref).count("start") == 1
    bench.cluster.release([ref])
    bench.wait_word(ref, "start", times=2)
    bench.go()
    wait_for(lambda: len(_done(bench, job)) == 2, 180)


def test_hold_keeps_a_job_from_starting(bench: Bench) -> None:
    """Submitted held, released, done."""
    bench.go()
    job = bench.submit(hold=True)
    held = bench.info(job)
    assert held is not None
    assert held.held
    assert held.waiting
    bench.cluster.release([job])
    bench.wait_state(job, "COMPLETED")


def test_hold_of_waiting_elements(bench: Bench) -> None:
    """hold and release take several jobs at once, dead ones among them."""
    blocker = bench.submit(hold=True)
    job = bench.submit(dependency=f"afterany:{blocker}")
    bench.cluster.hold([job, "777777"])
    wait_for(partial(_is_held, bench, job), 180, "held")
    bench.go()
    bench.cluster.release([job, blocker])
    bench.wait_state(job, "COMPLETED")


def test_a_dependent_job_waits(bench: Bench) -> None:
    """afterany: the successor of a job that ended, however it ended."""
    first = bench.submit("fail")
    second = bench.submit(dependency=f"afterany:{first}")
    bench.wait_word(first, "start")
    waiting = bench.info(second)
    assert waiting is not None
    assert waiting.reason == "Dependency"
    bench.go()
    bench.wait_state(second, "COMPLETED")
    assert bench.log(second)[0]["time"] >= bench.log(first)[-1]["time"]


@pytest.mark.slow
def test_the_time_limit_announces_itself(bench: Bench) -> None:
    """SIGUSR1 comes before the limit, to the batch process alone."""
    # The job must be listening by then, 20 s after its start. Slurm looks every 30 s, and signals
    # at the last look in time: with 5 s that is 25 s to 55 s after the start.
    lead = 5 if bench.cluster.name == "slurm" else 40
    job = bench.submit("child", time_minutes=1, signal_lead=lead)
    bench.wait_word(job, "SIGUSR1")
    pids = {entry["word"]: entry["who"] for entry in bench.log(job) if "who" in entry}
    assert pids["SIGUSR1"] == pids["start"]


def test_nice_can_be_changed_while_waiting(bench: Bench) -> None:
    """A greater nice lowers the priority; of several jobs at once, too."""
    job, other = bench.submit(hold=True, nice=5), bench.submit(hold=True, nice=5)
    bench.cluster.update(f"{job},{other}", nice=50)
    queued = {row.job_id: row.nice for row in bench.cluster.queue()}
    assert (queued[job], queued[other]) == (50, 50)
    with pytest.raises(SlurmError):
        bench.cluster.update(job, NoSuchField=1)


def test_what_can_never_run_is_refused_before_it_is_queued(bench: Bench) -> None:
    """check() explains, and leaves nothing behind; some sites would queue it for ever."""
    impossible = bench.request(slots=4000, cpus_per_task=4000)
    with pytest.raises(SlurmError):
        bench.cluster.check(impossible)
    assert list(bench.folder.iterdir()) == []
    assert bench.cluster.check(bench.request(count=3, throttle=2)) is None


def _infos(bench: Bench, job: str) -> list[JobInfo]:
    return list(bench.cluster.query([job]).values())


def _running(bench: Bench, job: str) -> set[str]:
    return {info.ref for info in _infos(bench, job) if info.state == "RUNNING"}


def _first_running(bench: Bench, job: str) -> str:
    return sorted(wait_for(lambda: _running(bench, job), 180, "an element that runs"))[0]


def _is_held(bench: Bench, ref: str) -> bool:
    info = bench.info(ref)
    return info is not None and info.held


def _has_done(bench: Bench, job: str, count: int) -> bool:
    return len(_done(bench, job)) == count


def _done(bench: Bench, job: str) -> set[str]:
    return {info.ref for info in _infos(bench, job) if info.state == "COMPLETED"}


@pytest.mark.cluster
def test_what_a_user_has_set_for_slurms_commands_filters_nothing(
    real: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that it hides would be taken for gone, and one that it protects would never end."""
    for name in ("SQUEUE_PARTITION", "SQUEUE_NAMES", "SQUEUE_FORMAT2", "SACCT_FORMAT"):
        monkeypatch.setenv(name, "jobid")
    for name in ("SCANCEL_INTERACTIVE", "SCANCEL_BATCH", "SQUEUE_ARRAY"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SCANCEL_STATE", "RUNNING")
    job = real.submit(hold=True, count=3)
    assert {info.state for info in real.cluster.query([job]).values()} == {"PENDING"}
    real.cluster.cancel([job])
    assert {info.state for info in real.cluster.evidence([job]).values()} <= {"CANCELLED"}


def test_the_whole_queue_and_the_nodes(bench: Bench) -> None:
    """Running elements and those that wait, with what they hold; nodes count what is in use."""
    blocker = bench.submit(hold=True, name="a|b\nc", nice=7)
    job = bench.submit(count=3, throttle=1, slots=2, cpus_per_task=2, comment="x | y")
    ref = _first_running(bench, job)
    bench.wait_word(ref, "start")
    found = [row for row in bench.cluster.queue() if row.job_id in (blocker, job)]
    rows = {one: row for row in found for one in row.refs}
    assert set(rows) == {blocker, f"{job}_0", f"{job}_1", f"{job}_2"}
    assert rows[blocker].held
    assert rows[blocker].name.replace("\n", " ") == "a|b c"
    assert rows[blocker].nice == 7
    runs = rows[ref]
    assert (runs.state, runs.indices) == ("RUNNING", (int(ref[-1]),))
    assert (runs.cpus, runs.gpus, runs.slots, runs.node_count) == (2, 0, 2, 1)
    assert runs.started is not None
    assert runs.time_limit == 600
    assert runs.time_left is not None
    assert runs.folder == str(bench.folder)
    assert runs.comment == "x | y"
    waits = next(row for one, row in rows.items() if one.startswith(f"{job}_") and one != ref)
    assert (waits.state, waits.reason, waits.slots) == ("PENDING", "JobArrayTaskLimit", 2)
    assert waits.throttle == 1
    assert waits.submitted is not None
    nodes = {node.name: node for node in bench.cluster.nodes()}
    (used,) = (nodes[name] for name in runs.nodes)
    assert used.state in ("MIXED", "ALLOCATED")
    assert used.available
    assert used.cpus_used >= 2
    assert used.slots >= used.slots_free > 0
    (partition,) = runs.partitions
    assert {row.ref for row in bench.cluster.queue(partition=partition)} >= {
        row.ref for row in found
    }
    bench.cluster.cancel([blocker, job])
    wait_for(lambda: all(i.final for i in bench.cluster.query([blocker, job]).values()), 180)
    assert not {row.job_id for row in bench.cluster.queue()} & {blocker, job}
