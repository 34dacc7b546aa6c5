"""One run as the agent of a node reads it, and the command and environment of its code there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from detslurm._base import central, contract
from detslurm.config.run_config import RunConfig
from detslurm.exec.entrypoint import (
    entrypoint_argv,
    names_plain_launcher,
    with_startup_hook,
)
from detslurm.exec.environment import is_contained, run_environment, with_commands_in
from detslurm.exec.orphans import RunMark
from detslurm.exec.text_log import print_message
from detslurm.slurm import Allocation
from detslurm.store import ExperimentDir, NotFound
from detslurm.store.retry import SHORT, with_retries
from detslurm.store.run_records import StartRecord

if TYPE_CHECKING:
    from detslurm.exec.staging import StagedEnvironment
    from detslurm.exec.trial_arguments import TrialArguments

T = TypeVar("T")


class NotReady(Exception):
    """The code's container can't begin on this node."""


class NodeRun(NamedTuple):
    """The facts of a run that one node needs; they don't change while it lasts."""

    experiment: ExperimentDir
    start: StartRecord
    config: RunConfig
    allocation: Allocation
    slot_ids: list[int]
    mark: RunMark

    @property
    def rank(self) -> int:
        """The index of this node."""
        return self.allocation.node_rank

    @classmethod
    def read(cls, experiment_dir: Path, trial_id: int, number: int) -> NodeRun:
        """Read it from the store. Raises `StoreError`."""
        experiment = ExperimentDir.at(experiment_dir)
        retried(experiment.refuse_others_code)
        start = retried(lambda: experiment.trial(trial_id).start(number, fresh=True))
        if start is None:
            raise NotFound(f"run {number} of trial {trial_id} was never started")
        config = retried(experiment.run_config)
        allocation = Allocation.from_environment()
        if allocation is None:
            raise SystemExit(
                "detslurm agent: this is not a job; the runner starts agents inside one"
            )
        return cls(
            experiment,
            start,
            config,
            allocation,
            _slot_ids(allocation, config.resources.slots_per_trial or 1),
            RunMark(str(experiment.path), trial_id, number, contract.job_of(os.environ) or ""),
        )

    @property
    def is_contained(self) -> bool:
        """Whether the code has a container of its own."""
        return is_contained(self.config, self.allocation.slot_ids)

    def arguments(self) -> TrialArguments | None:
        """The hyperparameters as arguments of the entrypoint, where the configuration wants them.

        Raises `ValueError` for a missing hyperparameter.
        """
        if self.config.arguments is None:
            return None
        from detslurm.exec.trial_arguments import arguments_of_trial  # only here

        return arguments_of_trial(self.config, self.start.hparams or {})

    def argv(self, workdir: Path, arguments: TrialArguments | None) -> list[str]:
        """The command that starts the entrypoint, behind its hook."""
        words = None if arguments is None else arguments.words
        argv = entrypoint_argv(self.config.entrypoint, words)
        if (workdir / "startup-hook.sh").exists():
            argv = with_startup_hook(argv)
        return argv

    def environment(self, peers: Mapping[str, Any], flag: str) -> dict[str, str]:
        """The environment of the code. Raises `ValueError` for an unknown `DETSLURM_COMPAT`."""
        allocation = self.allocation
        found = run_environment(
            base=self._base(),
            config=self.config,
            start=self.start,
            experiment_dir=self.experiment.path,
            node=allocation.nodes[self.rank],
            slot_ids=self.slot_ids,
            gpus=allocation.slot_ids,
            peers=peers,
            flag=flag,
        )
        if allocation.node_count > 1:
            from detslurm._base.addresses import socket_interfaces

            here = peers["container_addrs"][self.rank]
            found = socket_interfaces(found.get(contract.INTERFACE), here) | found
        return found

    def has_plain_launcher(self, workdir: Path) -> bool:
        """Whether another project's launcher starts the ranks."""
        return names_plain_launcher(self.config.entrypoint, workdir)

    def _base(self) -> Mapping[str, str]:
        """That of the job, in which the code finds its Python."""
        if self.start.environment is not None:
            folder = f"{self.start.environment['prefix']}/bin"
        elif self.is_contained:
            return os.environ
        elif (library := central.library()) is not None:
            return central.with_library(os.environ, library)
        else:
            folder = str(Path(sys.executable).parent)
        return with_commands_in(folder, os.environ)

    def placed(
        self, environment: dict[str, str], staged: StagedEnvironment | None, workdir: Path
    ) -> dict[str, str]:
        """The environment of the code for its launcher, and for where it runs."""
        if self.has_plain_launcher(workdir):
            from detslurm.exec.start_hooks import with_start_hook  # only here: others pay nothing

            environment = with_start_hook(environment, "launcher")
        if staged is not None:
            from detslurm.exec.staging import relocated

            return relocated(environment, staged)
        return environment


def retried(act: Callable[[], T]) -> T:
    """The result of `act`, retried over a hiccup of the file system."""
    return with_retries(act, lambda err: print_message(f"{err}: trying again"), SHORT)


def _slot_ids(allocation: Allocation, slots: int) -> list[int]:
    """Indices of this node's slots: GPUs as Slurm names them, or CPU slots counted from 0."""
    if allocation.slot_ids:
        ids = allocation.slot_ids
        return [int(gpu) if gpu.isdigit() else index for index, gpu in enumerate(ids)]
    return list(range(max(slots // allocation.node_count, 1)))
