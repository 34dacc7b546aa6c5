"""A Python that has imported what a job's first trial imported, and forks each further trial.

`python3 warm_interpreter.py FD` gets one JSON request a run from its socket FD, with the pipe for
the code's output, and answers with the code's wait status. It runs in the Python of the code, so it
takes nothing but the standard library. No user's module, thread, open file or signal handler may be
in it: with one it refuses, and the run gets a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import mmap
import os
import signal
import socket
import sys
import sysconfig
import threading
import types
from collections.abc import Mapping
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # before any fork: see child_processes

# Their import begins what belongs to one process: MPI's library, say.
_NEVER = ("mpi4py.MPI", "horovod")
# Bytes for the names of imported modules; a page takes memory once it is written.
_ROOM = 1 << 22


class Program:
    """The code of one run: its command, environment, working directory and output."""

    def __init__(self, plain: Mapping[str, Any], output: int) -> None:
        self.words: list[str] = plain["words"]
        self.env: dict[str, str] = plain["env"]
        self.cwd: str = plain["cwd"]
        self.output = output


class WarmInterpreter:
    """Forks runs one after the other; imports before the next run once a run has ended well."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._relative = _relative_paths()
        self._imports = mmap.mmap(-1, _ROOM)  # shared with forks, and no file
        self._set_by_code: set[str] = set()
        self._added: dict[str, str] = {}  # variables that imports have set
        self._refusal: str | None = None
        self._is_warm = False

    def serve(self) -> Program | None:
        """Answer requests; in a forked process the request to run, and None at the end."""
        while (request := self._next()) is not None:
            if not self._is_warm and self._imports[0]:
                self._warm_up(request.cwd)
            if self._refusal is not None:
                os.close(request.output)
                self._answer(refused=self._refusal)
                continue
            pid = os.fork()
            if pid == 0:
                self._become_code(request)
                return request
            os.close(request.output)
            self._answer(pid=pid)
            _, status = os.waitpid(pid, 0)
            self._answer(status=status)
        return None

    def _next(self) -> Program | None:
        data, output = b"", -1
        while not data.endswith(b"\n"):
            chunk, fds, _, _ = socket.recv_fds(self._connection, 1 << 16, 1)
            output = fds[0] if fds else output
            if not chunk:
                return None
            data += chunk
        return Program(json.loads(data), output)

    def _answer(self, **fields: int | str) -> None:
        self._connection.sendall(json.dumps(fields).encode() + b"\n")

    # -- imports ---------------------------------------------------------------------------------

    def _warm_up(self, cwd: str) -> None:
        """Import modules of the libraries; afterwards this process must be as clean as before."""
        imports = json.loads(self._imports[: self._imports.find(b"\0")])
        files, handlers, place = _open_files(), _handlers(), os.getcwd()
        # Libraries look for files and variables: they find those of a run.
        os.chdir(cwd)
        os.environ.update(imports["variables"])
        before = dict(os.environ)
        for name in imports["modules"]:
            try:
                importlib.import_module(name)
            except Exception:  # the code had another way to it
                continue
        os.chdir(place)
        self._is_warm = True
        gc.freeze()  # a collection in a fork would copy what both share
        self._added = {k: v for k, v in os.environ.items() if before.get(k) != v}
        if _open_files() != files:
            self._refusal = "the imports have opened files"
        elif _handlers() != handlers:
            self._refusal = "the imports have set signal handlers"
        elif not _forks_alone():
            self._refusal = "the imports have started threads"

    def _keep_imports(self, env: Mapping[str, str]) -> None:
        """Write down what a run has imported from libraries, in the order of the imports, and the
        variables that its own code has set: libraries may have read them."""
        modules = [
            name
            for name, module in list(sys.modules.items())
            if not name.startswith(_NEVER) and _origin(module).startswith(_LIBRARIES)
        ]
        now = {name: os.environ.get(name) for name in self._set_by_code}
        variables = {k: v for k, v in now.items() if v is not None and v != env.get(k)}
        imports = json.dumps({"modules": modules, "variables": variables}).encode()
        self._imports[: len(imports) + 1] = imports + b"\0"

    def _on_audit(self, event: str, arguments: Any) -> None:
        if event == "os.putenv":
            frame = sys._getframe(1)
            while frame.f_globals.get("__name__") in ("os", "_collections_abc") and frame.f_back:
                frame = frame.f_back
            if not frame.f_code.co_filename.startswith(("<frozen", *_LIBRARIES)):
                self._set_by_code.add(os.fsdecode(arguments[0]))

    # -- the forked process ----------------------------------------------------------------------

    def _become_code(self, request: Program) -> None:
        """Be as a process that was just started for the request."""
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.dup2(request.output, 1)
        os.dup2(1, 2)
        self._connection.detach()
        for fd in _open_files():
            if int(fd) > 2:
                with contextlib.suppress(OSError):  # it listed the others
                    os.close(int(fd))
        os.chdir(request.cwd)
        sys.path[:] = [os.path.abspath(self._relative.get(path, path)) for path in sys.path]
        wanted = {**self._added, **request.env}
        for name in os.environ.keys() - wanted.keys():
            del os.environ[name]
        for name, value in wanted.items():
            if os.environ.get(name) != value:  # each change takes time, and few differ
                os.environ[name] = value
        for sig in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(sig) is not None:
                signal.signal(sig, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        # Python's own generator seeds itself after a fork; each process has others of these, too.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        if "torch" in sys.modules:
            sys.modules["torch"].default_generator.seed()
        if "multiprocessing.process" in sys.modules:
            sys.modules["multiprocessing.process"].ORIGINAL_DIR = request.cwd  # type: ignore
        if not self._is_warm:
            atexit.register(self._keep_imports, request.env)
            sys.addaudithook(self._on_audit)


def run(words: list[str]) -> None:
    """Run `SCRIPT ...` or `-m MODULE ...` as the program of this process."""
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    if words[0] == "-m":
        import runpy

        sys.argv = ["-m", *words[2:]]
        _search_first(os.getcwd())
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # as Python itself does
        return
    main.__file__ = path = os.path.abspath(words[0])
    sys.argv = words
    _search_first(os.path.dirname(os.path.realpath(path)))
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _search_first(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def main() -> None:
    """Serve; then, in a forked process, be the code."""
    # All of Slurm's signals reach this process, too; it ends with its agent.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file, whose modules are no one's libraries
    request = WarmInterpreter(socket.socket(fileno=int(sys.argv[1]))).serve()
    if request is not None:
        _leave(_status_of(request.words))


def _status_of(words: list[str]) -> int:
    """The exit status of a program that has come to its end; an error is printed."""
    try:
        run(words)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return (leaving.code or 0) & 0xFF
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _leave(status: int) -> NoReturn:
    """End as Python does, but take no library apart: that touches all of its memory, which is
    shared so far, and takes longer than a short trial."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the program's threads
    atexit._run_exitfuncs()
    _write_open_files()
    # The program's own objects end in order.
    for name, module in list(sys.modules.items()):
        origin = _origin(module)
        if name == "__main__" or (os.sep in origin and not origin.startswith(_LIBRARIES)):
            del sys.modules[name], module
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def _write_open_files() -> None:
    """Write what files of the program still hold: a collection may end them in any order."""
    for found in gc.get_objects():
        if type(found) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with contextlib.suppress(Exception):
                found.flush()


def _library_directories() -> tuple[str, ...]:
    """Where installed modules and our own lie; an editable package of the user's lies elsewhere."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return tuple(os.path.join(path, "") for path in found)


_LIBRARIES = _library_directories()


def _origin(module: object) -> str:
    """The file of a module, or an empty string."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return origin if isinstance(origin, str) else ""


def _relative_paths() -> dict[str, str]:
    """Relative entries of PYTHONPATH, by what Python has made of them at its start."""
    given = os.environ.get("PYTHONPATH")
    paths = given.split(os.pathsep) if given else []
    return {os.path.abspath(path): path for path in paths if not os.path.isabs(path)}


def _open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _handlers() -> dict[int, object]:
    return {sig: signal.getsignal(sig) for sig in signal.valid_signals()}


def _forks_alone() -> bool:
    """Whether a fork leaves no threads behind: libraries such as OpenBLAS end theirs before it."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) == 1


if __name__ == "__main__":
    main()
