"""Name code that puts its own job back into the queue: detslurm does that already."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_SUFFIXES = frozenset({".py", ".sh", ".bash", ".slurm", ".sbatch"})
_LARGEST = 1 << 18  # bytes of a script that is read
_MOST = 300  # scripts
# In a shell's text, in a string, or as a list of words.
_GAP = r"""["',\s]+"""
_CALLS = (
    (re.compile(rf"\bscontrol{_GAP}requeue(?:hold)?\b"), "scontrol requeue"),
    (re.compile(r"""\bsbatch\b[^\n;|&]*\s["']?\$\{?(?:0\b|BASH_SOURCE)"""), "sbatch $0"),
    (re.compile(r"\bSLURMEnvironment\((?![^)]*auto_requeue\s*=\s*False)"), "SLURMEnvironment()"),
)
_COMMENT = re.compile(r"^\s*#")
_LIGHTNING = "pass auto_requeue=False"
_ELSE = "leave that call out"


def notes(entrypoint: str | Sequence[str] | None, files: Mapping[str, Path]) -> list[str]:
    """Warnings, one for each such call in the scripts among the code's files, and the entrypoint.
    With two owners a trial is started twice, or its job is ended in the middle of saving."""
    text = entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
    found = [("entrypoint", call) for _, call in _calls(text)]
    for name, path in _scripts(files):
        found += [(f"{name}:{line}", call) for line, call in _calls(_text(path))]
    return [
        f"{where}: `{call}` requeues the job, and so does detslurm: a trial would be started twice,"
        f" or its job ended while it saves; {_LIGHTNING if 'SLURM' in call else _ELSE}"
        for where, call in found[:5]
    ]


def _scripts(files: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    names = [name for name in files if Path(name).suffix in _SUFFIXES]
    for name in sorted(names, key=lambda name: name.count("/"))[:_MOST]:
        yield name, files[name]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace")
    except OSError:  # the copy of the code will fail with the reason
        return ""


def _calls(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not _COMMENT.match(line):
            yield from ((number, call) for pattern, call in _CALLS if pattern.search(line))
