"""Faults at the door to the file system: kill the process at, or fail, the n-th call of `os`."""

from __future__ import annotations

import errno
import json
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

CALLS = (
    "close",
    "fstat",
    "fsync",
    "link",
    "listdir",
    "mkdir",
    "open",
    "pread",
    "pwrite",
    "read",
    "rename",
    "rmdir",
    "stat",
    "unlink",
    "write",
)
WRITES = ("write", "pwrite")
DEATHS = (*CALLS, "fchmod", "replace", "symlink")
BEFORE, AFTER, HALFWAY = "before", "after", "halfway"


def _forked() -> int:
    with warnings.catch_warnings():
        # Python warns of forking beside threads; the children here call nothing but `os`.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class _Killer:
    """Wraps the calls of `os`; at the n-th one the process dies before, after, or halfway."""

    def __init__(self, at: int, moment: str) -> None:
        self._left = at
        self._moment = moment
        self._real = {name: getattr(os, name) for name in DEATHS}

    def wrap(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left != 0:
                return real(*args, **kwargs)
            if self._moment == AFTER:
                real(*args, **kwargs)
            elif self._moment == HALFWAY and name in WRITES:
                handle, data, *offset = args
                real(handle, bytes(data)[: len(data) // 2], *offset)
            os.kill(os.getpid(), signal.SIGKILL)

        return call

    def install(self) -> None:
        for name in DEATHS:
            setattr(os, name, self.wrap(name))


def killed_at(work: Callable[[], object], call: int, moment: str) -> bool:
    """Do `work` in a child that dies by SIGKILL at its `call`-th call; False if it got done."""
    child = _forked()
    if child == 0:
        code = 70
        try:
            _Killer(call, moment).install()
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work itself failed: see its traceback above"
    return False


def deaths(work: Callable[[], object], *places: Path) -> list[tuple[int, str]]:
    """The calls of `work` and moments to be `killed_at`; the last one never comes.

    Whoever dies after a call that has changed nothing leaves these directories as who dies before
    it. The work is done once, to see what each call changes, also between two calls: other people's
    code has calls of its own.
    """
    return [(call, moment) for call, moment in race(1, lambda _: _deaths(work, places))[0]]


def _deaths(work: Callable[[], object], places: Sequence[Path]) -> list[tuple[int, str]]:
    found = [(1, BEFORE)]
    calls, last = 0, _look(places)

    def note(moment: str, *, changed: bool = False) -> None:
        nonlocal last
        before, last = last, _look(places)
        if changed or last != before:
            found.append((calls, moment))

    def wrap(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            note(BEFORE)
            if name in WRITES:
                found.append((calls, HALFWAY))
            try:
                return real(*args, **kwargs)
            finally:  # what is written in place may be as long as before, in the same moment
                note(AFTER, changed=name in WRITES)

        return call

    with ExitStack() as stack:
        for name in DEATHS:
            stack.enter_context(mock.patch.object(os, name, wrap(name)))
        work()
    return [*found, (10 * calls, AFTER)]


def _look(places: Sequence[Path]) -> list[tuple[object, ...]]:
    """What is in these directories."""
    found: list[tuple[object, ...]] = []
    left = [os.fspath(place) for place in places]
    while left:
        with suppress(FileNotFoundError), os.scandir(left.pop()) as entries:
            for entry in entries:
                stat = entry.stat(follow_symlinks=False)
                times = stat.st_mtime_ns, stat.st_ctime_ns
                found.append((entry.path, stat.st_ino, stat.st_mode, stat.st_size, *times))
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
    return found


def race(workers: int, work: Callable[[int], Any]) -> list[Any]:
    """Let `workers` processes do `work` at the same time; their results (JSON) in order."""
    gate_read, gate_write = os.pipe()
    pipes = []
    for number in range(workers):
        result_read, result_write = os.pipe()
        if _forked() == 0:
            os.close(gate_write)
            os.read(gate_read, 1)  # returns when the gate is closed for all at once
            _report(result_write, work, number)
        os.close(result_write)
        pipes.append(result_read)
    os.close(gate_read)
    os.close(gate_write)
    return [_result(pipe) for pipe in pipes]


def races(workers: int, works: Sequence[Callable[[int], Any]]) -> list[list[Any]]:
    """Let `workers` processes do one work after the other, each at the same time; what they all
    returned of the first work, of the second, and so on."""
    together = get_context("fork").Barrier(workers)

    def all_of_them(number: int) -> list[Any]:
        done = []
        for work in works:
            together.wait(60.0)
            done.append(work(number))
        return done

    return [list(one) for one in zip(*race(workers, all_of_them), strict=True)]


def _report(pipe: int, work: Callable[[int], Any], number: int) -> None:
    try:
        text = json.dumps({"result": work(number)})
    except BaseException:
        text = json.dumps({"error": traceback.format_exc()})
    try:
        os.write(pipe, text.encode())
    finally:
        os._exit(0)


def _result(pipe: int) -> Any:
    with os.fdopen(pipe) as file:
        answer = json.loads(file.read())
    os.wait()
    assert "error" not in answer, answer["error"]
    return answer["result"]


@contextmanager
def failing(
    name: str, code: int, *, times: int = 1, skip: int = 0, done: bool = False, part: int = -1
) -> Iterator[mock.Mock]:
    """Let `times` calls of `os.<name>` fail with `code`, after `skip` that work.

    With `done` they fail although they did their work: a reply that got lost. With `part` a
    write takes that many bytes first, as a disk does that is almost full.
    """
    real = getattr(os, name)
    seen = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        if not skip < seen <= skip + times:
            return real(*args, **kwargs)
        if part >= 0 and seen == skip + 1:
            handle, data, *offset = args
            return real(handle, bytes(data)[:part], *offset)
        if done:
            real(*args, **kwargs)
        raise OSError(code, os.strerror(code))

    with mock.patch.object(os, name, side_effect=call) as patched:
        yield patched


@contextmanager
def refusing(*paths: os.PathLike[str]) -> Iterator[None]:
    """Let nobody open these files, or list these directories, as their mode 000 would do for all
    but root."""
    refused = {os.fspath(path) for path in paths}

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            named = isinstance(path, (str, os.PathLike))
            if named and os.path.normpath(os.fspath(path)) in refused:
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return real(path, *args, **kwargs)

        return call

    with (
        mock.patch.object(os, "open", wrap(os.open)),
        mock.patch.object(os, "scandir", wrap(os.scandir)),
        mock.patch.object(os, "listdir", wrap(os.listdir)),
    ):
        yield


@contextmanager
def failing_at(call: int, code: int) -> Iterator[Callable[[], bool]]:
    """Let the `call`-th call of any kind fail with `code`; yields whether it came to that."""
    left = call

    def wrap(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left != 0:
                return real(*args, **kwargs)
            if name == "close":
                real(*args, **kwargs)  # as on Linux: the handle is gone, whatever is reported
            raise OSError(code, os.strerror(code))

        return wrapped

    with ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(os, name, wrap(name)))
        yield lambda: left <= 0


FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
