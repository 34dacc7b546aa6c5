"""The table of a selftest as a page of HTML that needs nothing else, and its texts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Final

from detslurm._base.quantities import counted
from detslurm.look.report import style
from detslurm.sdk.submission.generated import REPORT_MARK

if TYPE_CHECKING:
    from detslurm.sdk.selftest.checks import Verdict
    from detslurm.sdk.selftest.running import SelfTestReport

_BADGES: Final = {
    "ok": "completed", "warning": "queued", "broken": "error", "unknown": "unknown",
}  # fmt: skip
SIGN: Final = "Name: ____________________  Signed: ____________________  Date: ____________"
"""The place to sign."""

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{mark}
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}
th, td {{ white-space: normal; max-width: 60ch; vertical-align: top; }}
.sign {{ margin-top: 48px; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<section><table>{heading}</table></section>
<section><table>
<thead><tr><th>Check</th><th>Verdict</th><th>Figure</th><th>Remedy</th></tr></thead>
<tbody>
{rows}
</tbody>
</table></section>
<section>{counts}<p class="sign">{sign}</p></section>
</main>
</body>
</html>
"""


def heading(report: SelfTestReport) -> Iterator[tuple[str, str]]:
    """The names and values above the table."""
    yield "Cluster", report.cluster
    yield "Date", report.date
    yield "Slurm", report.slurm or "?"
    yield "detslurm", report.detslurm
    yield "User", f"{report.user} on {report.host}"
    yield "Partition", report.pool or "?"


def counts(report: SelfTestReport) -> Iterator[str]:
    """The lines below the table: the verdicts, and the selftest's own use of the cluster."""
    found = [check.verdict for check in report.checks]
    kinds: tuple[Verdict, ...] = ("ok", "warning", "broken", "unknown")
    yield ", ".join(f"{found.count(kind)} {kind}" for kind in kinds) + "."
    calls = ", ".join(f"{name} {count}" for name, count in sorted(report.calls.items()) if count)
    yield (
        f"This selftest took {report.seconds:.0f} s and {counted(report.jobs, 'job')}."
        f" It called Slurm {sum(report.calls.values())} times from here ({calls}), and at least"
        f" {report.job_calls} times from jobs. It made {report.files} files."
    )


def selftest_page(report: SelfTestReport) -> str:
    """The page."""
    cells = (
        (check.name, f'<span class="badge {_BADGES[check.verdict]}">{check.verdict}</span>',
         check.figure, check.remedy)
        for check in report.checks
    )  # fmt: skip
    rows = (
        f"<tr><td>{escape(name)}</td><td>{badge}</td><td>{escape(figure)}</td>"
        f"<td>{escape(remedy)}</td></tr>"
        for name, badge, figure, remedy in cells
    )
    head = (f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in heading(report))
    return _PAGE.format(
        mark=REPORT_MARK,
        title=escape(f"Selftest of {report.cluster}"),
        style=style(),
        heading="".join(head),
        rows="\n".join(rows),
        sign=SIGN,
        counts="".join(f"<p>{escape(line)}</p>" for line in counts(report)),
    )
