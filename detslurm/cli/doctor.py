"""`detslurm doctor`: check what a submission needs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from detslurm.cli.arguments.cluster_option import cluster_option
from detslurm.cli.output.printing import Document, describes

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", None),
    "warning": ("WARNING", "yellow"),
    "broken": ("BROKEN", "red"),
}


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path, file_okay=False))
@cluster_option
@describes
def doctor(directory: Path | None, cluster: str) -> Document:
    """Check the store, Slurm and this Python, and advise what to do.

    With DIRECTORY, check whether a store could be there. The exit status is 1 if something is
    broken.

    \b
    Examples:
      detslurm doctor
      detslurm doctor /scratch/$USER
    """
    from detslurm.sdk.doctor import examine
    from detslurm.sdk.jobs.queues import connector
    from detslurm.sdk.store_root import default_root

    root = directory.absolute() if directory is not None else default_root()
    findings = examine(root, partial(connector(root), cluster))
    broken = any(finding.level == "broken" for finding in findings)
    end = "\nSomething is broken." if broken else "\nNothing is broken."
    return Document(
        lambda: "\n".join([*(line for one in findings for line in _lines(*one)), end]),
        lambda: {"healthy": not broken, "findings": [f._asdict() for f in findings]},
        failed=broken,
    )


def _lines(area: str, level: str, text: str, advice: str) -> Iterator[str]:
    word, color = _MARKS[level]
    first, *rest = text.splitlines()
    yield f"{area:>7}  {click.style(f'{word:<7}', fg=color)}  {first}"
    for line in [*rest, *advice.splitlines()]:
        yield f"{'':>18}{line}"
