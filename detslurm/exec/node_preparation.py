"""Prepares a node before the code begins: orphans, the staged environment, the other nodes, the
working directory."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base.flag import PreemptFlag
from detslurm._base.node_files import directory_for_programs, temporary_directory
from detslurm._base.quantities import counted
from detslurm.exec import agent_protocol, ports
from detslurm.exec.environment import interface_of, user_variables
from detslurm.exec.node_run import NodeRun, retried
from detslurm.exec.orphans import end_orphans
from detslurm.exec.runner_link import RunnerLink
from detslurm.exec.workdir import make_workdir
from detslurm.store import StoreError, StoreFault

if TYPE_CHECKING:
    from detslurm.exec.staging import StagedEnvironment

_ALONE = "127.0.0.1"  # the address of a single node, found without loading sockets


class NodePreparation:
    """This node's part in the start of a run; `wait` lets the agent's loop run meanwhile."""

    def __init__(
        self, node: NodeRun, link: RunnerLink, flag: PreemptFlag, wait: Callable[[float], None]
    ) -> None:
        self.peers: dict[str, Any] | None = None
        """The addresses and slots of all nodes; None until they have met."""
        self.staged: StagedEnvironment | None = None
        self._node, self._link, self._flag, self._wait = node, link, flag, wait
        self._port: ports.Reservation | None = None

    def end_orphans(self) -> None:
        """End what earlier runs left here, before any node of this one begins."""
        # A process of an earlier run may still write checkpoints, or hold memory of the GPUs.
        found, left = end_orphans(self._node.mark, self._is_over)
        if found:
            processes = counted(found, "process", "processes")
            self._link.log_message(f"ended {processes} that an earlier run had left on this node")
        if left:
            self._link.log_message(
                f"{left} of them don't end: they may still use what this run needs"
            )

    def _is_over(self, trial: int, run: int) -> bool:
        try:
            return self._node.experiment.trial(trial).end(run, fresh=True) is not None
        except StoreError:
            return False  # unknown: a process is only killed where its run is known to be over

    # -- the environment -------------------------------------------------------------------------

    def stage_environment(self) -> None:
        """Stage it before the nodes meet, so that the code begins on all of them together."""
        environment = self._node.start.environment
        if environment is None:
            return
        from detslurm.exec.staging import NotStaged, stage  # only here: others pay nothing

        begun = time.monotonic()
        try:
            self.staged = stage(environment, wait=self._wait, stopped=lambda: self._flag.preempt)
        except NotStaged as err:
            self._not_staged(str(err))
        else:
            self._link.log_message(
                f"the environment {environment['prefix']}, as it was at the submission, is in"
                f" {self.staged.path} (after {time.monotonic() - begun:.1f} s)"
            )

    def _not_staged(self, why: str) -> None:
        environment = self._node.start.environment or {}
        where = environment["prefix"]
        self._link.log_message(f"not staged: {why}; the code runs with {where} as it is now")
        self.staged = None
        self._link.report("not_staged", why=why)

    # -- the other nodes -------------------------------------------------------------------------

    def meet(self) -> None:
        """Wait until every node has reported its address and slots to the runner."""
        node = self._node
        here: dict[str, Any] = {"addr": self._address(), "slots": len(node.slot_ids)}
        if self.staged is not None:
            here["environment"] = self.staged.path
        # Kept open until the agent ends: the code can bind this port, and no other job gets it.
        if node.rank == 0:
            self._port = ports.reserve(f"{node.allocation.ref}.{node.start.run}")
            here["port"] = self._port.port
        if node.allocation.node_count == 1:
            self.peers = {
                "container_addrs": [here["addr"]],
                "container_rank": 0,
                "container_slot_counts": [here["slots"]],
                "port": here["port"],
                "token": agent_protocol.new_token(),
            }
            return
        self._link.report("arrived", **here)
        # A node may never arrive: the runner has the deadline, since it alone sees all nodes, and
        # ends the waiting agents by a command or by closing their standard input.
        while self.peers is None:
            self._wait(1.0)
        # Launchers name their own Python when they start ranks on other nodes.
        if self.staged is not None and self.peers.get("environment") != self.staged.path:
            self._not_staged("other nodes could not, or have it elsewhere")

    def _address(self) -> str:
        allocation, config = self._node.allocation, self._node.config
        if allocation.node_count == 1:
            return _ALONE
        from detslurm._base.addresses import own_address

        interface = interface_of(config, user_variables(config, allocation.slot_ids))
        return own_address(allocation.nodes, self._node.rank, interface)

    def close(self) -> None:
        """Let other runs have this node's port."""
        if self._port is not None:
            self._port.close()

    def on_peers(self, message: str) -> None:
        """Take in the runner's message about all nodes."""
        self.peers = {**agent_protocol.from_json(message), "container_rank": self._node.rank}

    # -- the working directory -------------------------------------------------------------------

    def make_workdir(self) -> Path:
        """Copy the code to this node. Raises `StoreError` or `OSError`."""
        workdir = retried(self._copy_code)
        if self._node.config.arguments is not None:
            from detslurm.exec.trial_arguments import write_file  # only here: others pay nothing

            write_file(self._node.config, self._node.start.hparams or {}, workdir)
        return workdir

    def _copy_code(self) -> Path:
        start, experiment = self._node.start, self._node.experiment
        label = f"{start.experiment}.{start.trial}.{start.run}"
        experiment.refuse_others_code()  # nodes may have waited for each other for minutes
        try:
            return make_workdir(experiment.code, label, tmp=Path(self._place()))
        except OSError as err:
            raise StoreFault(str(err), err.errno or errno.EIO, str(experiment.code)) from err

    def _place(self) -> str:
        """Where the working directory lies."""
        if self._node.is_contained:
            return temporary_directory()  # which a container sees
        place = directory_for_programs()
        if place != temporary_directory():
            self._link.log_message(
                f"{temporary_directory()} is mounted noexec: the working directory is in {place}"
            )
        return place
