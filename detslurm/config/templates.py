"""Find a template: a file, or a name among the user's own, the group's and the packaged ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from detslurm._base import access
from detslurm.config.describe import did_you_mean, quoted
from detslurm.config.errors import ConfigErrors, ConfigProblem

SUFFIX = ".yaml"
OWN = "templates"
SHARED = "shared-templates"


class TemplateFile(NamedTuple):
    """A template by name: the file, and whether the group shares it."""

    name: str
    path: Path
    shared: bool


def find_template(template: str | Path, root: Path) -> Path:
    """The template's file: a path, or a name among the user's own, then among the group's."""
    text = str(template)
    if "/" in text or text.endswith((".yaml", ".yml")):
        return Path(text)
    for folder in template_folders(root):
        if "\0" not in text and (folder / (text + SUFFIX)).is_file():
            return folder / (text + SUFFIX)
    known = sorted({one.name for one in template_files(root)})
    hint = did_you_mean(text, known)
    if not hint:
        hint = f"there is {', '.join(known)}" if known else "`detslurm template create` makes one"
    message = f"there is no template {quoted(text)}"
    raise ConfigErrors([ConfigProblem("--template", None, None, "", message, hint)])


def template_folders(root: Path) -> list[Path]:
    """Where templates are in a store: the user's own, and those of the group that shares it."""
    return [root / access.own_name(str(root), OWN), root / SHARED]


def template_files(root: Path) -> Iterator[TemplateFile]:
    """All templates of a store by name, the user's own first; others may have the same names."""
    own, shared = template_folders(root)
    for folder in (own, shared):
        try:
            paths = sorted(folder.glob("*" + SUFFIX))
        except OSError:
            continue
        yield from (TemplateFile(path.stem, path, folder == shared) for path in paths)


def packaged(folder: str, suffix: str) -> dict[str, str]:
    """The texts of a folder of the package by name: batch scripts, site profiles."""
    # Found, not imported: the folder is data, and this package imports nothing of ours.
    spec = importlib.util.find_spec("detslurm.templates")
    home = Path(spec.origin if spec and spec.origin else "").parent / folder
    paths = sorted(home.glob("*" + suffix))
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def purpose(text: str) -> str:
    """The purpose of a packaged file: its first comment."""
    lines = (line for line in text.splitlines() if line.startswith("# "))
    return next(lines, "").removeprefix("# ")
