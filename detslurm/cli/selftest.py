"""`detslurm selftest`: try a cluster with a dozen short jobs."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from detslurm.cli.output.printing import Document, describes, note
from detslurm.cli.output.tables import printable
from detslurm.look.selftest_page import SIGN, counts, heading, selftest_page
from detslurm.sdk.jobs.queues import connector
from detslurm.sdk.selftest.running import SelfTestReport
from detslurm.sdk.selftest.running import selftest as run
from detslurm.sdk.store_root import default_root
from detslurm.sdk.whole_file import whole_file

_COLORS = {"ok": "green", "warning": "yellow", "broken": "red", "unknown": None}


@click.command()
@click.option("--pool", metavar="NAME", help="Run the jobs in this resource pool.")
@click.option("--full", is_flag=True, help="Check every node of the pool, not only four.")
@click.option("--container", metavar="IMAGE", help="Run IMAGE in a job, too.")
@click.option(
    "--timeout",
    metavar="MINUTES",
    type=click.FloatRange(min=0.1),
    default=15,
    show_default=True,
    help="Stop jobs that have not ended by then.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the table to this file, too, as a page of HTML.",
)
@describes
def selftest(
    pool: str | None, full: bool, container: str | None, timeout: float, output: Path | None
) -> Document:
    """Try this cluster with a dozen short jobs, and print a table to sign.

    The jobs try arrays, two nodes, steps, requeues, time limits, preemption, MPI, GPUs, the store
    and the disk of each node, clocks and Slurm's answers. Nothing is left behind. The exit status
    is 1 if something is broken.

    \b
    Examples:
      detslurm selftest
      detslurm selftest --pool gpu --full -o selftest.html
    """
    root = default_root()
    with ExitStack() as files:  # a page that can't be written is no surprise of the last minute
        draft = files.enter_context(whole_file(output)) if output is not None else None
        report = run(
            partial(connector(root), "slurm"),
            root,
            pool=pool,
            full=full,
            image=container,
            timeout=60 * timeout,
            notify=lambda text: note(printable(text)),
        )
        if draft is not None:
            draft.write_text(selftest_page(report), encoding="utf-8")
    if output is not None:
        note(f"Wrote {output}")
    return Document(lambda: "\n".join(_lines(report)), report.to_dict, failed=report.broken)


def _lines(report: SelfTestReport) -> Iterator[str]:
    yield from (f"{name:>12}  {value}" for name, value in heading(report))
    yield ""
    margin = max(len(check.name) for check in report.checks)
    room = max(shutil.get_terminal_size((110, 24)).columns - margin - 11, 30)
    for check in report.checks:
        verdict = check.verdict.upper() if check.verdict == "broken" else check.verdict
        word = click.style(f"{verdict:<7}", fg=_COLORS[check.verdict])
        texts = [*printable(check.figure).splitlines(), *check.remedy.splitlines()]
        first, *rest = [line for text in texts for line in textwrap.wrap(text, room)] or [""]
        yield f"{check.name:>{margin}}  {word}  {first}"
        yield from (f"{'':>{margin + 11}}{line}" for line in rest)
    yield ""
    yield from counts(report)
    yield f"\n{SIGN}"
