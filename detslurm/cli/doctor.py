"""`detslurm doctor`: check what a submission needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from detslurm.cli.arguments.cluster_option import cluster_option
from detslurm.cli.output.printing import Document, describes
from detslurm.sdk.container_check import examine_container
from detslurm.sdk.doctor import Finding, examine
from detslurm.sdk.jobs.queues import connector
from detslurm.sdk.store_root import default_root

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", None),
    "warning": ("WARNING", "yellow"),
    "broken": ("BROKEN", "red"),
}


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--container", metavar="IMAGE", help="Run IMAGE in a job of one minute instead.")
@click.option("--pool", metavar="NAME", help="Run that job in this resource pool.")
@click.option(
    "--runtime",
    metavar="NAME",
    help="Run IMAGE with this value of slurm.container, not with the site profile's.",
)
@cluster_option
@describes
def doctor(
    directory: Path | None,
    container: str | None,
    pool: str | None,
    runtime: str | None,
    cluster: str,
) -> Document:
    """Check the store, Slurm and this Python, and advise what to do.

    With DIRECTORY, check whether a store could be there. With --container, check whether code could
    run in a container: the runtime, the image and its Python, mounts, GPUs and PMIx. `detslurm
    selftest` tries the cluster itself with short jobs. The exit status is 1 if something is broken.

    \b
    Examples:
      detslurm doctor
      detslurm doctor /scratch/$USER
      detslurm doctor --container /images/torch.sif --pool gpu
    """
    root = directory.absolute() if directory is not None else default_root()
    connect = partial(connector(root), cluster)
    if container is None:
        if pool is not None or runtime is not None:
            raise click.UsageError("--pool and --runtime need --container")
        return _document(examine(root, connect))
    findings = examine_container(
        container, connect, root, pool=pool, runtime=runtime, notify=partial(click.echo, err=True)
    )
    return _document(findings)


def _document(findings: Sequence[Finding]) -> Document:
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
