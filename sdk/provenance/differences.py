"""The record of what an experiment ran as single values, which are compared with another's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

from detslurm.sdk.provenance.view import Provenance
from detslurm.store.provenance import CodeVersion, Software

_SHOWN: Final = 8
Value = tuple[str, Any]


def values_of(record: Provenance) -> Iterator[Value]:
    """Yield each value of a `record` with its name."""
    if record.code is not None:
        yield from _code_values(record.code)
    if record.software is not None:
        yield from software_values(record.software)
    yield "detslurm", record.detslurm
    yield "optuna", record.optuna
    yield from _by_kind(record)


def _code_values(code: CodeVersion) -> Iterator[Value]:
    yield "git commit", code.commit
    yield "git branch", code.branch
    digest = hashlib.sha256(code.diff.encode()).hexdigest()[:12] if code.diff else None
    yield "git diff", digest
    for name, url in code.remotes.items():
        yield f"git remote {name}", url


def software_values(software: Software) -> Iterator[Value]:
    """Yield the versions of a `software` by name."""
    yield "python", software.python
    yield "prefix", software.prefix
    yield "modules", ", ".join(software.modules) or None
    for name, version in software.packages.items():
        yield f"package {name}", version
    for name, version in software.conda_packages.items():
        yield f"conda package {name}", version


def _by_kind(record: Provenance) -> Iterator[Value]:
    """The hardware, without the names of nodes: those differ between any two runs."""
    every = list(record.hardware.values())

    def joined(kinds: Iterator[str | None]) -> str | None:
        return ", ".join(sorted(set(filter(None, kinds)))) or None

    yield "cpu", joined(one.cpu for one in every)
    yield "gpu", joined(name for one in every for name in one.gpus)
    yield "driver", joined(one.driver for one in every)
    yield "kernel", joined(one.kernel for one in every)
    yield "image", joined(one.image for one in every)


def changed_software(before: Software, now: Software) -> list[str]:
    """Return the differences of two softwares, the earlier one first, each such as "numpy 1.26.4 ->
    2.1.0"."""
    old, new = dict(software_values(before)), dict(software_values(now))
    return [
        f"{name.removeprefix('package ')} {_shown(old.get(name))} -> {_shown(new.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _shown(value: Any) -> str:
    return "none" if value is None else str(value) or "unknown"


def software_warning(number: int, before: Software | None, now: Software) -> str | None:
    """Return a warning that the software `now` differs from that of the experiment `number`, which
    was `before` (None if unknown); None if it is the same."""
    known = before is not None and before.python is not None and now.python is not None
    changes = changed_software(before, now) if known and before is not None else []
    if not changes:
        return None
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return (
        f"the software differs from experiment {number}'s: {', '.join(changes[:_SHOWN])}{more}."
        f" `detslurm experiment provenance {number}` shows what that experiment ran"
    )
