"""The documentation points at what exists and names every setting."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from detslurm.config.schema.site import Partition, SiteProfile
from detslurm.config.schema.slurm import Slurm
from tests.docs.pages import REPOSITORY, pages

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize(
    "page",
    [*pages(), REPOSITORY / "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(REPOSITORY)),
)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the repository, and a heading in it."""
    for link in _LINK.findall(page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


# What Slurm, Python, the system and torch say, which no source of ours has.
_OF_OTHERS = (
    "No space left on device",
    "Disk quota exceeded",
    "can't allocate memory",
    "Segmentation fault",
    "Memory required by task is not available",
    "terminate called without an active exception",
    "basic_ios::clear: iostream error",
    "unexpected pos {} vs {}",
)


def test_messages_that_the_page_about_troubles_quotes_are_printed() -> None:
    """Each text in quotes is in a string of the code, numbers and names aside."""
    sources = [p for folder in ("detslurm", "sdk") for p in (REPOSITORY / folder).rglob("*.py")]
    code = " ".join(map(_strings, sources))
    rows = re.findall(r"^\| ([^|]+) \|", (REPOSITORY / "docs/troubleshooting.md").read_text(), re.M)
    quoted = [text for row in rows for text in re.findall(r'"([^"]+?)(?: \.\.\.)?"', row)]
    assert len(quoted) > 10
    said = re.sub(r"\d+|^slurm\b", "{}", "\n".join(quoted), flags=re.M).splitlines()
    assert not [text for text in said if text not in code and text not in _OF_OTHERS]


def _strings(source: Path) -> str:
    """The strings of a module, with {} for what is put into them."""
    found = []
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return "\n".join(found)


def test_limits_are_a_line_each_under_three_headings() -> None:
    """A limit that needs more is a page's own, or a comment in the code."""
    page = REPOSITORY / "docs" / "limits.md"
    assert len(page.read_text().splitlines()) <= 90
    assert headings(page) == {"limits", "not-supported", "not-tested", "rare-moments"}


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in found}


def test_the_guide_for_contributors_names_files_that_exist() -> None:
    """What CONTRIBUTING.md says to copy from, or to enter something in, is there."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`([\w./-]+/[\w.-]*)`", text)
    assert len(named) > 20
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("section", [Slurm, SiteProfile, Partition], ids=lambda s: s.__name__)
def test_every_setting_of_ours_is_described(section: type) -> None:
    """The keys that Determined does not have are all in the page about configuration."""
    text = (REPOSITORY / "docs" / "configuration.md").read_text()
    names = {field for field in section.__struct_fields__ if field != "source"}  # type: ignore[attr-defined]
    assert {name for name in names if f"`{name}`" not in text} == set()
