"""The record of an experiment as a Process Run Crate: an RO-Crate that archives understand.

Its metadata is one file of JSON, which is written here: the library for it would bring half a
dozen packages, among them a client for HTTP, to every user.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from detslurm.config.writing import as_yaml
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.provenance.view import Provenance, hardware_text, provenance_of
from detslurm.store import flat

if TYPE_CHECKING:
    from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
    from detslurm.store import TrialRow

Entity = dict[str, Any]

_METADATA: Final = "ro-crate-metadata.json"
_SPECIFICATION: Final = "https://w3id.org/ro/crate/1.1"
_PROFILE: Final = "https://w3id.org/ro/wfrun/process/0.5"
_SCHEMA: Final = "https://schema.org/"
_STATUS: Final = {
    "COMPLETED": "CompletedActionStatus",
    "ERROR": "FailedActionStatus",
    "CANCELED": "FailedActionStatus",
    "RUNNING": "ActiveActionStatus",
}


def write_crate(one: ExperimentSnapshot, config: Mapping[str, Any], folder: Path) -> Path:
    """Write the crate of an experiment into a directory that is new or empty; return the directory.

    `config` has the secrets masked. Raises `LifecycleError` if something is in the directory,
    `StoreError` if the record can't be read, `OSError` if the crate can't be written.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise LifecycleError(f"{folder} exists already: a crate is written into a new directory")
    record = provenance_of(one)
    files = _files(config, record)
    graph = list(_graph(one, record, files))
    folder.mkdir(parents=True, exist_ok=True)
    for name, (text, _) in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    document = {"@context": f"{_SPECIFICATION}/context", "@graph": graph}
    # The last file: a directory without it is no crate.
    (folder / _METADATA).write_text(json.dumps(document, indent=2), encoding="utf-8")
    return folder


def _files(config: Mapping[str, Any], record: Provenance) -> dict[str, tuple[str, Entity]]:
    """The files of the crate, each with its content and its description."""
    about = {"encodingFormat": "application/yaml", "description": "The resolved configuration."}
    files = {"config.yaml": (as_yaml(dict(config), sort_keys=True), about)}
    text = json.dumps(record.to_dict(), indent=2)
    about = {"encodingFormat": "application/json", "description": "The record of what it ran."}
    files["provenance.json"] = (text, about)
    if record.code is not None and record.code.diff:
        about = {"encodingFormat": "text/x-diff", "description": "The uncommitted changes."}
        files["changes.diff"] = (record.code.diff, about)
    return files


def _graph(
    one: ExperimentSnapshot, record: Provenance, files: Mapping[str, tuple[str, Entity]]
) -> Iterator[Entity]:
    view, trials = one.view, list(one.trial_rows.values())
    yield {
        "@id": _METADATA,
        "@type": "CreativeWork",
        "conformsTo": {"@id": _SPECIFICATION},
        "about": {"@id": "./"},
    }
    yield {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Experiment {view.id}: {view.name}",
        "description": view.description or f"{view.name}, run by detslurm.",
        "datePublished": _time(datetime.now(UTC).timestamp()),
        "conformsTo": {"@id": _PROFILE},
        "hasPart": [{"@id": name} for name in files],
        "mentions": [{"@id": _action_id(trial)} for trial in trials],
    }
    yield {"@id": _PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
    yield {"@id": "#user", "@type": "Person", "name": view.owner}
    for name, (_, about) in files.items():
        yield {"@id": name, "@type": "File", "name": name, **about}
    yield from _software(view.name, record)
    for trial in trials:
        yield from _trial(trial, record)


def _software(name: str, record: Provenance) -> Iterator[Entity]:
    """The code, which is the instrument, and what it needs."""
    software, code = record.software, record.code
    needed = {"python": software.python} if software is not None and software.python else {}
    if software is not None:
        needed |= software.packages | software.conda_packages
    found = {
        "@id": "#code",
        "@type": "SoftwareApplication",
        "name": name,
        "softwareRequirements": [{"@id": f"#software-{package}"} for package in needed],
    }
    if code is not None and code.commit is not None:
        found["softwareVersion"] = code.commit
        if code.remotes:
            found["url"] = code.remotes.get("origin") or next(iter(code.remotes.values()))
    yield found
    for package, version in needed.items():
        yield {
            "@id": f"#software-{package}",
            "@type": "SoftwareApplication",
            "name": package,
            **({"softwareVersion": version} if version else {}),
        }


def _trial(trial: TrialRow, record: Provenance) -> Iterator[Entity]:
    """The action that a trial was, with its hyperparameters and its best result."""
    given = dict(_properties(trial, "hparam", flat(trial.hparams or {})))
    best = trial.best_validation
    results = dict(_properties(trial, "best", flat(best.metrics) if best is not None else ()))
    nodes = (f"{name}: {hardware_text(one)}" for name, one in record.hardware.items())
    yield {
        "@id": _action_id(trial),
        "@type": "CreateAction",
        "name": f"Trial {trial.id}",
        "instrument": {"@id": "#code"},
        "agent": {"@id": "#user"},
        "object": [{"@id": "config.yaml"}, *({"@id": name} for name in given)],
        "result": [{"@id": name} for name in results],
        "actionStatus": {"@id": f"{_SCHEMA}{_STATUS.get(trial.state, 'PotentialActionStatus')}"},
        **({"startTime": _time(trial.started)} if trial.started is not None else {}),
        **({"endTime": _time(trial.ended)} if trial.ended is not None else {}),
        **({"error": trial.end_reason} if trial.state == "ERROR" and trial.end_reason else {}),
        **({"description": text} if (text := "; ".join(nodes)) else {}),
    }
    yield from given.values()
    yield from results.values()


def _properties(trial: TrialRow, kind: str, values: Any) -> Iterator[tuple[str, Entity]]:
    for name, value in values:
        number = f"#trial-{trial.id}-{kind}-{name}"
        yield number, {"@id": number, "@type": "PropertyValue", "name": name, "value": value}


def _action_id(trial: TrialRow) -> str:
    return f"#trial-{trial.id}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
