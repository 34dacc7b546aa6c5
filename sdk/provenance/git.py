"""The state of the git repository that the code lies in, asked within a short time.

Git runs without its hooks, its file monitor, other programs that show differences, the network and
questions to the user: none of them may delay a submission, or change anything.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from detslurm.config.secret_texts import PROGRAMS, masked_code, masked_forms
from detslurm.store.provenance import CodeVersion

LIMIT: Final = 1.0
"""Seconds that all of git's answers may take together; the rest stays unknown."""

LONGEST_DIFF: Final = 1 << 18  # bytes
_LONGEST_LIST: Final = 1 << 22  # bytes
_LATE: Final = f"git did not answer within {LIMIT:g} s"
_MOST_NAMES: Final = 100
_MOST_REMOTES: Final = 10

_OPTIONS: Final = (
    "--no-pager",
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.quotePath=false"),
    *("-c", "diff.relative=false"),
    *("-c", "diff.autoRefreshIndex=false"),  # a diff would write the index, optional or not
)
_SETTINGS: Final = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch what it lacks
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}
# Of a hook that submits, or of a user's other repository: the code's own directory decides.
_REDIRECTIONS: Final = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CEILING_DIRECTORIES",
    "GIT_DIFF_OPTS", "GIT_EXTERNAL_DIFF",
)  # fmt: skip
_DIFF: Final = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=diff")

_CHANGED: Final = ("status", "--porcelain", "-z", "--untracked-files=no", "--no-renames")
_UNTRACKED: Final = ("ls-files", "--others", "--exclude-standard", "--directory", "-z")


class _NoAnswer(Exception):
    """Git gave no answer; the text has the reason."""


def code_version(folder: Path, env: Mapping[str, str] = os.environ) -> CodeVersion:
    """Return the version of the code in a directory; unknown parts are named, never an error."""
    repository = next((p for p in (folder, *folder.parents) if os.path.lexists(p / ".git")), None)
    if repository is None:
        return CodeVersion(problem="the code is in no git repository")
    git = _Git(folder, env)
    try:
        return git.version(repository)
    except FileNotFoundError:
        return _unknown(repository, "there is no git command")
    except OSError as error:
        return _unknown(repository, f"git can't be started: {error.strerror}")


def _unknown(repository: Path, why: str) -> CodeVersion:
    return CodeVersion(repository=str(repository), problem=f"the commit is unknown: {why}")


class _Git:
    """Commands of git in one directory, which together end within the limit."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = str(folder)
        kept = {name: value for name, value in env.items() if name not in _REDIRECTIONS}
        self._env = {**kept, **_SETTINGS}
        self._until = time.monotonic() + LIMIT

    def version(self, repository: Path) -> CodeVersion:
        try:
            found = self._at_commit() or self._without_commit(repository)
        except _NoAnswer as error:
            return _unknown(repository, str(error))
        try:
            return self._with_changes(found)
        except _NoAnswer as error:
            why = f"not all uncommitted changes are recorded: {error}"
            return msgspec.structs.replace(found, problem=why)

    def _at_commit(self) -> CodeVersion | None:
        """The repository and its commit; None where git refuses, or there is no commit."""
        code, text = self._run("rev-parse", "HEAD", "--abbrev-ref", "HEAD", "--show-toplevel")
        if code:
            return None
        commit, branch, place = text.decode(errors="replace").split("\n", 2)
        branch_name = None if branch == "HEAD" else branch
        return CodeVersion(repository=place.rstrip("\n"), commit=commit, branch=branch_name)

    def _without_commit(self, repository: Path) -> CodeVersion:
        code, text = self._run("rev-parse", "--show-toplevel", with_errors=True)
        lines = text.decode(errors="replace").splitlines()
        if code or not lines:
            return _unknown(repository, _refusal(lines, repository))
        return CodeVersion(repository=lines[0], problem="the repository has no commit yet")

    def _with_changes(self, found: CodeVersion) -> CodeVersion:
        remotes = self._remotes()
        if found.commit is None:
            return msgspec.structs.replace(found, remotes=remotes)
        # Each name stands behind two letters for its state and a space.
        changed = [entry[3:] for entry in self._names(*_CHANGED)]
        diff, is_cut = self._diff() if changed else ("", False)
        found = msgspec.structs.replace(
            found,
            remotes=remotes,
            changed=tuple(changed[:_MOST_NAMES]),
            changed_count=len(changed),
            diff=diff,
            diff_is_cut=is_cut,
        )
        try:
            untracked = self._names(*_UNTRACKED)
        except _NoAnswer:
            return found  # the copy of the code has these files
        return msgspec.structs.replace(found, untracked_count=len(untracked))

    def _remotes(self) -> dict[str, str]:
        _, text = self._run("config", "-z", "--get-regexp", r"^remote\..*\.url$")
        entries = (entry.partition("\n") for entry in text.decode(errors="replace").split("\0"))
        named = {name[7:-4]: without_credentials(url) for name, _, url in entries if url}
        return dict(list(named.items())[:_MOST_REMOTES])

    def _names(self, *words: str) -> list[str]:
        code, text = self._run(*words)
        if code:
            raise _NoAnswer(f"git {words[0]} failed with status {code}")
        return [name for name in text.decode(errors="replace").split("\0") if name]

    def _diff(self) -> tuple[str, bool]:
        """The patch without secrets, and whether it was cut."""
        _, data = self._run(*_DIFF, most=LONGEST_DIFF)
        is_cut = len(data) > LONGEST_DIFF
        if is_cut:
            data = data[: data.rfind(b"\n", 0, LONGEST_DIFF) + 1]
        return masked_diff(data.decode(errors="replace")), is_cut

    def _run(
        self, *words: str, most: int = _LONGEST_LIST, with_errors: bool = False
    ) -> tuple[int, bytes]:
        """The exit status and the output of a command, no more than about `most` bytes of it."""
        process = subprocess.Popen(
            ["git", "-C", self._folder, *_OPTIONS, *words],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
            process_group=0,  # with its filters and submodules it is ended as a whole
        )
        assert process.stdout is not None
        with process.stdout as output:
            try:
                data = _read(output.fileno(), most, self._until)
                if len(data) > most:
                    return 0, data
                return process.wait(max(self._until - time.monotonic(), 0.01)), data
            except subprocess.TimeoutExpired as error:
                raise _NoAnswer(_LATE) from error
            finally:
                if process.poll() is None:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _read(handle: int, most: int, until: float) -> bytes:
    """The bytes that a pipe has until its end, or until there are more than `most`."""
    data = bytearray()
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while len(data) <= most:
        if not poll.poll(1000 * max(until - time.monotonic(), 0.0)):
            raise _NoAnswer(_LATE)
        piece = os.read(handle, 1 << 16)
        if not piece:
            break
        data += piece
    return bytes(data)


def _refusal(lines: Sequence[str], repository: Path) -> str:
    """The reason of git in short."""
    if any("dubious ownership" in line for line in lines):
        return (
            f"{repository} belongs to another user, and git does not read it"
            f" (`git config --global --add safe.directory {repository}` permits that)"
        )
    fatal = (line.removeprefix("fatal: ") for line in lines if line.startswith("fatal: "))
    return f"git answers: {masked_forms(next(fatal, 'nothing'))[:200]}"


# -- secrets ---------------------------------------------------------------------------------------

_WITH_USER = re.compile(r"^(\w[\w+.-]*://)([^/\s]*)@")
_HEADER = re.compile(r"^(?=diff --git )", re.MULTILINE)


def without_credentials(url: str) -> str:
    """Return the address of a remote without a password or a token. The user of SSH stays, because
    it is part of the address."""

    found = _WITH_USER.match(url)
    if found is None:
        return masked_forms(url)
    scheme, user = found[1], found[2].partition(":")[0]
    rest = url[found.end() :]
    return f"{scheme}{user}@{rest}" if "ssh" in scheme else masked_forms(f"{scheme}{rest}")


def masked_diff(text: str) -> str:
    """Return a patch, as `git diff` prints it, without the secrets in it."""
    return "".join(_masked_files(text))


def _masked_files(text: str) -> Iterator[str]:
    for part in _HEADER.split(text):
        name, _, content = part.partition("\n")
        if content:  # else the file was touched, and is the same
            yield masked_code(part, program=Path(name).suffix in PROGRAMS)
