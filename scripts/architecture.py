"""Write the picture in docs/architecture.md: the packages, and the two ways of the data.

What imports what is read from the sources. Each step of the data's ways is checked against them:
its package imports the next one, or starts it with `python -m`. `--check` writes nothing and
fails when the picture is not what the code is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = "<!-- begin: scripts/architecture.py -->\n", "<!-- end -->\n"

INSIDE = {"exec", "launch", "core", "pytorch"}
"""Packages whose code runs in jobs alone."""

BY_NAME = {"files", "find_spec", "import_module"}
"""Functions that take the name of a module."""

NO_PLACE = {"_base", "compat", "experimental"}
"""The ground, which all import, and other names for parts that the picture has already."""


@dataclass(frozen=True)
class Step:
    """One arrow of a way: `source` hands `what` to `target`."""

    source: str
    target: str
    what: str


DOWN = (
    Step("you", "cli", "experiment.yaml"),
    Step("cli", "sdk", "submit"),
    Step("sdk", "config", "read, merge, check"),
    Step("sdk", "store", "experiment, frozen code"),
    Step("sdk", "slurm", "job arrays"),
    Step("slurm", "exec", "one task = one runner"),
    Step("exec", "launch", "entrypoint, on each node"),
    Step("launch", "code", "one process per slot"),
)
UP = (
    Step("code", "core", "metrics, checkpoints"),
    Step("core", "storage", "files"),
    Step("core", "store", "records"),
    Step("exec", "store", "how each run ended"),
    Step("store", "sdk", "facts, folded"),
    Step("slurm", "sdk", "the queue, once"),
    Step("sdk", "cli", "objects"),
    Step("cli", "you", "tables, JSON"),
)
UPWARD = {"sdk": {"look"}}
"""What a package finds by name above itself: `Experiment.report()` is where its users look."""
OUTSIDE = {"you": "you", "code": "your training code"}


def packages() -> list[str]:
    """The packages of the picture, by name."""
    folders = {entry.parent.name for entry in (REPOSITORY / "detslurm").glob("*/__init__.py")}
    return sorted(folders - NO_PLACE)


def sources(package: str) -> Iterator[Path]:
    """The Python files of a package."""
    return (REPOSITORY / "detslurm" / package).rglob("*.py")


@cache
def imports(package: str) -> frozenset[str]:
    """The other packages that a package imports, lazily or not."""
    found = {name for path in sources(package) for name in _imported(path)}
    return frozenset(found & set(packages()) - {package} - UPWARD.get(package, set()))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        for name in _names(node):
            top, _, rest = name.partition(".")
            if top == "detslurm":
                yield rest.partition(".")[0]


def _names(node: ast.AST) -> list[str]:
    """The modules that a statement imports, or that a call finds by name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in BY_NAME:
        return [str(given.value) for given in node.args if isinstance(given, ast.Constant)]
    return []


def starts(package: str, other: str) -> bool:
    """Whether a package runs modules of another in processes of their own."""
    module = re.compile(rf'"detslurm\.{other}\.\w+"')
    return any(module.search(path.read_text()) for path in sources(package))


def below(package: str) -> frozenset[str]:
    """All packages that a package imports, directly or not."""
    direct = imports(package)
    return direct.union(*(below(name) for name in direct))


def needed_imports(package: str) -> list[str]:
    """What it imports and none of its other imports does: enough to see what stands above what."""
    direct = imports(package)
    return sorted(name for name in direct if not any(name in below(other) for other in direct))


def check(step: Step) -> None:
    """Raise if the code knows nothing of this arrow."""
    ends = {step.source, step.target}
    known = ends & set(OUTSIDE) or any(
        two in imports(one) or starts(one, two)
        for one, two in ((step.source, step.target), (step.target, step.source))
    )
    if not known or not ends <= {*OUTSIDE, *packages()}:
        raise SystemExit(f"no code for this arrow: {step}")


def picture() -> str:
    """The picture as Mermaid text."""
    return "\n".join(["```mermaid", "flowchart TB", *_nodes(), *_arrows(), "```\n"])


def _nodes() -> Iterator[str]:
    for name, title in OUTSIDE.items():
        yield f'    {name}(["{title}"])'
    for title, inside in (("only in jobs", True), ("in commands and in jobs", False)):
        yield f'    subgraph {"jobs" if inside else "everywhere"}["{title}"]'
        yield from (f"        {name}" for name in packages() if (name in INSIDE) is inside)
        yield "    end"


def _arrows() -> Iterator[str]:
    for number, step in enumerate(DOWN, 1):
        check(step)
        yield f'    {step.source} == "{number}. {step.what}" ==> {step.target}'
    for letter, step in zip("abcdefghij", UP, strict=False):
        check(step)
        yield f'    {step.source} -- "{letter}. {step.what}" --> {step.target}'
    ways = {frozenset((step.source, step.target)) for step in DOWN + UP}
    for package in packages():
        for name in needed_imports(package):
            if {package, name} not in ways:
                yield f"    {package} -.-> {name}"


def page() -> str:
    """The page with the picture as it should be."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    return head + BEGIN + picture() + END + rest.split(END)[1]


def main(argv: list[str]) -> int:
    """Write the picture, or check it."""
    text = page()
    if "--check" not in argv:
        PAGE.write_text(text)
        return 0
    if PAGE.read_text() == text:
        return 0
    print(f"{PAGE} does not show the code as it is: run python scripts/architecture.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
