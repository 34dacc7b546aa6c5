"""The scheduler of a local cluster: one detached process per user, store root and machine.

It owns the journal, starts what fits, ends what must end, answers its clients and goes away when
nothing is left to do. Its death loses nothing: the next one reads in the journal what ran.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm._base import contract
from detslurm._base.child_processes import become_subreaper
from detslurm.slurm.end_reason import end_line
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.local import journal, policy, strays, supervisor, wire
from detslurm.slurm.local.jobs import Element, Jobs, Key
from detslurm.slurm.local.paths import LocalClusterPaths
from detslurm.slurm.local.slots import machine_slots
from detslurm.slurm.local.verbs import Verbs

KILL_WAIT = 10.0
IDLE_EXIT = 5.0
_LEAVING = 10.0  # seconds


@dataclass(slots=True)
class Running:
    """The scheduler's memory of a running element beyond the journal."""

    line: socket.socket
    end_time: float | None
    near_time: float | None
    kill_at: float | None = None
    ending: str = ""  # why it is being ended: CANCELLED, TIMEOUT, requeue
    received: bytes = b""


class Scheduler:
    """The one process that decides about this machine's jobs."""

    def __init__(self, paths: LocalClusterPaths, server: socket.socket) -> None:
        self.paths = paths
        self.slots = machine_slots()
        self.running: dict[Key, Running] = {}
        self._server = server
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)
        journal.compact(paths.journal)
        self.jobs = Jobs(journal.read(paths.journal))
        self._journal = journal.Journal(paths.journal)
        self._verbs = Verbs(self)

    def record(self, event: dict[str, Any], *, commit: bool = False) -> None:
        """Write an event down and take it in."""
        # First to the disk: what a scheduler has acted on, its successor must know. `commit` waits
        # for the disk where a client is about to be answered.
        self._journal.append(event, commit=commit)
        self.jobs.apply(event)
        if event["t"] == "end" and self.jobs.jobs[event["job"]].over:
            self.paths.forget(event["job"])

    def recover(self) -> None:
        """End what a lost scheduler has left behind, and queue its running elements again."""
        # First, or a requeued element would start beside its former processes. Supervisors end
        # their jobs when their line closes; this finds what lost its supervisor in the same moment.
        strays.sweep(self.paths.tag)
        for job in self.jobs.jobs.values():
            if job.over:  # the scheduler may have been killed before it could
                self.paths.forget(job.id)
        for element in list(self.jobs):
            if element.state == "RUNNING":
                self._lost(element)

    def serve(self) -> None:
        """Run until there has been nothing to do for a while."""
        idle_since = time.monotonic()
        while True:
            self._start_what_fits()
            if self.running or self.jobs.busy:
                idle_since = time.monotonic()
            wait = self._next_deadline()
            if not self.running:
                left = IDLE_EXIT - (time.monotonic() - idle_since)
                if left <= 0:
                    return
                wait = left if wait is None else min(wait, left)
            for key, _ in self._selector.select(wait):
                if key.fileobj is self._server:
                    self._answer()
                    idle_since = time.monotonic()
                else:
                    self._read_line(key.data)
            self._enforce_limits(time.time())

    # Starting

    def _start_what_fits(self) -> None:
        for element, gpus in policy.startable(self.jobs, self.slots):
            now = time.time()
            # Before the launch: a scheduler that is killed in between leaves an element that counts
            # as lost, and is requeued if it may be, never an element that runs twice.
            self.record({"t": "start", **_names(element), "time": now, "gpus": list(gpus)})
            self._launch(element, now)

    def _launch(self, element: Element, now: float) -> None:
        request = self.jobs.request(element)
        minutes = request.time_minutes
        end = now + 60 * minutes if minutes else None
        launch = supervisor.Launch(
            script=self.paths.script(element.job),
            folder=request.folder,
            output=self.paths.output(element.job),
            environment=self._environment(element, end),
        )
        line = supervisor.start(launch)
        lead = request.signal_lead
        near = max(now, end - lead) if end and lead else None
        self.running[element.key] = Running(line, end, near)
        self._selector.register(line, selectors.EVENT_READ, element.key)

    def _environment(self, element: Element, end: float | None) -> dict[str, str]:
        return {
            **json.loads(self.paths.environment(element.job).read_text()),
            contract.LOCAL_TAG: self.paths.tag,
            contract.LOCAL_JOB_ID: str(element.job),
            contract.LOCAL_TASK_ID: "" if element.index is None else str(element.index),
            contract.LOCAL_RESTART_COUNT: str(element.restarts),
            contract.LOCAL_END_TIME: "" if end is None else str(end),
            "CUDA_VISIBLE_DEVICES": ",".join(element.gpus),
        }

    # Ending

    def order_end(self, key: Key, why: str) -> None:
        """TERM now, KILL after a while; the first reason stays."""
        running = self.running[key]
        if not running.ending:
            running.ending = why
            running.kill_at = time.time() + KILL_WAIT
            self._write_end_line(key, why)
            self.order(key, supervisor.TERM)
        elif why == "CANCELLED":
            running.ending = why  # the user's cancel replaces a requeue that is under way

    def _write_end_line(self, key: Key, why: str) -> None:
        """Slurm's line about the end, into the job's output before the job gets its signal."""
        cause = {"CANCELLED": "cancelled", "TIMEOUT": "time_limit"}.get(why, "requeued")
        job = self.jobs.jobs[key[0]]
        line = end_line(job.elements[key[1]].ref, socket.gethostname(), cause, time.time())
        try:
            with self.paths.output(job.id).open("a") as file:
                file.write(line)
        except OSError:
            pass  # a full disk must not keep a job from ending

    def order(self, key: Key, order: bytes) -> None:
        """Give a supervisor an order; a supervisor that has gone needs none."""
        # The line is ready again when the supervisor's end is seen, which `_read_line` deals with.
        try:
            self.running[key].line.sendall(order)
        except OSError:
            pass

    def _read_line(self, key: Key) -> None:
        running = self.running[key]
        try:
            data = running.line.recv(4096)
        except OSError:
            data = b""
        running.received += data
        # The result may come in parts; an end without a whole line is a supervisor that was killed.
        if data and not running.received.endswith(b"\n"):
            return
        self._selector.unregister(running.line)
        running.line.close()
        del self.running[key]
        element = self.jobs.jobs[key[0]].elements[key[1]]
        if running.received.endswith(b"\n"):
            self._ended(element, running.ending, json.loads(running.received))
        else:
            self._lost(element)

    def _ended(self, element: Element, why: str, result: dict[str, Any]) -> None:
        if why == "requeue":
            self._requeue(element)
            return
        state = why or ("COMPLETED" if result["code"] == 0 else "FAILED")
        self.record({"t": "end", **_names(element), "state": state, "time": time.time(), **result})

    def _lost(self, element: Element) -> None:
        """The supervisor or the whole scheduler was killed: what a dead node is to Slurm."""
        # A killed supervisor takes the batch process with it, but not what that has started.
        strays.sweep(self.paths.tag, element.ref)
        if self.jobs.request(element).requeue:
            self._requeue(element)
        else:
            nothing = {"code": None, "signal": None, "time": time.time()}
            self.record({"t": "end", **_names(element), "state": "NODE_FAIL", **nothing})

    def _requeue(self, element: Element) -> None:
        again = {"restarts": element.restarts + 1, "held": element.held}
        self.record({"t": "requeue", **_names(element), **again})

    # Time

    def _enforce_limits(self, now: float) -> None:
        # Each moment is used once: it is cleared before the order, whatever comes of that.
        for key, running in self.running.items():
            if running.near_time is not None and now >= running.near_time:
                running.near_time = None
                self.order(key, supervisor.NEAR_LIMIT)
            if running.end_time is not None and now >= running.end_time:
                running.end_time = None
                self.order_end(key, "TIMEOUT")
            if running.kill_at is not None and now >= running.kill_at:
                running.kill_at = None
                self.order(key, supervisor.KILL)

    def _next_deadline(self) -> float | None:
        times = [
            moment
            for running in self.running.values()
            for moment in (running.near_time, running.end_time, running.kill_at)
            if moment is not None
        ]
        return max(0.0, min(times) - time.time()) if times else None

    # Clients

    def _answer(self) -> None:
        connection = wire.accept(self._server)
        if connection is None:
            return
        with connection:
            try:
                line = wire.read_line(connection)
                if not line:
                    return
                answer: dict[str, Any]
                try:
                    answer = {"answer": self._verbs.do(json.loads(line))}
                except SlurmError as refusal:
                    answer = {"error": refusal.message, "advice": refusal.advice}
                except OSError as fault:
                    answer = {"error": f"{self.paths.journal}: {fault.strerror}"}
                except Exception as fault:  # such as a question of another version's client
                    traceback.print_exc()
                    answer = {
                        "error": f"the local cluster's scheduler: {type(fault).__name__}: {fault}",
                        "advice": "It goes on. One of another version ends with its last job.",
                    }
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                pass  # the client went away


def _names(element: Element) -> dict[str, Any]:
    return {"job": element.job, "index": element.index}


def main(argv: list[str]) -> int:
    """Become the scheduler of a store root; returns at once when there is one already."""
    paths = LocalClusterPaths(Path(argv[0]))
    # The bound address is the lock: of schedulers that start at once one gets it, and the kernel
    # frees it at the owner's death. No file could be left behind to mislead the next.
    server = wire.listen(paths.address)
    if server is None:
        return 0
    paths.make()
    if not _lock_journal(paths):
        server.close()
        unreachable = "another one works on this store, perhaps in another network namespace"
        print(unreachable, file=sys.stderr)
        return 1
    if os.fork():  # the caller goes on as soon as callers can queue up at the socket
        os._exit(0)
    _detach(paths)
    try:
        scheduler = Scheduler(paths, server)
        scheduler.recover()
        scheduler.serve()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _lock_journal(paths: LocalClusterPaths) -> bool:
    """Take the journal until this process ends; False where another process keeps it.

    Each network namespace (`ip netns`, containers) has an address of that name, and who sees no
    scheduler there would take its jobs for lost: it would kill them, or run them twice.
    """
    try:
        lock = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return True  # a full disk, on which a look at the queue still works
    until = time.monotonic() + _LEAVING
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            # A leaving scheduler gives up its address before its other files.
            if time.monotonic() > until:
                os.close(lock)
                return False
            time.sleep(0.05)
        except OSError:
            return True  # a file system without locks


def _detach(paths: LocalClusterPaths) -> None:
    os.setsid()
    os.chdir("/")
    log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Orphans of a killed supervisor become our children, so that their end leaves no zombie
    # even in a container whose first process reaps none.
    become_subreaper()
    # Supervisors report on their lines and aren't waited for: ignored, they leave no zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
