"""What rows are measured with: a scratch folder, an environment, and a Slurm cluster on demand."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from compileall import compile_dir
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers import REPOSITORY
from benchmarks.report import Skip
from tests.cluster import Cluster, ClusterSpec, User, guarded, missing_programs


@dataclass
class Bench:
    """One session of measuring; use it as a context manager."""

    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        # An ordinary user can't leave compiled modules here, and would compile all at each command.
        for sources in ("detslurm", "sdk", "launchers", "templates"):
            compile_dir(REPOSITORY / sources, quiet=2)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def folder(self) -> Path:
        """A fresh scratch folder, removed with the session."""
        path = Path(tempfile.mkdtemp(prefix="detslurm-bench-"))
        self._stack.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    def environment(self, root: Path) -> dict[str, str]:
        """An environment with this Python's commands in front and a store of its own."""
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(root),
            "DETSLURM_ROOT": str(root / "store"),
            "DETSLURM_SITE": os.devnull,
            "LANG": "C.UTF-8",
        }

    @cached_property
    def cluster(self) -> Cluster:
        """The suite's own Slurm: 4 nodes of 8 CPUs on this machine. Raises `Skip` without Slurm."""
        missing = missing_programs(accounting=True)
        if missing:
            raise Skip(f"not installed: {', '.join(missing)}")
        return self._stack.enter_context(guarded(Cluster(ClusterSpec(name="bench"))))

    @cached_property
    def user(self) -> User:
        """An ordinary user of that cluster, with a store and a working directory."""
        user = self.cluster.user("alice")
        folder = user.folder_in(self.cluster.layout.shared, "bench")
        path = f"{Path(sys.executable).parent}:{user.env['PATH']}"
        env = user.env | {"DETSLURM_ROOT": str(folder / "store"), "PATH": path}
        return replace(user, cwd=folder, env=env)
