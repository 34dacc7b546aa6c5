"""Measure the house: lines, imports and sentences. `python -m scripts.house` prints the figures as
JSON; tests/house.json holds their ceilings."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PRODUCT = ("detslurm", "launchers", "sdk", "templates")
_WORD = re.compile(r"[A-Za-z][A-Za-z']*")

PROSE = {
    "sentences that begin with Who, Whoever, What or Which": re.compile(
        r"(?:^|^ *[-*] |[.:;!?|]\s+)\**(?:Who|Whoever|Whose|What|Which)\b(?![^.!?]*\?)",
        re.MULTILINE,
    ),
    "`what is`, `what was` or `what has` as a noun": re.compile(
        r"\bwhat (?:is|was|has)\b", re.IGNORECASE
    ),
    "nobody, somebody or whoever": re.compile(r"\b(?:nobody|somebody|whoever)\b", re.IGNORECASE),
    "`one` as a pronoun": re.compile(
        r"\bone(?=[.,;:)]|$| (?:that|which|who|of|is|was|has|can|may|in|with|for|at|to|as)\b)",
        re.IGNORECASE | re.MULTILINE,
    ),
    "programs that say or tell": re.compile(r"\b(?:says?|said|tells?|told)\b", re.IGNORECASE),
}


def files(*folders: str) -> list[Path]:
    """The Python files below some folders; links lead to folders that are named themselves."""
    found = (path for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))
    return sorted(path for path in found if path.resolve() == path)


def lines_by_package() -> Counter[str]:
    """Lines of Python in each package of the product, and in all tests."""
    counts: Counter[str] = Counter()
    for path in files(*PRODUCT):
        top, *rest = path.relative_to(REPOSITORY).parts[:-1]
        package = rest[0] if top == "detslurm" and rest else top
        counts[package] += len(path.read_text().splitlines())
    counts["all of the product"] = counts.total()
    counts["all tests"] = sum(len(path.read_text().splitlines()) for path in files("tests"))
    return counts


def shape() -> Counter[str]:
    """Counts of constructs that make code hard to follow, in the product."""
    counts: Counter[str] = Counter()
    for path in files(*PRODUCT):
        for node in ast.walk(tree := ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = (part for part in ast.walk(node) if part is not node)
                counts["imports inside functions"] += sum(
                    isinstance(part, ast.Import | ast.ImportFrom) for part in inside
                )
            if isinstance(node, ast.Subscript) and ast.unparse(node).endswith("[str, Any]"):
                counts["mappings of Any"] += 1
        counts["packages"] += path.name == "__init__.py"
        counts["modules"] += bool(tree.body)
    return counts


def prose() -> dict[str, float]:
    """How often each rule of plain English is broken, per 1,000 words of docstrings, comments,
    messages and pages."""
    text = "\n".join(_texts())
    words = len(_WORD.findall(text))
    return {
        rule: round(1000 * len(pattern.findall(text)) / words, 2) for rule, pattern in PROSE.items()
    }


def _texts() -> Iterator[str]:
    for path in files(*PRODUCT):
        source = path.read_text()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("# ")
        for node in ast.walk(ast.parse(source)):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and len(_WORD.findall(text)) > 3:  # a message or a docstring
                yield text
    for path in [*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md"]:
        yield re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def figures() -> dict[str, float]:
    """All figures by name."""
    return {**lines_by_package(), **shape(), **prose()}


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
