"""Hooks of MkDocs: pages that stand outside of docs/.

On a forge the links between README.md, docs/ and examples/ lead through folders; on the site docs/
is the top, and the others come below it.
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


def outside() -> dict[str, Path]:
    """Name on the site -> file, for what stands elsewhere in the repository and is linked to."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("examples/*/*.*")]
    return {place_of(str(path.relative_to(REPOSITORY))): path for path in pages if path.is_file()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands outside."""
    for name, path in outside().items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let relative links lead where their targets are on the site."""
    name = page.file.src_uri
    here = str(outside()[name].relative_to(REPOSITORY)) if name in outside() else f"docs/{name}"

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[1]))
        return os.path.relpath(place_of(target), posixpath.dirname(name) or ".")

    return _LINK.sub(moved, markdown)


def place_of(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target == "README.md":
        return "index.md"
    return target.removeprefix("docs/")
