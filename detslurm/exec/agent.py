"""The node agent: runs the entrypoint of one run on one node and mediates between it and Slurm.

Slurm's preemption sends SIGTERM to every process of the step, so the agent learns of it together
with everything that it started. It raises the node's preemption flag, reports to the runner, and
waits for the code to exit; processes that remain are ended.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detslurm._base import child_processes as processes
from detslurm._base import contract
from detslurm._base.flag import PreemptFlag, ignore_signals
from detslurm._base.node_files import (
    directory_for_programs,
    is_noexec,
    remove,
    sweep,
    temporary_directory,
)
from detslurm._base.process import exit_status
from detslurm._base.quantities import counted
from detslurm.exec import agent_protocol, ports
from detslurm.exec.cgroup_memory import oom_kills
from detslurm.exec.entrypoint import (
    CANT_EXECUTE,
    CANT_START,
    HOOK_EXIT,
    HOOK_FAILED,
    container_prefix,
    entrypoint_argv,
    with_startup_hook,
)
from detslurm.exec.environment import (
    interface_of,
    run_environment,
    user_variables,
    with_commands_in,
)
from detslurm.exec.line_splitter import LineSplitter
from detslurm.exec.log_policies import LogPolicies, PatternMatcher, PolicyMatch
from detslurm.exec.orphans import RunMark, end_orphans
from detslurm.exec.pipe_writer import PipeWriter
from detslurm.exec.signals import SignalInbox, discard_signals
from detslurm.exec.text_log import print_message
from detslurm.exec.workdir import make_workdir, top_names
from detslurm.slurm import Allocation
from detslurm.store import ExperimentDir, NotFound, StoreError, StoreFault
from detslurm.store.fs import write_all
from detslurm.store.retry import SHORT, with_retries

if TYPE_CHECKING:
    from detslurm.exec.recorder import RunRecorder
    from detslurm.exec.staging import StagedEnvironment
    from detslurm.exec.usage_sampler import UsageSampler

T = TypeVar("T")

_ALONE = "127.0.0.1"  # the address of a single node, found without loading sockets

# Seconds between SIGTERM and SIGKILL for processes that outlive the entrypoint.
_REMAINING_GRACE = 5.0
# The same where the entrypoint has left as it was asked to: what remains may be saving.
_LEAVING_GRACE = 60.0
# So long after SIGKILL a process is waited for that is stuck in the kernel.
_KILL_TIMEOUT = 30.0
# Seconds that log policies may take at the end for what they have not searched yet.
_MATCHERS_GRACE = 20.0
# The same for the recorder, whose store may be slow; and where the step is about to be killed.
_RECORDER_GRACE, _SHORT_GRACE = 120.0, 5.0


class Agent:
    """One node's part of one run."""

    def __init__(self, experiment_dir: Path, trial_id: int, run: int) -> None:
        # Anybody may send these to a step, also while the store is still being read, and their
        # default action would end the agent.
        discard_signals()
        self._experiment = ExperimentDir.at(experiment_dir)
        self._with_retries(self._experiment.refuse_others_code)
        self._trial = self._experiment.trial(trial_id)
        start = self._with_retries(lambda: self._trial.start(run, fresh=True))
        if start is None:
            raise NotFound(f"run {run} of trial {trial_id} was never started")
        token = self._with_retries(lambda: self._experiment.token(trial_id, run))
        self._start = {**start, "token": token}
        self._config: dict[str, Any] = self._with_retries(self._experiment.config)
        self._prefix = container_prefix(self._config)
        self._policies = LogPolicies(self._config.get("log_policies") or [])
        allocation = Allocation.from_environment()
        if allocation is None:
            raise SystemExit(
                "detslurm agent: this is not a job; the runner starts agents inside one"
            )
        self._allocation = allocation
        self._rank = allocation.node_rank
        self._slot_ids = _slot_ids(allocation, self._config)
        self._flag = PreemptFlag.create()
        # In the handler itself: ranks must see the flag even while this process is blocked in a
        # read from a slow file system. The handler only writes one byte to the flag's file.
        raise_flag = {signal.SIGTERM: self._flag.request_preemption}
        handled = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
        self._inbox = SignalInbox(handled, raise_flag)
        # The peers of thousands of nodes are one command, and a piece of it would be none.
        self._commands = LineSplitter(1 << 24, rewrites=False)
        self._selector = selectors.PollSelector()  # unlike epoll it takes files, too
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._on_commands)
        self._selector.register(self._inbox.fileno(), selectors.EVENT_READ, self._on_signals)
        self._to_runner = PipeWriter(1)
        job = contract.job_of(os.environ) or ""
        self._mark = RunMark(str(self._experiment.path), trial_id, run, job)
        self._reported_stop = self._reported_invalid = self._killed = False
        self._failure = 0  # of a worker, before the order to kill reached this node
        self._why: str | None = None  # the failure, where the exit status does not show it
        self._deleted: str | None = None  # what the code has written beside itself
        self._unprepared = self._got_sigint = False
        self._oom_kills = oom_kills()
        self._child: subprocess.Popen[bytes] | None = None
        self._peers: dict[str, Any] | None = None
        self._staged: StagedEnvironment | None = None
        self._output: LineSplitter | None = None
        self._recorder: RunRecorder | None = None
        self._copy: Path | None = None  # of the code, in which it runs
        self._frame_of_copy: str | None = None
        self._rendezvous_port: ports.Reservation | None = None

    @staticmethod
    def _with_retries(act: Callable[[], T]) -> T:
        """Read what a start needs, over a hiccup of the file system."""
        return with_retries(act, lambda err: print_message(f"{err}: trying again"), SHORT)

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the entrypoint to its end; returns the exit status for the step."""
        self._report({"event": "up", "node": self._rank})
        self._end_orphans()
        if "environment" in self._start:
            self._stage_environment(self._start["environment"])
        try:
            self._rendezvous()
        except OSError as err:
            return self._finish_unprepared(f"can't meet the other nodes: {err}")
        try:
            workdir = self._with_retries(self._make_workdir)
        except (StoreError, OSError) as err:
            return self._finish_unprepared(f"can't prepare the working directory: {err}")
        try:
            copied = top_names(workdir)
            status = self._supervise(workdir)
            if status and is_noexec(workdir):
                self._blame_noexec(status, workdir.parent)
            self._log_deletion(workdir, copied)
        finally:
            remove(workdir)
            if self._prefix:
                remove(_library_of(workdir))
            sweep.cache_clear()  # the code's processes have ended since, and some were killed
            sweep(Path(temporary_directory()))
        return self._finish(status)

    def _blame_noexec(self, status: int, place: Path) -> None:
        why = f"{CANT_START}{place}, which is mounted noexec: set another TMPDIR"
        self._log_message(f"{why}; compiled modules beside the code can't be loaded either")
        if status == CANT_EXECUTE and self._why is None:
            self._why, self._unprepared = why, True

    def _log_deletion(self, workdir: Path, copied: Collection[str]) -> None:
        """Name the files that the code has written beside itself: they are deleted with it."""
        names = sorted(top_names(workdir).difference(copied))
        if names and self._rank == 0:
            more = f" and {len(names) - 10} more" if names[10:] else ""
            self._deleted = f"{', '.join(names[:10])}{more}"
            self._log_message(
                f"deleted with the working directory: {self._deleted}. To keep files, save them in"
                " a checkpoint or under an absolute path"
            )

    def _finish_unprepared(self, why: str) -> int:
        """The node is to blame, for the code has not begun."""
        self._log_message(why)
        self._why = f"{os.uname().nodename} {why}"
        self._unprepared = True
        return self._finish(1)

    def _end_orphans(self) -> None:
        """End what earlier runs left here, before any node of this one begins."""
        # A process of an earlier run may still write checkpoints, or hold memory of the GPUs.
        found, left = end_orphans(self._mark, self._is_over)
        if found:
            self._log_message(
                f"ended {_processes(found)} that an earlier run had left on this node"
            )
        if left:
            self._log_message(f"{left} of them don't end: they may still use what this run needs")

    def _stage_environment(self, environment: Mapping[str, Any]) -> None:
        """Before the nodes meet, so that the code begins on all of them together."""
        from detslurm.exec.staging import NotStaged, stage  # only here: others pay nothing

        begun = time.monotonic()
        try:
            self._staged = stage(environment, wait=self._wait, stopped=lambda: self._flag.preempt)
        except NotStaged as err:
            self._not_staged(str(err))
        else:
            self._log_message(
                f"the environment {environment['prefix']}, as it was at the submission, is in"
                f" {self._staged.path} (after {time.monotonic() - begun:.1f} s)"
            )

    def _not_staged(self, why: str) -> None:
        where = self._start["environment"]["prefix"]
        self._log_message(f"not staged: {why}; the code runs with {where} as it is now")
        self._staged = None
        self._report({"event": "not_staged", "node": self._rank, "why": why})

    def _is_over(self, trial: int, run: int) -> bool:
        try:
            return self._experiment.trial(trial).end(run, fresh=True) is not None
        except StoreError:
            return False  # unknown: a process is only killed where its run is known to be over

    def _make_workdir(self) -> Path:
        start = self._start
        label = f"{start['experiment']}.{start['trial']}.{start['run']}"
        code = self._experiment.code
        self._experiment.refuse_others_code()  # nodes may have waited for each other for minutes
        try:
            return make_workdir(code, label, tmp=Path(self._place()))
        except OSError as err:
            raise StoreFault(str(err), err.errno or errno.EIO, str(code)) from err

    def _place(self) -> str:
        """Where the working directory lies."""
        if self._prefix:
            return temporary_directory()  # which a container sees
        place = directory_for_programs()
        if place != temporary_directory():
            self._log_message(
                f"{temporary_directory()} is mounted noexec: the working directory is in {place}"
            )
        return place

    def _rendezvous(self) -> None:
        """Wait until every node has reported its address and slots to the runner."""
        here: dict[str, Any] = {
            "addr": self._address(),
            "slots": len(self._slot_ids),
            **({} if self._staged is None else {"environment": self._staged.path}),
        }
        # Kept open until the agent ends: the code can bind this port, and no other job gets it.
        if self._rank == 0:
            self._rendezvous_port = ports.reserve(f"{self._allocation.ref}.{self._start['run']}")
            here["port"] = self._rendezvous_port.port
        if self._allocation.node_count == 1:
            self._peers = {"container_addrs": [here["addr"]], "container_rank": 0}
            self._peers["container_slot_counts"] = [here["slots"]]
            self._peers["port"] = here["port"]
            self._peers["token"] = agent_protocol.new_token()
            return
        self._report({"event": "arrived", "node": self._rank, **here})
        # A node may never arrive: the runner has the deadline, since it alone sees all nodes, and
        # ends the waiting agents by a command or by closing their standard input.
        while self._peers is None:
            self._wait(timeout=1.0)
        # Launchers name their own Python when they start ranks on other nodes.
        if self._staged is not None and self._peers.get("environment") != self._staged.path:
            self._not_staged("other nodes could not, or have it elsewhere")

    def _address(self) -> str:
        if self._allocation.node_count == 1:
            return _ALONE
        from detslurm._base.addresses import own_address

        variables = user_variables(self._config, self._allocation.slot_ids)
        interface = interface_of(self._config, variables)
        return own_address(self._allocation.nodes, self._rank, interface)

    def _supervise(self, workdir: Path) -> int:
        self._copy = workdir
        # Before the first child: orphans that were adopted by init before this call stay there.
        processes.become_subreaper()
        try:
            child = processes.start(self._argv(workdir), self._environment(workdir), workdir)
        except (OSError, ValueError) as err:
            self._log_message(f"can't start the entrypoint: {err}")
            return 127 if isinstance(err, FileNotFoundError) else 126
        self._child = child
        assert child.stdout is not None
        # The end of the pipe is not the end of the child: a process of the code may keep it open
        # for long, and reading it must not block signals and commands.
        os.set_blocking(child.stdout.fileno(), False)
        self._output = LineSplitter()
        with self._usage_sampler() as sampler:
            # Usually the end of the output wakes the loop when the child exits, but a process that
            # keeps the pipe open prevents that: so it polls, too.
            while child.poll() is None:
                self._wait(timeout=0.5)
                self._report_flags()
                self._report_usage(sampler)
            self._end_remaining()
        self._report_usage(sampler)
        # All writers have ended by now: what they wrote last is still in the pipe.
        while self._output is not None and self._read_output():
            pass
        if self._output is not None:  # a process that is not our descendant keeps it open
            self._log_bytes(self._output.close())
            self._output = None
        self._end_matchers()
        self._end_recorder()
        self._why = _hook_failure(workdir)
        return exit_status(child.returncode)

    def _usage_sampler(self) -> UsageSampler:
        # Only here, while the code runs: no process waits for these imports.
        from detslurm.exec.run_processes import RunProcesses
        from detslurm.exec.usage_sampler import UsageSampler

        processes = RunProcesses(self._mark, self._own_pids())
        return UsageSampler(processes, self._allocation.slot_ids)

    def _own_pids(self) -> list[int]:
        """The processes below this one that are not the code's."""
        own = [matcher.pid for matcher in self._policies.matchers]
        return own + (self._recorder.pids if self._recorder is not None else [])

    def _report_usage(self, sampler: UsageSampler) -> None:
        for sample in sampler.take():
            self._report({"event": "usage", "node": self._rank, **sample})

    def _argv(self, workdir: Path) -> list[str]:
        argv = entrypoint_argv(self._config["entrypoint"])
        if (workdir / "startup-hook.sh").exists():
            argv = with_startup_hook(argv)
        return [*self._prefix, *argv]

    def _environment(self, workdir: Path) -> dict[str, str]:
        assert self._peers is not None
        allocation = self._allocation
        found = run_environment(
            base=self._base_environment(),
            config=self._config,
            start=self._start,
            experiment_dir=self._experiment.path,
            node=allocation.nodes[self._rank],
            slot_ids=self._slot_ids,
            gpus=allocation.slot_ids,
            peers=self._peers,
            flag=self._flag.name,
        )
        # Torch's tutorials name a port of their own, which two runs on a node would share.
        found.setdefault("MASTER_PORT", str(self._peers["port"]))
        self._log_not_passed_on(found)
        if self._config.get("record") or self._config.get("metrics_from_log"):
            found = self._with_recorder(found)
        if self._staged is not None:
            from detslurm.exec.staging import relocated

            return relocated(found, self._staged)
        if not self._prefix:
            return found
        from detslurm.exec.containers import inside  # only here: others pay nothing

        return inside(found, _library_of(workdir))

    def _with_recorder(self, env: dict[str, str]) -> dict[str, str]:
        """Start the recorder of what the code logs; the environment in which the code finds it."""
        if self._rank:
            return env
        from detslurm.exec.recorder import RunRecorder  # only here: others pay nothing

        try:
            self._recorder = RunRecorder(self._config, Path(self._flag.name), self._log_message)
            self._recorder.start(env)
        except OSError as err:  # training goes on without
            self._log_message(f"record: the recorder can't be started: {err}")
            return env
        return self._recorder.code_environment(env)

    def _log_not_passed_on(self, environment: Mapping[str, str]) -> None:
        """Name what the job's setup or the site has set for ranks that some launcher starts."""
        job = filter(contract.is_of_a_launcher, os.environ)
        names = sorted(name for name in job if environment.get(name) != os.environ[name])
        if names and self._rank == 0:
            self._log_message(
                f"not passed on: {', '.join(names)}, which the job has from its setup or its site;"
                " name in environment.environment_variables what the code is to have"
            )

    def _base_environment(self) -> Mapping[str, str]:
        """That of the job, in which the code finds its Python."""
        if "environment" in self._start:
            folder = f"{self._start['environment']['prefix']}/bin"
        elif self._prefix:
            return os.environ
        else:
            folder = str(Path(sys.executable).parent)
        return with_commands_in(folder, os.environ)

    def _end_remaining(self) -> None:
        """End what the entrypoint left behind; while preempted, let it finish saving first."""
        # A launcher may exit at the SIGTERM that its workers survive. They are saving now, and the
        # runner ends them when the preemption timeout is over. After an orderly end it is rather
        # something in the background, such as a tunnel, that would hold the slots for so long.
        assert self._child is not None
        until = time.monotonic() + _LEAVING_GRACE
        while self._is_saving() and self._others():
            if self._child.returncode == 0 and time.monotonic() >= until:
                seconds = f"{_LEAVING_GRACE:.0f} s after the code has left"
                self._log_message(f"ending {_processes(len(self._others()))} still there {seconds}")
                break
            self._wait(timeout=0.2)
        self._signal_all(signal.SIGTERM)
        kill_at = time.monotonic() + (0.0 if self._killed else _REMAINING_GRACE)
        # A process may fork between the scan of /proc and the signal: so the scan is repeated until
        # none is found. Waiting reads their output, too: a process blocked by a full pipe can't
        # react to SIGTERM.
        while left := self._others():
            self._wait(timeout=0.1)
            if time.monotonic() >= kill_at:
                self._signal_all(signal.SIGKILL)
            if time.monotonic() >= kill_at + _KILL_TIMEOUT:
                self._log_message(
                    f"{_processes(len(left))} left that did not end when"
                    " killed: waiting for a file server or a device, with what the next run needs"
                )
                return

    def _is_saving(self) -> bool:
        # The runner's order to kill comes once. A process that was forked in the middle of that
        # kill is alive still, and no agent would end it: don't wait for it as if it saved.
        return self._flag.preempt and not self._killed and self._output is not None

    def _signal_all(self, sig: signal.Signals) -> None:
        # Not the process group or session alone: launchers give each worker its own.
        processes.signal_each(self._others(), sig)

    def _others(self) -> list[int]:
        """The processes below this one that are the code's."""
        own = self._own_pids()
        return [pid for pid in processes.descendants(os.getpid()) if pid not in own]

    def _end_matchers(self) -> None:
        """Wait for what the log policies still find in the last lines, but not for long."""
        self._policies.close()
        # In the grace of a preemption the runner needs the time to record the end.
        deadline = time.monotonic() + (1.0 if self._flag.preempt else _MATCHERS_GRACE)
        while self._policies.matchers and time.monotonic() < deadline:
            self._wait(timeout=0.5)
        for match in self._policies.abandon():
            self._log_message(f"the last lines were not searched for log policy {match.name!r}")

    def _report_flags(self) -> None:
        """Report what ranks of this node have flagged, so that the runner stops all nodes."""
        if self._flag.stop and not self._reported_stop:  # the search wants no more of this trial
            self._reported_stop = True
            self._flag.request_preemption()
            self._report({"event": "stop", "node": self._rank, **self._stop_unwatched()})
        if self._flag.early_exit and not self._reported_invalid:
            self._reported_invalid = True
            self._report({"event": "invalid_hp", "node": self._rank})

    def _stop_unwatched(self) -> dict[str, float]:
        """Signal code that does not watch for the search's decision; how long it may take then."""
        grace = self._recorder.stop_grace if self._recorder is not None else None
        if grace is None:
            return {}
        if not self._config.get("preempt_signal"):  # which the request to leave has sent
            self._signal_all(signal.SIGTERM)
        return {"grace": grace}

    def _end_recorder(self) -> None:
        """Wait until what the code has logged is recorded, but not for long."""
        recorder = self._recorder
        if recorder is None:
            return
        short = self._flag.preempt or self._killed
        deadline = time.monotonic() + (_SHORT_GRACE if short else _RECORDER_GRACE)
        recorder.close()
        while recorder.is_searching and time.monotonic() < deadline:
            self._wait(timeout=0.1)
        recorder.close_channel()
        while recorder.is_running and time.monotonic() < deadline:
            self._wait(timeout=0.5)
        recorder.kill()

    def _finish(self, status: int) -> int:
        # In this order: a signal that raises the flag after the first line must not make a failure
        # look like the end of a preempted run, and an earlier signal is reported before the end.
        preempted = self._flag.preempt
        self._on_signals()
        self._report_flags()
        self._report(
            {
                "event": "ended",
                "node": self._rank,
                "exit_code": status,
                "by_itself": self._failure if self._killed else status,
                "preempted": preempted,
                "acknowledged": self._flag.acknowledged,
                "why": self._why,
                "unprepared": self._unprepared,
                "sigint": self._got_sigint,
                "oom_kills": oom_kills() - self._oom_kills,
                "deleted": self._deleted,
            }
        )
        # Without a limit: these are the last lines, and how the run ended. A slow reader gets its
        # time; with a reader that is gone the write fails, which ends this process.
        while self._to_runner.waiting:
            self._wait(timeout=0.5)
        # At a bad status srun ends the other nodes within KillWait, and they may still be saving:
        # the runner has it from the report, and gives them their time.
        return 0 if preempted else status

    # -- events ----------------------------------------------------------------------------------

    def _wait(self, timeout: float) -> None:
        """Handle the events that are there, or wait for the first event."""
        extra = list(self._of_the_moment())
        for fd, event, act in extra:
            self._selector.register(fd, event, act)
        ready = self._selector.select(timeout)
        for fd, _, _ in extra:
            self._selector.unregister(fd)
        for key, _ in ready:
            key.data()
        if self._output is not None:
            self._log_bytes(self._output.overdue())

    def _of_the_moment(self) -> Iterator[tuple[int, int, Callable[[], object]]]:
        """The processes still to wait for."""
        # Back pressure: with too much waiting for the runner or a matcher, the code's output is not
        # read. Its pipe fills and the code blocks, instead of this process growing without bound.
        if self._to_runner.waiting:
            yield self._to_runner.fileno(), selectors.EVENT_WRITE, self._to_runner.push
        for matcher in self._policies.matchers:
            yield matcher.fileno(), selectors.EVENT_READ, partial(self._on_matcher, matcher)
            if matcher.writer.waiting:
                yield matcher.writer.fileno(), selectors.EVENT_WRITE, matcher.push
        behind = self._to_runner.full or self._policies.behind
        if self._recorder is not None:
            for fd, writes, act in self._recorder.events():
                yield fd, selectors.EVENT_WRITE if writes else selectors.EVENT_READ, act
            behind |= self._recorder.is_behind
        if self._output is not None and not behind:
            assert self._child is not None and self._child.stdout is not None
            yield self._child.stdout.fileno(), selectors.EVENT_READ, self._read_output

    def _on_matcher(self, matcher: PatternMatcher) -> None:
        found = matcher.result()
        self._policies.matchers.remove(matcher)
        if found:
            self._report_match(matcher.match)
        elif found is None:
            self._log_message(
                f"log policy {matcher.match.name!r} is no longer looked for:"
                " its pattern takes too long on what the code prints"
            )

    def _on_signals(self) -> None:
        came = self._inbox.take()
        if signal.SIGTERM in came:
            self._flag.request_preemption()
            self._report({"event": "preempted", "node": self._rank})
        self._got_sigint |= signal.SIGINT in came
        # With cgroups Slurm's signals reach the step's tasks alone, without them every process. So
        # SIGUSR1 ("dump your stacks") is passed on in the first case only, and only to those that
        # have a handler: it would end the others.
        if signal.SIGUSR1 in came and processes.in_cgroup_of_step():
            below = processes.descendants(os.getpid())
            processes.signal_each(processes.catching(below, signal.SIGUSR1), signal.SIGUSR1)

    def _on_commands(self) -> None:
        chunk = os.read(sys.stdin.fileno(), 65536)
        if not chunk:
            # The runner has died, by kill -9 or with its node: no process would record how this run
            # ends, and its job may be started again at any moment. A second copy must not train.
            self._kill()
        for line in self._commands.feed(chunk):
            command = line.decode()
            if command == agent_protocol.PREEMPT:
                self._flag.request_preemption()
            elif command == agent_protocol.KILL:
                return self._kill()  # once: the runner repeats it for every node that fails
            elif command.startswith(agent_protocol.PEERS):
                peers = agent_protocol.from_json(command.removeprefix(agent_protocol.PEERS))
                self._peers = {**peers, "container_rank": self._rank}

    def _kill(self) -> None:
        if self._child is None:
            raise SystemExit(137)
        # A pipe at its end is always readable, which would keep the loop busy. The kill shows
        # as the child's exit, and the usual path ends what that leaves.
        self._selector.unregister(sys.stdin.fileno())
        self._failure = self._flag.failure
        self._killed = True
        self._signal_all(signal.SIGKILL)

    def _read_output(self) -> bool:
        """Pass on what the code printed; False when there is nothing more to read for now."""
        assert self._child is not None and self._child.stdout is not None
        if self._output is None:
            return False
        fd = self._child.stdout.fileno()
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            return False
        self._log_bytes(self._output.feed(chunk) if chunk else self._output.close())
        if not chunk:
            self._output = None
        return bool(chunk)

    # -- to the runner ---------------------------------------------------------------------------

    def _log_bytes(self, lines: Iterator[bytes]) -> None:
        texts = [self._with_own_names(line.decode("utf-8", "replace")) for line in lines]
        self._log_lines(texts)
        if self._recorder is not None:
            self._recorder.search(texts)

    def _with_own_names(self, text: str) -> str:
        # The copy is deleted, but its user has the same files: tracebacks name them relative to it.
        if 'File "' not in text or self._copy is None:
            return text
        if self._frame_of_copy is None:  # only here: most code has no traceback
            self._frame_of_copy = f'File "{self._copy.resolve()}/'
        return text.replace(self._frame_of_copy, 'File "')

    def _log_lines(self, lines: list[str]) -> None:
        for match in self._policies.matches(lines):
            self._report_match(match)
        out = []
        for line in lines:
            line = agent_protocol.sanitized(line)
            line = line if line.startswith("[rank=") else f"[rank={self._rank}] {line}"
            out.append(agent_protocol.log_line(self._rank, line))
        if out:
            self._to_runner.put(b"".join(out))

    def _report_match(self, match: PolicyMatch) -> None:
        policy = {"name": match.name, "action": match.action}
        self._report({"event": "policy", "node": self._rank, **policy})

    def _log_message(self, text: str) -> None:
        self._log_lines([f"detslurm: {text}"])

    def _report(self, report: Mapping[str, Any]) -> None:
        self._to_runner.put(agent_protocol.report_line(dict(report)))


def _processes(count: int) -> str:
    return counted(count, "process", "processes")


def _hook_failure(workdir: Path) -> str | None:
    try:
        return f"{HOOK_EXIT}{int((workdir / HOOK_FAILED).read_text())}"
    except (OSError, ValueError):
        return None  # it did not fail


def _library_of(workdir: Path) -> Path:
    return workdir.with_name(f"{workdir.name}-lib")


def _slot_ids(allocation: Allocation, config: Mapping[str, Any]) -> list[int]:
    """Indices of this node's slots: GPUs as Slurm names them, or CPU slots counted from 0."""
    if allocation.slot_ids:
        ids = allocation.slot_ids
        return [int(gpu) if gpu.isdigit() else index for index, gpu in enumerate(ids)]
    slots = (config.get("resources") or {}).get("slots_per_trial") or 1
    return list(range(max(slots // allocation.node_count, 1)))


def main(argv: list[str]) -> int:
    experiment_dir, trial_id, run = Path(argv[0]), int(argv[1]), int(argv[2])
    try:
        agent = Agent(experiment_dir, trial_id, run)
    except StoreError as err:
        return _end_unread(err)
    status = agent.run()
    # Slurm's signal may come this late, and a bad status would end the nodes that still save.
    ignore_signals()
    return status


def _end_unread(error: StoreError) -> int:
    """The node is to blame: it has not come so far as to be an agent. The runner has to know."""
    allocation = Allocation.from_environment()
    why = f"{os.uname().nodename} can't read the store: {error}"
    if allocation is None:
        raise SystemExit(f"detslurm agent: {why}")
    node = allocation.node_rank
    ended = {"event": "ended", "node": node, "exit_code": 1, "by_itself": 1, "why": why}
    untouched = {"preempted": False, "acknowledged": False, "unprepared": True}
    write_all(1, agent_protocol.log_line(node, f"[rank={node}] detslurm: {why}"))
    write_all(1, agent_protocol.report_line(ended | untouched))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
