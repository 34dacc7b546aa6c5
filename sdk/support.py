"""All that a helper needs to see why a trial does not run: in one file, without secrets."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm.config.secret_values import masked_values
from detslurm.sdk.bundle.writing import put
from detslurm.sdk.doctor import examine
from detslurm.sdk.errors import BundleError
from detslurm.sdk.hiding import hidden, secrets_in
from detslurm.sdk.jobs.status import JobRef
from detslurm.sdk.trials.summary_metrics import summary
from detslurm.slurm import SlurmError
from detslurm.store import (
    CorruptRecord,
    ExperimentDir,
    StoreError,
    TrialView,
    open_shown,
    trial_metrics,
)

if TYPE_CHECKING:
    from detslurm.sdk.trials.trial import Trial

# The end of a log explains a failure; gigabytes would not be sent.
_LOG_BYTES = 5 * 1024**2
_LAST_RUNS = 5

_README = """\
Information about trial {trial} of experiment {experiment}, collected by detslurm.

versions.json  detslurm, Python, and the machine where this was made
config.json    the experiment's configuration
trial.json     the trial: its runs, checkpoints and failures
facts.json     the records of the experiment
metrics.json   count, mean, min, max and last value of each metric
slurm.json     the cluster's data about the trial's jobs
doctor.json    the findings of `detslurm doctor`
logs/          the end of the log of each run, and of what its job printed

Secrets of the configuration are replaced by asterisks, in the logs too. Whatever else the code
prints is there: look before you send it.
"""


@dataclass(frozen=True)
class SupportBundle:
    """A file for a helper, its size in bytes, and its unreadable parts with the reasons."""

    path: Path
    size: int
    missing: tuple[str, ...]


def support_bundle(trial: Trial, target: Path) -> SupportBundle:
    """Write the file, which must not exist; what can't be read is named in it."""
    if target.is_dir():
        target = target / f"detslurm-trial-{trial.id}.tar.gz"
    if target.exists():
        raise BundleError(f"{target} exists already")
    if not target.parent.is_dir():
        raise BundleError(f"the directory {target.parent} does not exist")
    content, missing, secrets = _content(trial)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        stage = Path(scratch, "bundle")
        with tarfile.open(stage, "w:gz") as archive:
            for name, data in content.items():
                _add(archive, f"detslurm-trial-{trial.id}/{name}", hidden(data, secrets))
        stage.chmod(0o600)
        put(stage, target)
    return SupportBundle(target, target.stat().st_size, tuple(missing))


def _content(trial: Trial) -> tuple[dict[str, bytes], list[str], list[bytes]]:
    """Name -> bytes of every file, what could not be read, and what must not be shown."""
    directory = trial.experiment._snapshot.directory
    parts: dict[str, Callable[[], Any]] = {
        "versions.json": _versions,
        "config.json": lambda: trial.experiment.config,
        "trial.json": lambda: _read(trial),
        "facts.json": lambda: list(directory.facts()),
        "metrics.json": lambda: summary(trial_metrics(trial.directory)),
        "slurm.json": lambda: _jobs(trial),
        "doctor.json": lambda: _findings(trial),
    }
    readme = _README.format(trial=trial.id, experiment=trial.experiment.id)
    found: dict[str, bytes] = {"README.txt": readme.encode()}
    missing: list[str] = []
    for name, read in parts.items():
        try:
            found[name] = _json(masked_values(msgspec.to_builtins(read())))
        except (StoreError, SlurmError, OSError, ValueError) as error:
            missing.append(f"{name}: {error}")
    secrets = secrets_in(directory) if "config.json" in found else None
    if secrets is None:
        missing.append("logs: only readers of the configuration know their secrets")
    else:
        found.update(_logs(trial))
    if missing:
        found["missing.txt"] = "\n".join([*missing, ""]).encode()
    return found, missing, secrets or []


def _json(value: Any) -> bytes:
    """JSON to read, in which NaN and infinities are text."""
    plain = json.loads(json.dumps(value), parse_constant=str)
    return msgspec.json.format(msgspec.json.encode(plain))


def _versions() -> dict[str, Any]:
    uname = os.uname()
    return {
        "detslurm": version("detslurm"),
        "python": sys.version,
        "executable": sys.executable,
        "kernel": f"{uname.sysname} {uname.release} {uname.machine}",
        "host": uname.nodename,
        "made": time.time(),
    }


def _read(trial: Trial) -> TrialView:
    return trial.experiment._snapshot.read_trial(trial.id)


def _job_refs(trial: Trial) -> list[JobRef]:
    jobs = (run.job for run in _read(trial).runs)
    found = [JobRef(job.cluster, job.ref) for job in jobs if job.ref]
    current = trial.experiment._snapshot.job_refs.get(trial.id)
    return list(dict.fromkeys([*found, *([current] if current else [])]))


def _jobs(trial: Trial) -> list[dict[str, Any]]:
    experiment = trial.experiment
    known = experiment._queues.query(_job_refs(trial), since=experiment.view.created)
    return [{"cluster": ref.cluster, **msgspec.to_builtins(job)} for ref, job in known.jobs.items()]


def _findings(trial: Trial) -> list[dict[str, Any]]:
    experiment = trial.experiment
    cluster = experiment.view.cluster or "auto"
    root = experiment._snapshot.directory.store.path
    found = examine(root, lambda: experiment._queues.cluster(cluster))
    return [finding._asdict() for finding in found]


def _logs(trial: Trial) -> Iterator[tuple[str, bytes]]:
    from detslurm.sdk.trials.logs import run_logs

    experiment = trial.experiment._snapshot.directory
    for number, path in run_logs(trial.directory)[-_LAST_RUNS:]:
        yield from _end_of(experiment, path, f"logs/run-{number}.log")
    for ref in _job_refs(trial)[-_LAST_RUNS:]:
        for name in dict.fromkeys((ref.ref, ref.job_id)):
            path = experiment.jobs / f"slurm-{name}.out"
            yield from _end_of(experiment, path, f"logs/slurm-{name}.out")


def _end_of(experiment: ExperimentDir, path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    try:
        with open_shown(path, experiment.path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
            yield name, file.read(_LOG_BYTES)
    except (OSError, CorruptRecord):
        return  # the job has printed nothing, or its file was removed


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(data))
