"""The local cluster's own promises: nothing is lost, nothing outlives its job."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from detslurm._base.child_processes import descendants, signal_each
from detslurm.sdk import Client, LifecycleError
from detslurm.slurm import LocalCluster, SlurmError
from detslurm.slurm.local import journal, policy, scheduler, wire
from detslurm.slurm.local.jobs import Jobs
from detslurm.slurm.local.paths import LocalClusterPaths
from detslurm.slurm.local.view import describe
from tests.cluster import wait_for
from tests.slurm.bench import Bench
from tests.slurm.schedulers import end_scheduler, kill_scheduler, scheduler_pid, strays


def local_cluster(bench: Bench) -> LocalCluster:
    assert isinstance(bench.cluster, LocalCluster)
    return bench.cluster


def test_a_killed_scheduler_loses_nothing(local: Bench) -> None:
    """kill -9: its jobs end at once; the next command requeues them, waiting ones still wait."""
    job = local.submit("child", "stubborn", count=6)
    for i in range(4):
        local.wait_word(f"{job}_{i}", "start")
    kill_scheduler(local_cluster(local))
    wait_for(lambda: not strays(local_cluster(local)), what="the end of the jobs' processes")
    assert len(local.cluster.query([job])) == 6
    for i in range(4):
        local.wait_word(f"{job}_{i}", "start", times=2)
    assert [e["restarts"] for e in local.log(f"{job}_0") if e["word"] == "start"] == [0, 1]
    local.go()
    wait_for(lambda: all(i.final for i in local.cluster.query([job]).values()), 180)
    states = [(i.state, i.restarts) for i in local.cluster.query([job]).values()]
    assert states == [("COMPLETED", 1)] * 4 + [("COMPLETED", 0)] * 2


SQUATTER = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind("\\0" + sys.argv[1])
    server.listen()
    print("there", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts another user's process")
def test_another_user_at_the_address(local: Bench) -> None:
    """Its name can be guessed: clients that start at once all choose the same other one."""
    cluster = local_cluster(local)
    end_scheduler(cluster)
    taken = cluster.paths.address
    argv = [sys.executable, "-c", SQUATTER, taken[1:]]
    with subprocess.Popen(
        argv, user=65534, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    ) as squatter:
        assert squatter.stdin is not None and squatter.stdout is not None
        assert squatter.stdout.readline() == b"there\n"
        with ThreadPoolExecutor(4) as pool:
            jobs = list(pool.map(lambda _: local.submit("child"), range(4)))
        local.go()
        wait_for(lambda: all(i.final for i in cluster.query(jobs).values()), 120)
        assert len(cluster.query(jobs)) == 4 and cluster.paths.address != taken
        squatter.stdin.close()


def test_the_environment_goes_with_the_job(local: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds what the submitting shell had, secrets too: of a job that is over nothing is kept,
    whether it has run, was canceled in the queue, or lost its scheduler at that moment."""
    cluster = local_cluster(local)
    monkeypatch.setenv("SOME_TOKEN", "hush-hush")
    array, waiting = local.submit("child", count=2), local.submit("child", hold=True)
    local.wait_word(f"{array}_0", "start")
    kept = [cluster.paths.environment(int(job)) for job in (array, waiting)]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept)
    local.cluster.cancel([f"{array}_0", waiting])
    wait_for(lambda: local.cluster.query([f"{array}_0"])[f"{array}_0"].final, 60)
    assert [path.exists() for path in kept] == [True, False]  # the other element needs it
    saved = kept[0].read_text()
    local.go()
    wait_for(lambda: not kept[0].exists(), 60)
    with pytest.raises(SlurmError, match="is over"):
        local.cluster.requeue(waiting)
    end_scheduler(cluster)
    kept[0].write_text(saved)
    local.submit("child")
    wait_for(lambda: not kept[0].exists(), 60)
    local.go()
    found = [path for path in cluster.paths.jobs.rglob("*") if path.is_file()]
    assert not any("hush-hush" in path.read_text() for path in found if path.parent.name != "3")


def test_the_scheduler_is_no_part_of_the_run_that_starts_it(
    local: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By such marks the next run ends what earlier ones have left."""
    end_scheduler(local_cluster(local))
    monkeypatch.setenv("DET_TRIAL_ID", "1")
    local.submit("child")
    pid = scheduler_pid(local_cluster(local))
    assert b"DET_" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_what_the_scheduler_does_not_understand_ends_nothing(local: Bench) -> None:
    """A request of another version's client is refused, and so is a verb; jobs go on."""
    job = local.submit("child")
    local.wait_word(job, "start")
    cluster = local_cluster(local)
    pid = scheduler_pid(cluster)
    request = {**local.request().to_dict(), "newer": 1}
    question = {"verb": "submit", "job": 99, "token": "x", "request": request}
    update = {"verb": "update", "job": int(job), "changes": {"newer": 1}}
    for asked in (question, update, {"verb": "newer"}):
        with pytest.raises(SlurmError, match="newer"):
            wire.ask(cluster.paths.address, asked)
    assert scheduler_pid(cluster) == pid
    assert Jobs(journal.read(cluster.paths.journal)).jobs  # as the next one reads it
    local.go()
    assert local.wait_state(job, "COMPLETED").restarts == 0


def test_a_killed_supervisor_is_a_lost_node(local: Bench) -> None:
    """The element's processes are ended and it runs again."""
    job = local.submit("child")
    local.wait_word(job, "start")
    pid = scheduler_pid(local_cluster(local))
    supervisor = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    os.kill(int(supervisor), signal.SIGKILL)
    local.wait_word(job, "start", times=2)
    local.go()
    assert local.wait_state(job, "COMPLETED").restarts == 1


def test_everything_killed_at_once_is_a_reboot(local: Bench) -> None:
    """Scheduler, supervisors and batch processes gone in one moment: strays go, jobs come back."""
    job = local.submit("child")
    for word in ("start", "child"):
        local.wait_word(job, word)
    pid = scheduler_pid(local_cluster(local))
    assert pid is not None
    everybody = [pid, *descendants(pid)]
    stray = [p for p in everybody if b"54321" in Path(f"/proc/{p}/cmdline").read_bytes()]
    signal_each([p for p in everybody if p not in stray], signal.SIGKILL)
    assert stray
    assert local.info(job) is not None
    local.wait_word(job, "start", times=2)
    assert not set(stray) & set(strays(local_cluster(local)))


def test_no_process_outlives_its_job(local: Bench) -> None:
    """Not even one in a session of its own whose parent is gone."""
    local.go()
    job = local.submit("child")
    local.wait_state(job, "COMPLETED")
    assert strays(local_cluster(local)) == []


@pytest.mark.slow
def test_a_stubborn_job_is_killed(local: Bench) -> None:
    """Past its limit a job gets SIGTERM, with the reason in its output, and then SIGKILL."""
    # It must be listening by the time of the first signal, which comes after 20 s.
    job = local.submit("child", "stubborn", time_minutes=0.35, signal_lead=1)
    info = local.wait_state(job, "TIMEOUT")
    assert info.signal == signal.SIGKILL
    assert "SIGUSR1" in local.words(job)
    why = {e["why"] for e in local.log(job) if e["word"] == "SIGTERM"}
    assert why == {"time_limit"}
    assert strays(local_cluster(local)) == []


def test_slots_are_counted(local: Bench) -> None:
    """4 CPUs take two jobs of 2; GPUs are dealt out by index and given back."""
    cpu = [local.submit(slots=2) for _ in range(3)]
    for job in cpu[:2]:
        local.wait_state(job, "RUNNING")
    waiting = local.info(cpu[2])
    assert waiting is not None
    assert (waiting.state, waiting.reason) == ("PENDING", "Resources")
    gpu = [local.submit(slots=1, slot_type="cuda") for _ in range(2)]
    for job in gpu:
        local.wait_word(job, "start")
    local.go()
    for job in (*cpu, *gpu):
        local.wait_state(job, "COMPLETED")


def test_the_order_of_waiting_jobs_can_be_changed(local: Bench) -> None:
    """As on Slurm; but a nice may be below 0 here, so that one job moves alone."""
    first = local.submit(slots=4, nice=0)
    local.wait_state(first, "RUNNING")
    jobs = [local.submit(slots=4, nice=0) for _ in range(3)]
    client = Client(local_cluster(local).paths.root, connect=lambda name: local.cluster)
    place = client.update_job(jobs[2], ahead_of=jobs[0])
    assert str(place) == f"job {jobs[2]} is now 1st of your 3 pending jobs in local"
    assert [row.nice for row in local.cluster.queue()] == [0, 0, 0, -2]
    client.update_job(jobs[0], priority=99)
    with pytest.raises(LifecycleError, match="the local cluster cannot change"):
        client.update_job(jobs[0], resource_pool="other")
    for done, job in itertools.pairwise((first, jobs[2], jobs[1], jobs[0])):
        local.go(done)
        local.wait_word(job, "start")
    local.go(jobs[0])
    starts = [local.log(job)[0]["time"] for job in (jobs[2], jobs[1], jobs[0])]
    assert starts == sorted(starts)


def test_what_does_not_fit_this_machine_is_refused(local: Bench) -> None:
    """Too many slots, several nodes, a dependency that is not known."""
    for changes in (
        {"slots": 5},
        {"slots": 3, "slot_type": "cuda"},
        {"nodes": 2},
        {"dependency": "singleton"},
    ):
        with pytest.raises(SlurmError) as caught:
            local.submit(**changes)
        assert caught.value.advice


def test_ten_submissions_at_once_start_one_scheduler(local: Bench) -> None:
    """Ten processes race to start the scheduler and to claim ids."""
    local.go()
    code = (
        "import sys; from pathlib import Path; from detslurm.slurm import *;"
        "print(LocalCluster(sys.argv[1]).submit(JobRequest("
        "name='x', command=('true',), folder=Path(sys.argv[2]))))"
    )

    def submit(_: int) -> str:
        argv = [sys.executable, "-c", code, str(local_cluster(local).paths.root), str(local.folder)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
        return done.stdout.strip()

    with ThreadPoolExecutor(10) as pool:
        jobs = list(pool.map(submit, range(10)))
    assert len(set(jobs)) == 10
    wait_for(lambda: all(i.final for i in local.cluster.query(jobs).values()), 180)
    assert len(local.cluster.query(jobs)) == 10


def test_the_scheduler_leaves_when_nothing_is_left_to_do(
    local: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the journal still answers, and asking starts nobody."""
    local.go()
    job = local.submit()
    local.wait_state(job, "COMPLETED")
    held = local.submit(hold=True)
    time_to_leave = time.monotonic() + 90
    address = local_cluster(local).paths.address
    while _listening(address) and time.monotonic() < time_to_leave:
        time.sleep(0.2)  # asking the scheduler would keep it from being idle
    info = local.info(job)
    assert info is not None
    assert info.state == "COMPLETED"
    assert not _listening(address)
    local.cluster.release([held])
    local.wait_state(held, "COMPLETED")


def test_a_scheduler_that_can_not_be_reached_keeps_its_jobs(
    local: Bench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In another network namespace its address is free, and its journal is the same one."""
    local.wait_word(local.submit("child"), "start")
    with local_cluster(local).paths.lock.open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    paths = LocalClusterPaths(tmp_path / "elsewhere")
    paths.make()
    monkeypatch.setattr(scheduler, "_LEAVING", 0.0)
    with paths.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert scheduler.main([str(paths.root)]) == 1
    assert "another network namespace" in capsys.readouterr().err
    assert not paths.journal.exists()
    paths.lock.unlink()
    paths.lock.mkdir()
    assert scheduler._lock_journal(paths), "where no file can be made, as on a full disk"


def _listening(address: str) -> bool:
    return f"@{address[1:]}" in Path("/proc/net/unix").read_text()


def test_another_process_at_the_address_is_not_obeyed_blindly(tmp_path: Path) -> None:
    """Whoever holds the address without answering gives an error, not a hang for ever."""
    cluster = LocalCluster(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(cluster.paths.address)
        squatter.listen()
        with pytest.raises(wire.NoScheduler):
            wire.ask(cluster.paths.address, {"verb": "pid"}, timeout=0.2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_users_scheduler_is_refused(tmp_path: Path) -> None:
    """The peer's user id is checked on both ends."""
    address = LocalClusterPaths(tmp_path).address
    squat = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
        "s.bind('\\0' + sys.argv[1]); s.listen(); print('ready', flush=True); s.accept()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", squat, address[1:]], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(SlurmError, match="another user"):
            wire.ask(address, {"verb": "pid"})
        process.kill()


def test_a_torn_journal_is_read_up_to_the_tear(tmp_path: Path) -> None:
    """At whatever byte the last line was torn, the earlier events and later ones count."""
    path = tmp_path / "journal.jsonl"
    whole = b'{"t":"a"}\n{"t":"b"}\n'
    for cut in range(10, len(whole)):
        path.write_bytes(whole[:cut])
        writer = journal.Journal(path)
        writer.append({"t": "c"})
        writer.close()
        kinds = [event["t"] for event in journal.read(path)]
        assert kinds in (["a", "c"], ["a", "b", "c"])


def test_hosts_that_share_a_name_and_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a journal and an address of its own: no scheduler takes over the other's jobs."""
    here, number = LocalClusterPaths(tmp_path), Path("/etc/machine-id")
    homes = {here.home}
    addresses = {here.address}
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda p: b"other" if p == number else read(p))
    homes.add(here.home)
    addresses.add(here.address)
    assert len(homes) == len(addresses) == 2


def test_a_journal_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only happened is written later; what was asked for is refused, and never appears."""
    path, room, write = tmp_path / "journal.jsonl", 10, os.write
    writer = journal.Journal(path)

    def written(fd: int, data: bytearray) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(fd, data[:room])
        room -= count
        return count

    monkeypatch.setattr("detslurm.slurm.local.journal.os.write", written)
    writer.append({"t": "start", "job": 1})
    with pytest.raises(OSError, match="No space"):
        writer.append({"t": "job", "job": 2}, commit=True)
    room = 30  # the first event and a piece of the next
    with pytest.raises(OSError, match="No space"):
        writer.append({"t": "job", "job": 3}, commit=True)
    room = 1000
    writer.append({"t": "end", "job": 1})
    monkeypatch.undo()
    writer.close()
    assert [(e["t"], e["job"]) for e in journal.read(path)] == [("start", 1), ("end", 1)]


def test_a_grown_journal_is_compacted(tmp_path: Path) -> None:
    """Jobs that are over are forgotten, the oldest first; the living are kept."""
    path = tmp_path / "journal.jsonl"
    writer = journal.Journal(path)
    request = {"name": "x", "command": ["true"], "folder": "/", "comment": "c" * 4000}
    for job in range(1, 401):
        event = {"t": "job", "job": job, "token": str(job), "time": 1.0, "request": request}
        writer.append(event)
        if job != 3:
            end = {"state": "COMPLETED", "time": 2.0, "code": 0, "signal": None}
            writer.append({"t": "end", "job": job, "index": None, **end})
    writer.close()
    journal.compact(path, keep_jobs=10)
    kept = {event["job"] for event in journal.read(path)}
    assert kept == {3, *range(391, 401)}


def test_jobs_that_are_over_need_no_look_at_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi takes its time."""
    monkeypatch.setattr("detslurm.slurm.local.client.machine_slots", pytest.fail)
    assert LocalCluster(tmp_path).query(["1"]) == {}
    assert LocalCluster(tmp_path).queue() == []


def test_a_look_at_the_queue_goes_over_all_jobs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free is the same for each that waits: of ten thousand a look took seconds."""
    request = {"name": "x", "command": ["true"], "folder": "/", "count": 20}
    event = {"t": "job", "job": 1, "token": "1", "time": 1.0, "request": request}
    free = mock.Mock(wraps=policy.free)
    monkeypatch.setattr(policy, "free", free)
    rows = describe(Jobs([event]), ["1"], policy.Slots(0), 2.0)
    assert [row.reason for row in rows] == ["Resources"] * 20
    free.assert_called_once()


def test_strange_roots_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces and quotes in the store's root; two roots are two clusters."""
    monkeypatch.setenv("DETSLURM_LOCAL_CPUS", "1")
    clusters = [LocalCluster(tmp_path / name) for name in ("a b'c", 'd\n"$(touch x)')]
    benches = [Bench(cluster, tmp_path / str(i)) for i, cluster in enumerate(clusters)]
    try:
        for bench in benches:
            bench.folder.mkdir()
            bench.go()
            assert bench.submit() == "1"
            bench.wait_state("1", "COMPLETED")
    finally:
        for cluster in clusters:
            end_scheduler(cluster)
