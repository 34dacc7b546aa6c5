"""The code and software of an experiment, gathered from its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm._base.quantities import counted
from detslurm.config.secret_texts import masked_text, masked_words
from detslurm.store import ExperimentDir, StoreError, fs, open_shown
from detslurm.store.provenance import CodeVersion, Software, digests_of_runs, read_kept
from detslurm.store.records import RecordedProvenance
from detslurm.store.run_records import Hardware

if TYPE_CHECKING:
    from detslurm.sdk.experiments.snapshot import ExperimentSnapshot

_MOST_TRIALS = 50
_MOST_SOFTWARE = 10
_LONGEST_SCRIPT = 1 << 20
_OPTION = "#SBATCH "


@dataclass(frozen=True)
class Provenance:
    """The record of what an experiment ran. Unknown facts are None or empty.

    `software` is the Python that trains, as the first run found it, else the submission. Until a
    run records its own, `unsure` names the parts of the configuration by which jobs may have other
    software. `container` has the runtime and the image, or the command that starts it; `sbatch` the
    options of the first job; `hardware` that of the nodes by name, of the first 50 trials.
    """

    code: CodeVersion | None = None
    software: Software | None = None
    other_software: tuple[Software, ...] = ()
    unsure: str | None = None
    host: str | None = None
    detslurm: str | None = None
    optuna: str | None = None
    container: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    hardware: Mapping[str, Hardware] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for scripts."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        if self.code is not None:
            plain["code"].pop("owner", None)
        return plain


def kept_versions(one: ExperimentSnapshot) -> tuple[CodeVersion | None, Software | None]:
    """The versions of an experiment's code and software, as far as this user may read them. Raises
    `StoreError` if they can't be read."""
    directory, recorded = one.directory, one.facts.created.provenance or RecordedProvenance()
    hidden = recorded.code is None or directory.foreign_owner() is not None
    code = None if hidden else read_kept(directory.store, recorded.code, CodeVersion)
    ran = digests_of_runs(directory)
    return code, read_kept(directory.store, ran[0] if ran else recorded.software, Software)


def provenance_of(one: ExperimentSnapshot) -> Provenance:
    """Return the record of what an experiment ran. Raises `StoreError` if it can't be read."""
    directory, recorded = one.directory, one.facts.created.provenance or RecordedProvenance()
    code, software = kept_versions(one)
    ran = digests_of_runs(directory)
    others = (read_kept(directory.store, digest, Software) for digest in ran[1:_MOST_SOFTWARE])
    return Provenance(
        code=code,
        software=software,
        other_software=tuple(filter(None, others)),
        unsure=None if ran else recorded.unsure,
        host=recorded.host,
        detslurm=recorded.detslurm,
        optuna=recorded.optuna,
        container=container_of(directory.config()),
        sbatch=_sbatch_options(directory),
        hardware=dict(_hardware(one)),
    )


def container_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the runtime and the images in a recorded `config`, else its `container_prefix`."""
    slurm = config.get("slurm") or {}
    images = (config.get("environment") or {}).get("image") or {}
    slot_types = [slurm["slot_type"]] if slurm.get("slot_type") else list(images)
    found = dict.fromkeys(filter(None, map(images.get, slot_types)))
    runtime = slurm.get("container", "none")
    is_named = runtime != "none" and found
    return tuple(masked_words([runtime, *found] if is_named else slurm.get("container_prefix", ())))


def _sbatch_options(directory: ExperimentDir) -> tuple[str, ...]:
    """The options in the batch script of the first job."""
    scripts = [name for name in fs.names_in(directory.jobs) if name.endswith(".sh")]
    paths = [directory.jobs / name for name in scripts]
    first = min(paths, key=lambda path: fs.modified(path) or 0.0, default=None)
    if first is None:
        return ()
    try:
        with open_shown(first, directory.path) as file:
            lines = file.read(_LONGEST_SCRIPT).decode(errors="replace").splitlines()
    except (OSError, StoreError):
        return ()
    options = (line.removeprefix(_OPTION) for line in lines if line.startswith(_OPTION))
    return tuple(map(masked_text, options))


def _hardware(one: ExperimentSnapshot) -> Iterator[tuple[str, Hardware]]:
    for trial_id in one.facts.trial_ids[:_MOST_TRIALS]:
        for run in one.directory.trial(trial_id).runs():
            start = run.start
            if start.hardware is not None and start.host is not None:
                yield start.host, start.hardware


# -- in a line -------------------------------------------------------------------------------------


def code_text(code: CodeVersion) -> str:
    """Return the commit, the branch and the uncommitted changes of a version of the `code`."""
    if code.commit is None:
        return code.problem or "unknown"
    branch = "" if code.branch is None else f" on {code.branch}"
    changes = uncommitted(code)
    return f"{code.commit[:12]}{branch}{'' if changes is None else f', {changes}'}"


def software_text(software: Software) -> str:
    """Return the version of Python and the number of packages of a `software`."""
    if software.python is None:
        return software.problem or "unknown"
    where = software.prefix if software.conda is None else f"conda's {software.conda}"
    packages = counted(len(software.packages), "package")
    return f"Python {software.python} in {where}, {packages}"


def hardware_text(hardware: Hardware) -> str:
    """Return the devices and the versions of a node's `hardware`."""
    gpus = [f"{count} x {name}" for name, count in hardware.gpus.items()]
    driver = [] if hardware.driver is None else [f"driver {hardware.driver}"]
    cpu = [] if hardware.cpu is None else [hardware.cpu]
    image = [] if hardware.image is None else [f"image {hardware.image}"]
    return ", ".join([*gpus, *driver, *cpu, f"Linux {hardware.kernel}", *image])


def uncommitted(code: CodeVersion) -> str | None:
    """Return a note about changes of the `code` that no commit has; None without changes."""
    parts = []
    if code.changed_count:
        parts.append(f"uncommitted changes in {counted(code.changed_count, 'file')}")
    if code.untracked_count:
        parts.append(counted(code.untracked_count, "untracked file"))
    return " and ".join(parts) or None
