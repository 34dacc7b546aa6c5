"""Collect the record of a submission in the background, while the cluster checks the job."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import detslurm
from detslurm.sdk.provenance import git, software
from detslurm.sdk.provenance.view import uncommitted
from detslurm.store import ExperimentDir, Store, StoreError, records
from detslurm.store.provenance import CodeVersion, Software, keep, read_kept

_SLACK = 1.0  # seconds for what git's and Python's limits don't count


@dataclass(frozen=True)
class CodeSource:
    """Where the answers come from. `prepared` is the part of the configuration by which jobs set up
    their own environment; the packages in a container can't be seen; frozen code is that of the
    experiment `copied_from`."""

    folder: Path
    python: str | None = None
    modules: Sequence[str] = ()
    prepared: str | None = None
    in_container: bool = False
    copied_from: ExperimentDir | None = None


class ProvenanceCollector:
    """A record that is being collected: its parts, as soon as they are needed."""

    def __init__(self, source: CodeSource, env: Mapping[str, str] = os.environ) -> None:
        self._source, self._env = source, dict(env)
        self._code: CodeVersion | None = None
        self._software: Software | None = None
        self._threads = {
            name: threading.Thread(target=target, daemon=True, name=f"provenance {name}")
            for name, target in (("software", self._find_software), ("code", self._find_code))
        }
        for thread in self._threads.values():
            thread.start()

    @property
    def code(self) -> CodeVersion:
        """The version of the code."""
        self._threads["code"].join(git.LIMIT + _SLACK)
        return self._code or CodeVersion(problem="the commit is unknown: git did not answer")

    @property
    def software(self) -> Software:
        """The software that trains."""
        self._threads["software"].join(software.LIMIT + _SLACK)
        return self._software or Software(problem="its packages are unknown")

    @property
    def note(self) -> str | None:
        """A note for the user about uncommitted changes, or about a silent git; None without
        either."""
        code = self.code
        if code.repository is None or self._source.copied_from is not None:
            return None
        changes = uncommitted(code)
        parts = [None if changes is None else f"the code has {changes}", code.problem]
        text = "; ".join(filter(None, parts))
        return f"{text[:1].upper()}{text[1:]}" or None

    def kept(self, store: Store) -> records.RecordedProvenance:
        """Keep the record in the store; what can't be kept is left out, because it never stops a
        submission."""
        return records.RecordedProvenance(
            code=_kept(store, self.code),
            software=_kept(store, self.software),
            host=os.uname().nodename,
            detslurm=detslurm.__version__,
            unsure=self._source.prepared,
        )

    def _find_code(self) -> None:
        source = self._source.copied_from
        if source is None:
            self._code = git.code_version(self._source.folder, self._env)
        else:
            self._code = _code_of(source)

    def _find_software(self) -> None:
        source = self._source
        if source.in_container:
            self._software = Software(problem="the packages in the container are unknown")
            return
        self._software = software.software_of_python(source.python, source.modules, self._env)


def _kept(store: Store, record: CodeVersion | Software) -> str | None:
    try:
        return keep(store, record)
    except (StoreError, ValueError):  # or it holds a name that is no text
        return None


def _code_of(experiment: ExperimentDir) -> CodeVersion | None:
    """The record of an experiment's code."""
    try:
        recorded = experiment.created().provenance
        code = None if recorded is None else recorded.code
        return read_kept(experiment.store, code, CodeVersion)
    except StoreError:
        return None


def optuna_version(config: Mapping[str, Any]) -> str | None:
    """Return the version of Optuna, which draws the samples of some searches; None for others."""
    if config["searcher"].get("sampler") is None:
        return None
    from importlib import metadata

    try:
        return metadata.version("optuna")
    except metadata.PackageNotFoundError:
        return None
