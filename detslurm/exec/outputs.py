"""The outputs of a trial: a directory on the shared file system, the same for each of its runs.

The code finds it behind links in its working directory. They lead through a link of the run's own
(`run-N.outputs` in the trial's directory), which the next run removes: a zombie that still writes
by these paths then gets an error, instead of changing the files of its successor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from detslurm._base import contract
from detslurm.config.run_config import RunOutputs
from detslurm.exec.agent_loop import FileEvent
from detslurm.exec.node_run import NodeRun
from detslurm.exec.runner_link import RunnerLink
from detslurm.storage.files import copy_selected, copy_whole, is_directory, remove_tree
from detslurm.store import TrialDir

# Seconds between two looks at files that the code may have put in the place of a link.
_PERIOD = 20.0


def is_file_name(name: str) -> bool:
    """Whether a path of `outputs` is a file's: its name has a suffix, and no slash behind it."""
    return bool(PurePosixPath(name).suffix) and not name.endswith("/")


class NodeOutputs:
    """One node's part: the directory, the links to it, and files that replace a link."""

    def __init__(self, node: NodeRun, link: RunnerLink) -> None:
        claim = node.start.outputs
        assert claim is not None and claim.path is not None
        self.path = Path(claim.path)
        self._link, self._copy = link, claim.copy
        self._trial: TrialDir = node.experiment.trial(node.start.trial)
        self._run: int = node.start.run
        section = node.config.outputs or RunOutputs()
        self._paths = section.paths
        self._is_chief = node.rank == 0
        self.is_used = self._is_chief or section.shared
        """Whether the code of this node uses the directory."""
        self._workdir: Path | None = None
        self._kept: dict[str, tuple[int, int]] = {}  # the size and time of replaced files
        self._next_look = time.monotonic() + _PERIOD

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables by which code finds the directory."""
        variables = {contract.TRIAL_DIR: str(self.path)}
        if not environment.get("WANDB_DIR"):
            # W&B's offline runs would be deleted with the working directory.
            variables["WANDB_DIR"] = str(self.path)
        return variables

    def prepare(self) -> str | None:
        """Make the directory this run's, on the first node, before any begins; or return why that
        failed."""
        try:
            if self._is_chief:
                if not is_directory(self.path):
                    self._make()
                self._fence()
        except OSError as err:
            return f"can't prepare the trial's outputs in {self.path}: {err.strerror or err}"
        return None

    def _make(self) -> None:
        base = self.path.parent
        if self._run > 1 and not is_directory(base):
            raise FileNotFoundError(
                2, f"{base}, with what earlier runs left there, is not on this node"
            )
        if self._run > 1:
            self._link.log_message(f"outputs: {self.path} is gone, and this run begins without any")
        base.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.partial")
        remove_tree(partial)
        partial.mkdir(0o700)
        if self._copy is not None:
            if not is_directory(Path(self._copy)):
                raise FileNotFoundError(2, f"the outputs to begin with, {self._copy}, are gone")
            copy_selected(Path(self._copy), partial, None)
            self._link.log_message(f"outputs: begins with a copy of {self._copy}")
        partial.rename(self.path)  # whole: a copy that was cut short is not taken for one

    def _fence(self) -> None:
        for number in range(1, self._run):
            self._trial.outputs_path(number).unlink(missing_ok=True)
        own = self._trial.outputs_path(self._run)
        own.unlink(missing_ok=True)
        own.symlink_to(self.path)

    def place(self, workdir: Path) -> str | None:
        """Put the links into the working directory; or return why that failed."""
        try:
            if self.is_used:
                self._place(workdir)
        except OSError as err:
            return f"can't link the trial's outputs in {self.path}: {err.strerror or err}"
        return None

    def _place(self, workdir: Path) -> None:
        self._workdir, root = workdir, self._trial.outputs_path(self._run)
        for name in self._paths:
            place, target = workdir / name, root / name
            place.parent.mkdir(parents=True, exist_ok=True)
            (target.parent if is_file_name(name) else target).mkdir(parents=True, exist_ok=True)
            remove_tree(place) if place.is_dir() else place.unlink(missing_ok=True)
            place.symlink_to(target)

    def events(self) -> Iterator[FileEvent]:
        """Copy replaced files now and then: the loop asks before each wait."""
        if self._workdir is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _PERIOD
            self._keep([name for name in self._paths if is_file_name(name)])
        return iter(())

    def end(self) -> None:
        """Copy all that the code has put in the place of a link, before it is deleted."""
        if self._workdir is not None:
            self._keep(self._paths)

    def _keep(self, names: Sequence[str]) -> None:
        assert self._workdir is not None
        for name in names:
            source, target = self._workdir / name, self.path / name
            try:
                if source.is_symlink() or not source.exists():
                    continue
                status = source.stat()
                seen = (status.st_size, status.st_mtime_ns)
                if source.is_file() and self._kept.get(name) == seen:
                    continue
                self._copy_over(source, target)
            except OSError as err:
                self._link.log_message(f"outputs: {name} can't be kept: {err}")
                continue
            if name not in self._kept:
                self._link.log_message(f"outputs: the code replaced the link {name}: copied")
            self._kept[name] = seen

    def _copy_over(self, source: Path, target: Path) -> None:
        # A zombie has no link any more, and its copies must not reach the next run's files.
        if not self._trial.outputs_path(self._run).is_symlink():
            raise OSError("another run of the trial uses the directory now")
        if source.is_dir():
            copy_selected(source, target, None)
        else:
            copy_whole(source, target)
