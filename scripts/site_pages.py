"""Hooks of MkDocs: pages that stand outside of docs/, the landing page, and the rank of results.

On a forge the links between README.md, docs/ and examples/ lead through folders; on the site docs/
is the top, and the others come below it. The landing page has the sections of README.md that its
comments name. Search shows guides before the reference.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")
_SECTION = re.compile(r"<!-- README: (.+) -->")
BOOSTS = {"Reference": 0.02, "Inside": 0.02, "Examples": 0.5}
"""Section of the navigation -> the weight of its pages in search, where it is not 1."""


def outside() -> dict[str, Path]:
    """Name on the site -> file, for what stands elsewhere in the repository and is linked to."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("examples/*/*.*")]
    names = {str(path.relative_to(REPOSITORY)): path for path in pages if path.is_file()}
    del names["README.md"]  # its sections are in docs/index.md
    return {place_of(name): path for name, path in names.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands outside."""
    for name, path in outside().items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let relative links lead where their targets are on the site."""
    name = page.file.src_uri
    for part in page.ancestors:
        page.meta.setdefault("search", {"boost": BOOSTS.get(part.title or "", 1)})
    here = str(outside()[name].relative_to(REPOSITORY)) if name in outside() else f"docs/{name}"

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[1]))
        return os.path.relpath(place_of(target), posixpath.dirname(name) or ".")

    def included(match: re.Match[str]) -> str:
        text = section_of_readme(match[1])
        return _LINK.sub(lambda link: place_of(posixpath.normpath(link[1])), text)

    return _SECTION.sub(included, _LINK.sub(moved, markdown))


def section_of_readme(title: str) -> str:
    """The text of a section of README.md, with its heading where it is not that of the whole."""
    text = (REPOSITORY / "README.md").read_text()
    found = re.search(rf"^##? {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"README.md has no section {title!r}")
    heading = "" if title in ("detslurm", "Documentation") else f"## {title}\n"
    return heading + found[1]


def place_of(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target == "README.md":
        return "index.md"
    return target.removeprefix("docs/")
