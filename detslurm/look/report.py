"""The report: one page of HTML that holds its data and its code, and asks for nothing.

The table's data comes first; the curves and plotly follow compressed, and are unpacked when the
table is there. The content security policy names each script by its hash and forbids everything
else, so that no content of a document can run. The charts are plotly's; our code is written as
modules in `page/`, which are joined to one script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from detslurm.look.document import ExperimentPart, Snapshot
from detslurm.look.packing import compressed, packed
from detslurm.look.snapshot import encode
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.submission.generated import REPORT_MARK
from detslurm.sdk.whole_file import whole_file

MODULES: Final = (
    "dom", "format", "unpacking", "state", "trials", "columns", "filter", "export", "plots",
    "routing", "drawing", "outcomes", "curve_points", "curve_looks", "plot_grid", "curves",
    "failures", "table", "compare", "scales", "brushes", "scatter", "parallel",
    "importance_measure", "importance", "front", "rungs", "timeline", "yaml", "summary",
    "artifacts", "trial", "contents", "live", "main",
)  # fmt: skip
"""The modules of the page, each after those that it imports."""

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const) (\w+))", re.MULTILINE)
_IN_SCRIPTS = str.maketrans(
    {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{mark}
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body data-live="{live}" data-editable="{editable}">
<noscript>This page draws itself with JavaScript, which is switched off here.</noscript>
<main id="page"></main>
<script type="application/json" id="snapshot">{data}</script>
<script>{code}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script type="application/json" id="packed">{packed}</script>
</body>
</html>
"""


def page(snapshot: Snapshot, live: bool = False, *, editable: bool = False) -> str:
    """The page that shows a snapshot, as HTML without any reference to something outside.

    A `live` page looks for news at `snapshot.json`, relative to its own address, and has a link to
    `edit` if it is `editable`. Raises `LifecycleError` if plotly is not installed.
    """
    plotly, code, curves = _plotly(), _code(), packed(snapshot)
    return _PAGE.format(
        mark=REPORT_MARK,
        policy=_policy([plotly, code], live),
        title=escape(title(snapshot.experiments)),
        style=style(),
        live="true" if live else "false",
        editable="true" if editable else "false",
        data=_data(encode(replace(curves, packed=None))),
        code=code,
        plotly=_compressed_plotly(),
        packed=_data(msgspec.json.encode(curves.packed)),
    )


def title(experiments: list[ExperimentPart]) -> str:
    """The title of a page about these experiments."""
    if len(experiments) == 1:
        only = experiments[0]
        return f"Experiment {only.id}: {only.name}" if only.name else f"Experiment {only.id}"
    return "Experiments " + ", ".join(str(experiment.id) for experiment in experiments)


def write(text: str, target: Path) -> None:
    """Write a page to a file, whole or not at all; an older file of that name is replaced.

    Raises `LifecycleError` if something other than a file, or a link of another user, has that
    name; `OSError`, with the target, if it can't be written.
    """
    with whole_file(target) as draft:
        draft.write_text(text, encoding="utf-8")


def _data(json: bytes) -> str:
    """JSON that no reader of HTML takes for anything else."""
    return json.decode().translate(_IN_SCRIPTS)


def _policy(scripts: list[str], live: bool) -> str:
    """Nothing is allowed but these scripts, our style, and images that the page itself made."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    rules = ["default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'"]
    rules += ["img-src data: blob:", "base-uri 'none'", "form-action 'none'"]
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _plotly() -> str:
    try:
        files = resources.files("plotly")
    except ModuleNotFoundError as error:
        raise LifecycleError(
            "a report needs plotly, whose JavaScript draws its charts: "
            "pip install 'detslurm[report]'"
        ) from error
    return _fit_for_html((files / "package_data" / "plotly.min.js").read_text("utf-8"))


@cache
def _compressed_plotly() -> str:
    """A third of its size; the page runs it after its table is there."""
    return compressed(_plotly().encode())


@cache
def _code() -> str:
    """Our modules as one script."""
    joined = "".join(
        _scoped(name, (_folder() / f"{name}.js").read_text("utf-8")) for name in MODULES
    )
    return _fit_for_html(f'(() => {{\n"use strict";\n{joined}}})();\n')


def _scoped(name: str, module: str) -> str:
    """A module as an object of what it exports; what it imports is taken out of such objects."""
    exported = ", ".join(_EXPORT.findall(module))
    body = _EXPORT.sub("", _IMPORT.sub(r"const \1 = $\2;", module))
    return f"const ${name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n"


@cache
def style() -> str:
    """The style sheet of all pages."""
    return (_folder() / "style.css").read_text("utf-8")


def _folder() -> resources.abc.Traversable:
    return resources.files("detslurm.look") / "page"


def _fit_for_html(script: str) -> str:
    """A script whose text can stand in a page. Other line ends would change its hash."""
    assert "\r" not in script and not re.search(r"</script|<!--", script, re.IGNORECASE)
    return script
