"""The context directory: which files belong to an experiment's code, and freezing them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from detslurm._quantities import counted, human_size
from detslurm.sdk.errors import SubmitError

# 128 MiB of base64 on the wire, less 1 MiB: the limit that Determined's users know as 95 MB.
MAX_BYTES = 95 * 1024 * 1024

_SCAN_LIMIT = 10 * MAX_BYTES

IGNORE_FILE = ".detignore"

ALWAYS_IGNORED = (
    "__pycache__/",
    "*.py[co]",
    "*$py.class",
    "terraform",
    "terraform_data",
    "terraform.tfstate*",
    "terraform.tfvars*",
    ".terraform*",
    ".git/",
    ".vscode/",
    ".idea/",
    ".mypy_cache/",
    "/shared_fs",
    f"/{IGNORE_FILE}",
)


@dataclass(frozen=True)
class ContextFile:
    """A file to freeze: where it is now, and its path in the frozen code."""

    source: Path
    name: str
    size: int


@dataclass(frozen=True)
class ContextFiles:
    """Everything that will be frozen, with what was left out and why."""

    files: tuple[ContextFile, ...]
    directories: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)

    @property
    def summary(self) -> str:
        """How much it is, for people: 12.3KB and 4 files."""
        count = len(self.files)
        return f"{human_size(self.size)} and {counted(count, 'file')}"


def collect(
    context_dir: Path,
    includes: Sequence[Path] = (),
    outputs: Mapping[Path, str] = MappingProxyType({}),
) -> ContextFiles:
    """List the files of a context directory and of `--include` paths, less the ignored ones.

    An included directory's contents land beside the context's under the directory's own name; an
    included file under its name. `outputs` says of real paths what experiments write there: it is
    left out, else each submission would copy those before it. Raises `SubmitError` for missing
    directories, for names that collide, for what can't be read, and when it all is too large.
    """
    try:
        found = _listed(context_dir, includes, outputs)
    except PermissionError as err:
        raise SubmitError(_unreadable([str(err.filename)])) from err
    if found.size > MAX_BYTES:
        raise SubmitError(_too_large(found))
    if closed := [file.source for file in found.files if not os.access(file.source, os.R_OK)]:
        raise SubmitError(_unreadable(closed))
    return found


def _listed(
    context_dir: Path, includes: Sequence[Path], outputs: Mapping[Path, str]
) -> ContextFiles:
    if not context_dir.is_dir():
        raise SubmitError(f"the context directory {context_dir} does not exist")
    files: dict[str, ContextFile] = {}
    directories: list[str] = []
    notes: list[str] = []
    _take_directory(context_dir, "", outputs, files, directories, notes)
    taken = {name.partition("/")[0] for name in (*files, *directories)}
    for include in includes:
        name = include.resolve().name
        if name in taken:
            raise SubmitError(f"--include {include}: duplicate path detected: {name!r}")
        taken.add(name)
        if include.is_dir():
            directories.append(name)
            _take_directory(include, name, outputs, files, directories, notes)
        elif include.is_file():
            files[name] = ContextFile(include, name, include.stat().st_size)
        else:
            raise SubmitError(f"--include {include}: there is no such file or directory")
    return ContextFiles(tuple(files.values()), tuple(directories), tuple(notes))


def _unreadable(paths: Sequence[str | Path]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return (
        f"{paths[0]}{more} can't be read: make it readable, or name it in {IGNORE_FILE} (gitignore"
        " syntax) if the experiment does not need it"
    )


def freeze(context: ContextFiles, stage: Path) -> None:
    """Copy the files into `stage`, an empty directory."""
    for name in context.directories:  # each after that which it is in
        (stage / name).mkdir()
    for file in context.files:
        shutil.copy2(file.source, stage / file.name)


def _take_directory(
    root: Path,
    prefix: str,
    outputs: Mapping[Path, str],
    files: dict[str, ContextFile],
    directories: list[str],
    notes: list[str],
) -> None:
    ignored = _ignored(root)
    above = frozenset(root.resolve().parents)
    size = 0
    for path, real in _walk(root, ignored, above | {root.resolve()} | outputs.keys()):
        relative = path.relative_to(root).as_posix()
        name = f"{prefix}/{relative}" if prefix else relative
        if real in above:
            notes.append(f"{path} is left out: it leads to a directory above")
        elif real is not None and real in outputs:
            notes.append(f"{path} is left out: it holds {outputs[real]}")
        elif real is not None:
            directories.append(name)
        elif path.is_file():
            files[name] = ContextFile(path, name, path.stat().st_size)
            size += files[name].size
            if size > _SCAN_LIMIT:  # a link to a whole data set: no need to see all of it
                return
        else:
            kind = "a dangling link" if path.is_symlink() else "not a regular file"
            notes.append(f"{path} is left out: it is {kind}")


def _walk(
    root: Path, ignored: Callable[[str], object], seen: frozenset[Path], at: Path | None = None
) -> Iterator[tuple[Path, Path | None]]:
    """What is not ignored, directories with their real paths; none in `seen` is entered."""
    for entry in sorted(os.scandir(at or root), key=lambda entry: entry.name):
        path = Path(entry.path)
        relative = path.relative_to(root).as_posix()
        is_dir = entry.is_dir()
        if ignored(f"{relative}/" if is_dir else relative):
            continue
        real = path.resolve() if is_dir else None
        yield path, real
        # Linked directories are frozen by content; a link to a directory above would never end.
        if real is not None and real not in seen:
            yield from _walk(root, ignored, seen | {real}, path)


def always_ignored(name: str) -> bool:
    """Whether a path, with a slash behind that of a directory, is ignored without any file of the
    user's; our own patterns need no more of gitignore's syntax than this."""
    path, is_dir = name.rstrip("/"), name.endswith("/")
    base = path.rpartition("/")[2]
    return any(
        fnmatchcase(path if pattern.startswith("/") else base, pattern.strip("/"))
        and (is_dir or not pattern.endswith("/"))
        for pattern in ALWAYS_IGNORED
    )


def _ignored(root: Path) -> Callable[[str], object]:
    """Tells of a path, with a slash behind that of a directory, whether it is left out."""
    path = root / IGNORE_FILE
    try:
        if not path.is_file():
            return always_ignored
        from pathspec import GitIgnoreSpec  # only here: 33 modules

        own = path.read_text().splitlines()
        return GitIgnoreSpec.from_lines([*own, *ALWAYS_IGNORED]).match_file
    except (OSError, UnicodeDecodeError, ValueError) as err:
        raise SubmitError(f"can't use {path}: {err}") from err


def _too_large(context: ContextFiles) -> str:
    largest = sorted(context.files, key=lambda file: -file.size)[:5]
    names = "\n".join(f"  {human_size(file.size):>10}  {file.name}" for file in largest)
    return (
        "The total size of context directory and included files and directories exceeds the "
        f"maximum allowed size: {human_size(context.size)} of {human_size(MAX_BYTES)}.\n"
        f"Name data and outputs in {IGNORE_FILE} (gitignore syntax). The largest are:\n{names}"
    )
