"""The node agent: runs the entrypoint of one run on one node and mediates between it and Slurm.

Slurm's preemption sends SIGTERM to every process of the step, so the agent learns of it together
with everything that it started. It raises the node's preemption flag, reports to the runner, and
waits for the code to exit; processes that remain are ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm._base import child_processes as processes
from detslurm._base import contract
from detslurm._base.flag import PreemptFlag, ignore_signals
from detslurm._base.node_files import is_noexec, remove, sweep, temporary_directory
from detslurm._base.states import FailureKind
from detslurm.exec import agent_protocol
from detslurm.exec.agent_loop import AgentLoop
from detslurm.exec.code_process import CodeProcess, oom_kills
from detslurm.exec.entrypoint import CANT_EXECUTE, hook_failure
from detslurm.exec.line_splitter import LineSplitter
from detslurm.exec.node_preparation import NodePreparation
from detslurm.exec.node_run import NodeRun, NotReady
from detslurm.exec.runner_link import RunnerLink, next_run, report_unread
from detslurm.exec.signals import SignalInbox, discard_signals
from detslurm.exec.workdir import top_names, written_names
from detslurm.store import StoreError

if TYPE_CHECKING:
    from detslurm.exec.container_run import ContainerRun
    from detslurm.exec.outputs import NodeOutputs
    from detslurm.exec.preempt_signal import PreemptSignal
    from detslurm.exec.trial_arguments import TrialArguments
    from detslurm.exec.usage_sampler import UsageSampler
    from detslurm.exec.warm_start import WarmChild, WarmPython

# Seconds that log policies may take at the end for what they have not searched yet: in the grace of
# a preemption the runner needs the time to record the end.
_SEARCH_GRACE, _SEARCH_GRACE_PREEMPTED = 20.0, 1.0
# The same for the recorder, whose store may be slow; and where the step may be killed soon.
_RECORD_GRACE = {False: 120.0, True: 5.0}
# Seconds from the request to stop to the kill of code that does not watch for one.
_STOP_GRACE = 30.0


class Agent:
    """One node's part of one run; `warm` is what runs of a job with `warm_start` share."""

    def __init__(
        self, experiment_dir: Path, trial_id: int, run: int, warm: WarmPython | None = None
    ) -> None:
        # Anybody may send these to a step, also while the store is still being read, and their
        # default action would end the agent.
        discard_signals()
        self._node = NodeRun.read(experiment_dir, trial_id, run)
        self._link = RunnerLink(self._node.rank, self._node.config.log_policies)
        self._flag = PreemptFlag.create()
        # In the handler itself: ranks must see the flag even while this process is blocked in a
        # read from a slow file system. The handler only writes one byte to the flag's file.
        raise_flag = {signal.SIGTERM: self._flag.request_preemption}
        handled = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
        self._inbox = SignalInbox(handled, raise_flag)
        # The peers of thousands of nodes are one command, and a piece of it would be none.
        self._commands = LineSplitter(1 << 24, rewrites=False)
        self._loop = loop = AgentLoop()
        loop.watch(sys.stdin.fileno(), self._on_commands)
        loop.watch(self._inbox.fileno(), self._on_signals)
        self._preparation = NodePreparation(self._node, self._link, self._flag, loop.wait)
        self._code = CodeProcess(self._link, self._flag, loop.wait)
        loop.sources += [self._link.events, self._code.events]
        self._preempt_signal = self._configured_signal()
        self._outputs = self._configured_outputs()
        self._reported: set[str] = set()  # of the flags that ranks raise
        self._why: str | None = None  # the failure, where the exit status does not show it
        self._kind: FailureKind | None = None  # of the failure in `_why`
        self._deleted: str | None = None  # what the code has written beside itself
        self._unprepared = self._got_sigint = self._is_preempted = False
        self._container: ContainerRun | None = None
        self._is_first = warm is None  # in its step: later the one before has left nothing
        self.warm = self._configured_warmth(warm)
        self._oom_kills = oom_kills()

    def _configured_signal(self) -> PreemptSignal | None:
        if (name := self._node.config.preempt_signal) is None:
            return None
        from detslurm.exec.preempt_signal import PreemptSignal  # only here: others pay nothing

        found = PreemptSignal.configured(name, self._node, self._link, self._flag)
        self._loop.sources.append(found.events)
        return found

    def _configured_outputs(self) -> NodeOutputs | None:
        if self._node.start.outputs is None:
            return None
        from detslurm.exec.outputs import NodeOutputs  # only here: others pay nothing

        found = NodeOutputs(self._node, self._link)
        self._loop.sources.append(found.events)
        return found

    def _configured_warmth(self, warm: WarmPython | None) -> WarmPython | None:
        node = self._node
        if not node.config.slurm.warm_start or node.allocation.node_count > 1 or node.is_contained:
            return None
        from detslurm.exec.warm_start import WarmPython  # only here: others pay nothing

        warm = warm or WarmPython()
        self._loop.sources.append(warm.events)
        return warm

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the entrypoint to its end; returns the exit status for the step."""
        self._link.report("up")
        if self._is_first or self._node.start.run > 1:
            self._preparation.end_orphans()
        self._preparation.stage_environment()
        if self._outputs is not None and (problem := self._outputs.prepare()):
            return self._finish_unprepared(problem)
        try:
            self._preparation.meet()
        except OSError as err:
            return self._finish_unprepared(f"can't meet the other nodes: {err}")
        try:
            workdir = self._preparation.make_workdir()
        except (StoreError, OSError) as err:
            return self._finish_unprepared(f"can't prepare the working directory: {err}")
        try:
            if self._outputs is not None and (problem := self._outputs.place(workdir)):
                return self._finish_unprepared(problem)
            copied = top_names(workdir)
            status = self._supervise(workdir)
            if status and is_noexec(workdir):
                self._blame_noexec(status, workdir.parent)
            if status and self._container is not None:
                self._blame_runtime(self._container, status)
            if self._outputs is not None:
                self._outputs.end()
            self._log_deletion(workdir, copied)
        finally:
            remove(workdir)
            if self._container is not None:
                self._container.remove_traces()
            sweep.cache_clear()  # the code's processes have ended since, and some were killed
            sweep(Path(temporary_directory()))
        return self._finish(status)

    def _finish_unprepared(self, why: str) -> int:
        """The node is to blame, for the code has not begun."""
        self._link.log_message(why)
        self._why = f"{os.uname().nodename} {why}"
        self._unprepared = True
        return self._finish(1)

    def _supervise(self, workdir: Path) -> int:
        self._link.copy, code = workdir, self._code
        assert self._preparation.peers is not None
        try:
            environment = self._node.environment(self._preparation.peers, self._flag.name)
            if self._outputs is not None and self._outputs.is_used:
                environment |= self._outputs.variables(environment)
            self._log_not_passed_on(environment)
            environment = self._recorded(environment)
            placed = self._node.placed(environment, self._preparation.staged, workdir)
            blocked: list[signal.Signals] = []
            if self._preempt_signal is not None:
                placed, blocked = self._preempt_signal.begin(placed)
            arguments = self._node.arguments()
            if arguments is not None and self._node.rank == 0:
                self._link.log_message(f"arguments: {arguments.shown}")
            argv = self._node.argv(workdir, arguments)
            if self._node.is_contained:
                # Only here: others pay nothing.
                from detslurm.exec.container_run import ContainerRun
                from detslurm.exec.containers import contained

                self._container = ContainerRun(self._node.config, workdir)
                argv, placed = contained(self._node, argv, placed, workdir)
            child = self._warm_child(arguments, placed, workdir)
            if child is None:
                code.start(argv, placed, workdir, blocked)
            else:
                code.take(child)
        except (OSError, ValueError) as err:
            self._link.log_message(f"can't start the entrypoint: {err}")
            return 127 if isinstance(err, FileNotFoundError) else CANT_EXECUTE
        except NotReady as err:
            self._link.log_message(str(err))
            self._why, self._kind, self._unprepared = str(err), FailureKind.CONTAINER, True
            return CANT_EXECUTE
        container = self._container
        with self._usage_sampler() as sampler:
            # Usually the end of the output wakes the loop when the child exits, but a process that
            # keeps the pipe open prevents that: so it polls, too.
            while code.is_running or (container is not None and container.is_running()):
                self._loop.wait(0.5)
                self._report_flags()
                self._report_usage(sampler)
                if container is not None and container.hangs():
                    code.kill_starter()
            code.end_remaining()
        self._report_usage(sampler)
        code.read_rest()
        grace = _SEARCH_GRACE_PREEMPTED if self._flag.preempt else _SEARCH_GRACE
        self._link.end_search(self._loop.wait, grace)
        if self._link.recorder is not None:
            short = self._flag.preempt or code.killed
            self._link.recorder.end(self._loop.wait, _RECORD_GRACE[short])
        if (why := hook_failure(workdir)) is not None:
            self._why, self._kind = why, FailureKind.STARTUP_HOOK
        status = code.exit_status()
        if container is not None:
            status = container.exit_status(status, is_preempted=self._flag.preempt)
        if status and self._flag.preempt and self._node.has_plain_launcher(workdir):
            return 128 + signal.SIGTERM  # of ranks that end by the signal it has 1 alone
        return status

    def _warm_child(
        self, arguments: TrialArguments | None, environment: Mapping[str, str], workdir: Path
    ) -> WarmChild | None:
        """The code as a fork of the warm interpreter, or None where it needs a new process."""
        if self.warm is None:
            return None
        from detslurm.config.entrypoints import python_command  # only here
        from detslurm.exec.warm_start import NeedsNewProcess

        words = python_command(self._node.config.entrypoint, arguments.words if arguments else ())
        try:
            if words is None or (workdir / "startup-hook.sh").exists():
                raise NeedsNewProcess("a shell has to start the code")
            processes.become_subreaper()
            try:
                child = self.warm.start(words, environment, workdir)
            finally:  # a run with a new process leaves it alone, too
                self._code.spared = self.warm.pids
            while child.is_pending:  # it may still import
                self._loop.wait(0.5)
            if child.refusal is not None:
                raise NeedsNewProcess(child.refusal)
        except NeedsNewProcess as err:
            self._link.log_message(f"warm_start: this run gets a new process: {err}")
            return None
        return child

    def _recorded(self, environment: dict[str, str]) -> dict[str, str]:
        """Start the recorder if there is to be one; the environment in which hooks find it."""
        config = self._node.config
        if self._node.rank or not (config.record or config.metrics_from_log):
            return environment
        from detslurm.exec.recorder import RunRecorder  # only here: others pay nothing

        try:
            flag, log = Path(self._flag.name), self._link.log_message
            self._link.recorder = RunRecorder(config, flag, log, environment)
        except OSError as err:  # the code runs without its metrics rather than not at all
            log(f"record: the recorder can't be started: {err}")
            return environment
        return self._link.recorder.code_environment(environment)

    def _log_not_passed_on(self, environment: Mapping[str, str]) -> None:
        """Name what the job's setup or the site has set for ranks that some launcher starts."""
        job = filter(contract.is_of_a_launcher, os.environ)
        names = sorted(name for name in job if environment.get(name) != os.environ[name])
        if names and self._node.rank == 0:
            self._link.log_message(
                f"not passed on: {', '.join(names)}, which the job has from its setup or its site;"
                " name in environment.environment_variables what the code is to have"
            )

    def _usage_sampler(self) -> UsageSampler:
        # Only here, while the code runs: no process waits for these imports.
        from detslurm.exec.run_processes import RunProcesses
        from detslurm.exec.usage_sampler import UsageSampler

        own, shared = self._link.own_processes, self._code.spared
        processes_of_run = RunProcesses(self._node.mark, own, shared=shared)
        return UsageSampler(processes_of_run, self._node.allocation.slot_ids)

    def _report_usage(self, sampler: UsageSampler) -> None:
        for sample in sampler.take():
            self._link.report("usage", **sample)

    def _blame_noexec(self, status: int, place: Path) -> None:
        why = f"no program can be started in {place}, which is mounted noexec: set another TMPDIR"
        self._link.log_message(f"{why}; compiled modules beside the code can't be loaded either")
        if status == CANT_EXECUTE and self._why is None:
            self._why, self._kind, self._unprepared = why, FailureKind.NOEXEC, True

    def _blame_runtime(self, container: ContainerRun, status: int) -> None:
        """Find out whether the code has begun in its container."""
        why = container.blame(status, self._link.last_line)
        asked = self._flag.preempt or self._code.killed
        if why is not None and not asked and self._why is None:
            self._link.log_message(why)
            self._why, self._kind, self._unprepared = why, FailureKind.CONTAINER, True

    def _log_deletion(self, workdir: Path, copied: Collection[str]) -> None:
        """Name the files that the code has written beside itself: they are deleted with it."""
        names = written_names(workdir, copied)
        if names is not None and self._node.rank == 0:
            self._deleted = names
            self._link.log_message(
                f"deleted with the working directory: {names}. To keep files, name them in"
                " `outputs` of the configuration, or save them in a checkpoint"
            )

    def _finish(self, status: int) -> int:
        # In this order: a signal that raises the flag after the first line must not make a failure
        # look like the end of a preempted run, and an earlier signal is reported before the end.
        preempted = self._flag.preempt
        self._on_signals()
        self._report_flags()
        self._link.report(
            "ended",
            exit_code=status,
            by_itself=self._code.failure if self._code.killed else status,
            preempted=preempted,
            acknowledged=self._flag.acknowledged,
            why=self._why,
            kind=self._kind,
            unprepared=self._unprepared,
            sigint=self._got_sigint,
            oom_kills=oom_kills() - self._oom_kills,
            deleted=self._deleted,
        )
        # Without a limit: these are the last lines, and how the run ended. A slow reader gets its
        # time; with a reader that is gone the write fails, which ends this process.
        while self._link.is_waiting:
            self._loop.wait(0.5)
        # At a bad status srun ends the other nodes within KillWait, and they may still be saving:
        # the runner has it from the report, and gives them their time.
        return 0 if preempted else status

    def close(self) -> bool:
        """Let go of what this run had; whether this process may serve another run."""
        # From here on a preemption ends this process, as it ends a step that begins.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._on_signals()
        if self._is_preempted or self._code.has_left:
            return False
        processes.reap()
        self._inbox.close()
        self._loop.close()
        self._preparation.close()
        self._flag.close()
        return True

    # -- events ----------------------------------------------------------------------------------

    def _report_flags(self) -> None:
        """Report what ranks of this node have flagged, so that the runner stops all nodes."""
        if self._flag.stop and "stop" not in self._reported:
            self._flag.request_preemption()  # the search wants no more of this trial
            self._report_once("stop", **self._stop_unwatched())
        if self._flag.early_exit:
            self._report_once("invalid_hp")

    def _report_once(self, event: str, **fields: float) -> None:
        if event not in self._reported:
            self._reported.add(event)
            self._link.report(event, **fields)

    def _stop_unwatched(self) -> dict[str, float]:
        """Signal code that does not watch for the search's decision; how long it may take then."""
        recorder = self._link.recorder
        if recorder is None or not recorder.is_running:
            return {}  # the code itself takes part in the search
        if not self._node.config.preempt_signal:  # which the request to leave has sent
            self._code.terminate()
        return {"grace": self._node.config.preemption_timeout or _STOP_GRACE}

    def _on_signals(self) -> None:
        came = self._inbox.take()
        own = self._preempt_signal
        asked = signal.SIGTERM in came or (own is not None and own.came_from_slurm(came))
        self._is_preempted |= asked
        if asked:
            self._flag.request_preemption()
            self._link.report("preempted")
        self._got_sigint |= signal.SIGINT in came
        # With cgroups Slurm's signals reach the step's tasks alone, without them every process. So
        # SIGUSR1 ("dump your stacks") is passed on in the first case only, and only to those that
        # have a handler: it would end the others.
        if signal.SIGUSR1 in came and not asked and processes.in_cgroup_of_step():
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
                self._preparation.on_peers(command.removeprefix(agent_protocol.PEERS))

    def _kill(self) -> None:
        if not self._code.has_begun:
            raise SystemExit(137)
        # A pipe at its end is always readable, which would keep the loop busy. The kill shows
        # as the child's exit, and the usual path ends what that leaves.
        self._loop.unwatch(sys.stdin.fileno())
        self._code.kill()


def main(argv: list[str]) -> int:
    experiment_dir, trial_id, run = Path(argv[0]), int(argv[1]), int(argv[2])
    warm = None
    while True:
        try:
            agent = Agent(experiment_dir, trial_id, run, warm)
        except StoreError as err:
            return report_unread(err)
        status = agent.run()
        warm = agent.warm
        if warm is None or status or not agent.close():
            break
        # A failed or preempted run, too, ends the step: what comes next begins anew.
        following = next_run()
        if following is None:
            break
        trial_id, run = following
    # Slurm's signal may come this late, and a bad status would end the nodes that still save.
    ignore_signals()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
