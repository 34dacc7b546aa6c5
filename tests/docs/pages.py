"""The fenced blocks of a page, with the file or the test that stands above each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(
    r"(?:<!-- tested by: (?P<test>\S+) -->\n|\*\*`(?P<file>[^`\n]+)`\*\*\n\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block; `file` is where its text goes, `test` what covers its commands."""

    language: str
    text: str
    file: str | None = None
    test: str | None = None


@dataclass(frozen=True)
class Command:
    """A command and the output that the page shows for it."""

    line: str
    output: str


def pages() -> list[Path]:
    """Every page of the documentation, and of the examples."""
    more = (sorted(REPOSITORY.glob(pattern)) for pattern in ("docs/*.md", "examples/*/README.md"))
    top = (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md")
    return [*top, *chain.from_iterable(more)]


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order."""
    for match in _BLOCK.finditer(page.read_text()):
        yield Block(match["language"], match["text"], file=match["file"], test=match["test"])


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block: after `$ ` in a console, every line of a shell script."""
    if block.language in ("sh", "bash"):
        for line in filter(None, block.text.splitlines()):
            yield Command(line, "...")
    elif block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield Command(line, output)
