"""Hooks of MkDocs: what stands outside of docs/, and the package that the reference is read from.

On a forge the links between README.md, docs/ and examples/ lead through folders; on the site docs/
is the top, and the others come below it.
"""

from __future__ import annotations

import os.path
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.typecheck import package_folders

REPOSITORY = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def on_startup(**_: Any) -> None:
    """Lay out the package as it is installed: launchers/ and sdk/ in their places."""
    tree = REPOSITORY / "build" / "site-package"
    shutil.rmtree(tree, ignore_errors=True)
    folders = package_folders()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / folders.pop("detslurm"), tree / "detslurm", ignore=ignored)
    for name, folder in folders.items():
        shutil.copytree(REPOSITORY / folder, tree.joinpath(*name.split(".")), ignore=ignored)


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
