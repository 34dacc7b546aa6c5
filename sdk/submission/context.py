"""The context directory: which files belong to an experiment's code, and freezing them."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from detslurm._base.quantities import counted, human_size
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.generated import generated_directory, is_report
from detslurm.store.errors import explained

# 128 MiB of base64 on the wire, less 1 MiB: the limit that Determined's users know as 95 MB.
MAX_BYTES = 95 * 1024 * 1024

_SCAN_LIMIT = 10 * MAX_BYTES
_MANY_FILES = 2000

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
    """Everything that will be frozen, and the omissions with their reasons."""

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
    *,
    frozen: bool = False,
) -> ContextFiles:
    """List the files of a context directory and of `--include` paths, less the ignored ones.

    An included path lands beside the context's files under its own name, or where it was left out
    of them. `outputs`, real paths to which experiments write, are left out, and generated files
    unless the code was `frozen` before. Raises `SubmitError` for missing directories, colliding
    names, unreadable files, and too many bytes.
    """
    try:
        found = _listed(context_dir, includes, _Omitted(outputs, generated=not frozen))
    except PermissionError as err:
        raise SubmitError(_unreadable([str(err.filename)])) from err
    if found.size > MAX_BYTES:
        raise SubmitError(_too_large(found))
    if closed := [file.source for file in found.files if not os.access(file.source, os.R_OK)]:
        raise SubmitError(_unreadable(closed))
    return found


class _Omitted(NamedTuple):
    """Files left out although no rule ignores them: outputs, and perhaps generated files."""

    outputs: Mapping[Path, str]
    generated: bool


def _listed(context_dir: Path, includes: Sequence[Path], omitted: _Omitted) -> ContextFiles:
    if context_dir.exists() and not context_dir.is_dir():
        raise SubmitError(
            f"{context_dir} is no directory: the code is copied with its whole directory, which is"
            f" {context_dir.parent} here; --include adds single files"
        )
    if not context_dir.is_dir():
        raise SubmitError(f"the context directory {context_dir} does not exist")
    files: dict[str, ContextFile] = {}
    directories: dict[str, None] = {}
    left_out: dict[str, str] = {}
    _take_directory(context_dir, "", omitted, files, directories, left_out)
    taken = {name.partition("/")[0] for name in (*files, *directories)}
    for include in includes:
        name, of_include = include.resolve().name, omitted
        own = _own_place(include, context_dir, files, left_out)
        if own is not None:
            name, of_include = own, omitted._replace(generated=False)
            for inside in [path for path in left_out if _is_within(path, own)]:
                del left_out[inside]
            above = [path.as_posix() for path in PurePosixPath(own).parents][-2::-1]
            directories |= dict.fromkeys(above)
        elif name in taken:
            raise SubmitError(f"--include {include}: duplicate path detected: {name!r}")
        taken.add(name.partition("/")[0])
        if include.is_dir():
            directories[name] = None
            _take_directory(include, name, of_include, files, directories, left_out)
        elif include.is_file():
            files[name] = ContextFile(include, name, include.stat().st_size)
        else:
            raise SubmitError(f"--include {include}: there is no such file or directory")
    notes = [
        *filter(None, left_out.values()),
        *([_many(files)] if len(files) > _MANY_FILES else []),
    ]
    return ContextFiles(tuple(files.values()), tuple(directories), tuple(notes))


def _own_place(
    include: Path, context_dir: Path, files: Collection[str], left_out: Collection[str]
) -> str | None:
    path = include.absolute()
    real = path.parent.resolve() / path.name
    if not real.is_relative_to(context_dir.resolve()):
        return None
    name = real.relative_to(context_dir.resolve()).as_posix()
    if any(_is_within(file, name) for file in files):
        return None
    missed = any(_is_within(gone, name) or _is_within(name, gone) for gone in left_out)
    return name if missed else None


def _is_within(name: str, directory: str) -> bool:
    return name == directory or name.startswith(f"{directory}/")


def _many(names: Collection[str]) -> str:
    counts = Counter(name.partition("/")[0] for name in names if "/" in name)
    largest = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(3))
    return (
        f"{len(names):,} files are copied for each submission{largest and ', most of them in '}"
        f"{largest}: name data and outputs in {IGNORE_FILE} (gitignore syntax)"
    )


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
        try:
            shutil.copy2(file.source, stage / file.name)
        except OSError as err:  # it names the source, whichever of the two it was
            if err.errno in (errno.ENOSPC, errno.EDQUOT):
                raise explained(err, str(stage / file.name)) from err
            raise


def _take_directory(
    root: Path,
    prefix: str,
    omitted: _Omitted,
    files: dict[str, ContextFile],
    directories: dict[str, None],
    left_out: dict[str, str],
) -> None:
    ignored = _ignored(root)
    size = 0
    for path, is_dir, problem in _walk(root, ignored, omitted):
        relative = path.relative_to(root).as_posix()
        name = f"{prefix}/{relative}" if prefix else relative
        if problem is not None:
            left_out[name] = problem and f"{path} is left out: it {problem}"
        elif is_dir:
            directories[name] = None
        else:
            files[name] = ContextFile(path, name, path.stat().st_size)
            size += files[name].size
            if size > _SCAN_LIMIT:  # a link to a whole data set: no need to see all of it
                return


class _Found(NamedTuple):
    """A path below the root, and why it is left out: "" if no note is needed."""

    path: Path
    is_dir: bool
    problem: str | None = None


def _walk(root: Path, ignored: Callable[[str], object], omitted: _Omitted) -> Iterator[_Found]:
    real = root.resolve()
    above = dict.fromkeys(real.parents, "leads to a directory above")
    barred = {**{path: f"holds {what}" for path, what in omitted.outputs.items()}, **above}

    def below(entries: Iterable[os.DirEntry[str]], seen: frozenset[Path]) -> Iterator[_Found]:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = Path(entry.path)
            relative = path.relative_to(root).as_posix()
            try:
                is_dir = entry.is_dir()
            except OSError as err:  # a link into a closed directory, or to itself
                if ignored(relative) or ignored(f"{relative}/"):
                    continue
                if isinstance(err, PermissionError):
                    raise
                yield _Found(path, False, f"leads nowhere: {err.strerror}")
                continue
            if ignored(f"{relative}/" if is_dir else relative):
                continue
            if is_dir:
                yield from directory(path, seen)
            else:
                yield _Found(path, False, _file_problem(path, generated=omitted.generated))

    def directory(path: Path, seen: frozenset[Path]) -> Iterator[_Found]:
        real = path.resolve()
        # Linked directories are frozen by content; a link to a directory above would never end.
        if real in barred or real in seen:
            yield _Found(path, True, barred.get(real))
            return
        entries = list(os.scandir(path))
        kind = generated_directory(path.name, [entry.name for entry in entries])
        problem = f"is {kind}" if kind and omitted.generated else None
        yield _Found(path, True, problem)
        if problem is None:
            yield from below(entries, seen | {real})

    return below(os.scandir(root), frozenset({real}))


def _file_problem(path: Path, *, generated: bool) -> str | None:
    """Why a file is left out; reports, which each look at results leaves, need no note."""
    if not path.is_file():
        return f"is {'a dangling link' if path.is_symlink() else 'not a regular file'}"
    return "" if generated and is_report(path) else None


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
