"""Find a template: a file, or a name among the user's own and the packaged ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from detslurm.config.describe import nearest, quoted
from detslurm.config.errors import ConfigErrors, ConfigProblem

_SUFFIX = ".yaml"
_SITE_PREFIX = "site"


def find_template(template: str | Path, root: Path) -> Path:
    """The template's file; names are looked up in `root`/templates, then in the package."""
    text = str(template)
    if "/" in text or text.endswith((".yaml", ".yml")):
        return Path(text)
    folders = [root / "templates", _packaged()]
    for folder in folders:
        if "\0" not in text and (folder / (text + _SUFFIX)).is_file():
            return folder / (text + _SUFFIX)
    known = template_names(root)
    near = nearest(text, known)
    if near:
        hint = f"did you mean {quoted(near)}?"
    else:
        hint = f"there is {', '.join(known)}" if known else f"put one into {folders[0]}"
    message = f"there is no template {quoted(text)}"
    raise ConfigErrors([ConfigProblem("--template", None, None, "", message, hint)])


def template_names(root: Path) -> list[str]:
    """The names that `--template` knows."""
    names = set()
    for folder in (root / "templates", _packaged()):
        try:
            names |= {path.stem for path in folder.glob("*" + _SUFFIX)}
        except OSError:
            continue
    return sorted(name for name in names if not name.startswith(_SITE_PREFIX))


def _packaged() -> Path:
    # Found, not imported: the folder is data, and this package imports nothing of ours.
    spec = importlib.util.find_spec("detslurm.templates")
    return Path(spec.origin if spec and spec.origin else "").parent
