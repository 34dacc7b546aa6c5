"""Check an entrypoint before it is queued: report now what would fail hours later.

An entrypoint that fails in any job is refused. If the job's environment is set up by something that
does not run here, a problem is a warning at most; names that may exist only there are not reported.
"""

from __future__ import annotations

import difflib
import os
import posixpath
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detslurm._base import central
from detslurm.config.entrypoints import PLACE
from detslurm.sdk.submission import modules
from detslurm.sdk.submission.determined_imports import missing_imports

_PYTHON = re.compile(r"(.*/)?python(\d(\.\d+)?)?")
_TRIAL = re.compile(r"([a-zA-Z0-9_.]+):([a-zA-Z0-9_]+)")
_SHELL_SYNTAX = set("|&;<>()$`\\*?[#~{\n")
_SOURCE = re.compile(r"(?:^|[;&|({\n])\s*source\s")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_FIRST_LINE = 4096  # bytes
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_ABSOLUTE = re.compile(r"""(?<![^\s;|&<>()'"=])/[^\s;|&<>()'"=]+""")
# Words of the shell before a command, and its built-in commands, which are not in PATH.
_BEFORE = ("exec", "nohup")
_BUILTIN = (
    "! . : [ case cd command eval exit export false for if set source test time trap true type"
    " ulimit umask unset until while { alias read shopt wait declare local"
)
# Python's options that have a value of their own.
_VALUED = "WX"
_OURS, _THEIRS = "detslurm.", "determined."
_LAUNCH = "detslurm.launch."
_NOTEBOOK = "detslurm.exec.tasks.notebook_server"
IN_DIRECTORY = ("sh", "-c", 'cd -- "$0" && exec "$@"')
"""The words before a directory and the program that a task runs there."""
_NEEDS = {"torch_distributed": "torch", "deepspeed": "deepspeed", "horovod": "horovod"}


class Findings:
    """Certain faults, and possible ones."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []


def check_entrypoint(
    entrypoint: str | Sequence[str] | None, files: Mapping[str, Path], *, prepared: bool
) -> Findings:
    """The faults of an entrypoint whose code is `files`, as far as this machine shows; `prepared`
    jobs have setup lines, a container or the like, which may bring more commands."""
    check = _Check(files, prepared)
    if entrypoint is None:
        check.refuse("managed experiments require an entrypoint: the command that trains")
    elif isinstance(entrypoint, str) and _TRIAL.fullmatch(entrypoint):
        check.trial(entrypoint)
    elif words := _words(entrypoint):
        check.command(words)
    elif not isinstance(entrypoint, str) or not entrypoint.strip():
        check.refuse("entrypoint is empty")
    check.absolute_paths(entrypoint or ())
    if isinstance(entrypoint, str):
        check.shell_text(entrypoint)
    return check.findings


class _Check:
    """Follows a command line from its first word to the code that trains."""

    def __init__(self, files: Mapping[str, Path], prepared: bool) -> None:
        self._files, self._prepared = files, prepared
        self._is_own = True  # it is this very Python that will run the code
        self.findings = Findings()

    def refuse(self, problem: str) -> None:
        self.findings.problems.append(problem)

    def _report(self, problem: str, *, certain: bool = True) -> None:
        """Refuse certain faults, unless the job's environment is set up elsewhere."""
        if certain and not self._prepared:
            self.refuse(f"entrypoint: {problem}")
        else:
            self.findings.warnings.append(f"entrypoint: {problem}, as far as can be seen from here")

    def absolute_paths(self, entrypoint: str | Sequence[str]) -> None:
        """Warn of files of the code that are not named as files of its copy, where jobs run."""
        for path in dict.fromkeys(_ABSOLUTE.findall(_text(entrypoint))):
            if (name := _name_in_code(path, self._files)) is not None:
                self.findings.warnings.append(
                    f"entrypoint: jobs would use {path} as it is by then, not the copy:"
                    f" write ./{name}"
                )

    def command(self, words: Sequence[str]) -> None:
        """A command and its arguments, as a shell would find them."""
        if tuple(words[:3]) == IN_DIRECTORY and _NOTEBOOK in words:
            words = words[4:]  # other programs name files of that directory, not of the code
        name, *args = words
        if _PYTHON.fullmatch(name):
            self._found(name)
            self._is_own = _is_this_python(name)
            self._python(args)
        elif name.startswith("./"):
            if (source := self._file(name)) is not None:
                self._executable(source, name)
        elif name in _SHELLS and args and not args[0].startswith("-"):
            self._file(args[0])
        else:
            self._found(name)

    def _executable(self, source: Path, name: str) -> None:
        try:
            with source.open("rb") as file:
                first = file.readline(_FIRST_LINE)
        except OSError:  # the copy of the code will fail with the reason
            return
        if not source.stat().st_mode & stat.S_IXUSR:
            self._report(f"{name} is not executable (chmod +x)")
        elif first.startswith(b"#!") and first.endswith(b"\r\n"):
            self._report(
                f"{name} has the line ends of Windows, with which its #! line names no program"
                f" (sed -i 's/\\r$//' {name.removeprefix('./')})"
            )
        elif first and not first.startswith(b"#!") and b"\0" not in first:  # a text
            self._report(
                f"{name} has no #! line, without which only a shell starts it, as a script of its"
                " own: begin it with one, such as #!/bin/bash",
                certain=False,
            )

    def shell_text(self, text: str) -> None:
        """Faults of an entrypoint for the `sh` that runs it."""
        sh = shutil.which("sh", path=_path())
        if sh is None:
            return
        if _SOURCE.search(_QUOTED.sub("", text)) and Path(sh).resolve().name == "dash":
            self._report("sh, which runs it, is dash here and has no `source`: write `. ./FILE`")
        if not _words(text) and (wrong := _syntax_error(sh, text)):
            self._report(f"the shell can't parse it: {wrong}")

    def _found(self, command: str) -> None:
        if "/" in command:
            if not posixpath.isabs(command):
                self._file(command)
            return
        if self._prepared or shutil.which(command, path=_path()) is not None:
            return
        runner = "python3 " if command.endswith(".py") else "./"
        hint = f": write {runner}{command}" if command in self._files else ""
        self._report(f"there is no command {command!r} in PATH{hint}")

    def _file(self, given: str) -> Path | None:
        name = posixpath.normpath(given)
        if posixpath.isabs(name):
            return Path(name) if Path(name).is_file() else None  # of the nodes' disks, perhaps
        package = posixpath.normpath(f"{name}/__main__.py")
        if name not in self._files and package not in self._files:
            self._report(_missing(name, self._files))
        return self._files.get(name)

    # -- Python ----------------------------------------------------------------------------------

    def _python(self, args: Sequence[str]) -> None:
        kind, name, rest = _target(args)
        if kind == "script" and (source := self._file(name)) is not None:
            self._compiled(source, name)
        elif kind == "module":
            self._module(name, rest)

    def _module(self, module: str, rest: Sequence[str]) -> None:
        name = modules.module_file(module, self._files, run=True)
        if name is not None:
            self._compiled(self._files[name], name)
        elif modules.covers(module, self._files):
            self._report(f"the code has no module {module!r} that python -m could run")
        else:
            self._installed(module, rest)

    def _compiled(self, source: Path, name: str) -> bool:
        error = modules.syntax_error(source, name) if name.endswith(".py") else None
        if error is not None:
            self._report(error, certain=self._is_own)
        elif name.endswith(".py") and not modules.has_determined():
            self._imports(source, name)
        return error is None

    def _imports(self, source: Path, name: str) -> None:
        for missing in missing_imports(source):
            self._report(
                f"{name}, line {missing.line}: detslurm has no {missing.name}: {missing.instead}",
                certain=self._is_own and missing.certain,
            )

    def _installed(self, module: str, rest: Sequence[str]) -> None:
        real = module
        if module.startswith(_THEIRS) and not modules.has_determined():
            real = f"{_OURS}{module.removeprefix(_THEIRS)}"
        if real.startswith(_LAUNCH):
            self._launcher(module, real, rest)
        elif real == _NOTEBOOK:
            if self._is_own and not self._prepared and not modules.exists("jupyter_server"):
                self._lacks("has no Jupyter: python3 -m pip install jupyterlab")
        elif self._is_own and not self._prepared and not modules.exists(real, run=True):
            # A package may find its modules anywhere.
            certain = real.startswith(_OURS) or not modules.exists(real.partition(".")[0])
            self._lacks(f"can't run a module {module!r}", certain=certain)

    def _lacks(self, what: str, *, certain: bool = True) -> None:
        """The system's own Python may be another one on the nodes."""
        of_the_system = Path(sys.prefix).is_relative_to("/usr")
        self._report(f"{sys.executable} {what}", certain=certain and not of_the_system)

    # -- launchers -------------------------------------------------------------------------------

    def _launcher(self, module: str, real: str, words: Sequence[str]) -> None:
        if real == f"{_LAUNCH}function":
            return  # what the SDK runs functions with
        if not modules.is_command(real):
            self._no_launcher(module, sure=module == real)
            return
        needed = _NEEDS.get(real.removeprefix(_LAUNCH))
        if words[:1] == ["--autohorovod"]:  # a single slot needs no Horovod
            needed, words = None, words[1:]
        if needed and self._is_own and not self._prepared and not modules.exists(needed):
            self._lacks(f"has no {needed!r}, which {module} needs")
        elif needed == "horovod" and self._is_own and modules.lacks_mpi(needed):
            guide = "docs/pytorch-reference.md"
            self._lacks(f"has a Horovod without MPI, which {module} needs ({guide})")
        if module.endswith(".wrap_rank"):
            self._worker(_wrapped(words))
        elif words and words[0].startswith("-") and not _is_command(words[0]):
            if "--" in words:
                border = words.index("--")
                run = ["-m"] if "--module" in words[:border] else []
                self._worker([*run, *words[border + 1 :]])
            elif words[0] not in ("-h", "--help"):
                self.refuse(f"entrypoint: `--` must follow the options of {module}")
        else:
            self._worker(words)

    def _no_launcher(self, module: str, *, sure: bool) -> None:
        problem = f"there is no launcher {module!r}; detslurm has {', '.join(launchers())}"
        if sure:
            self.refuse(f"entrypoint: {problem}")
        else:  # another Python may have Determined's own
            self._report(problem, certain=self._is_own)

    def _worker(self, words: Sequence[str]) -> None:
        if not words:
            self.refuse("entrypoint: it names nothing for the launcher to run")
        elif words[0].startswith("--trial"):
            self.trial(words[0].partition("=")[2] or "".join(words[1:2]))
        elif words[0] == "-m" or words[0].endswith(".py"):
            self._python(words)
        else:
            self.command(words)

    # -- Trial classes ---------------------------------------------------------------------------

    def trial(self, spec: str) -> None:
        """A Trial class that `module:Class` names."""
        match = _TRIAL.fullmatch(spec)
        if match is None:
            self.refuse(f"entrypoint: --trial expects MODULE:CLASS, not {spec!r}")
            return
        module, kind = match.groups()
        name = modules.module_file(module, self._files, run=False)
        if name is None:
            if modules.covers(module, self._files) or not modules.exists(module):
                self._report(_missing(f"{module.replace('.', '/')}.py", self._files))
        elif name.endswith(".py") and self._compiled(self._files[name], name):
            there = modules.classes_without(self._files[name], kind)
            if there is not None:
                self._report(f"there is no class {kind!r} in {name}{_hint(kind, there)}")


class PythonCommand(NamedTuple):
    """A script or module of the code that this Python runs, with its arguments."""

    argv: list[str]
    name: str
    source: Path


def python_command(
    entrypoint: str | Sequence[str] | None, files: Mapping[str, Path]
) -> PythonCommand | None:
    """The Python command of an entrypoint, below our launchers; None of any other command."""
    python, *words = _words(entrypoint or ()) or [""]
    if not _PYTHON.fullmatch(python) or not _is_this_python(python):
        return None
    if words[:1] == ["-m"] and words[1:] and words[1].startswith(_LAUNCH):
        words = words[2:]
        if words and words[0].startswith("-") and words[0] != "-m" and "--" in words:
            words = words[words.index("--") + 1 :]
    kind, target, _ = _target(words)
    name = posixpath.normpath(target)
    if kind == "module":
        name = modules.module_file(target, files, run=True) or ""
    if name not in files:
        return None
    return PythonCommand([sys.executable, *words], name, files[name])


def one_node_problem(entrypoint: str | Sequence[str] | None) -> str | None:
    """The fault of an entrypoint on several nodes, each of which runs it by itself."""
    name, *options = _words(entrypoint or "") or [""]
    alone = "connects the processes of one node here, so that each node would train by itself"
    if posixpath.basename(name) == "horovodrun":
        return (
            f"entrypoint: horovodrun {alone}; python3 -m detslurm.launch.horovod connects them"
            " all, by MPI"
        )
    if posixpath.basename(name) == "torchrun" and "--standalone" in options:
        return (
            f"entrypoint: torchrun --standalone {alone}; without this option it connects them all"
        )
    return None


def other_python(entrypoint: str | Sequence[str] | None, files: Mapping[str, Path]) -> str | None:
    """The Python that an entrypoint starts; None where it is this Python, or can't be seen."""
    command = (_words(entrypoint or "") or [""])[0]
    if command.startswith("./"):
        source = files.get(posixpath.normpath(command))
        found = None if source is None else str(source)
    else:
        found = shutil.which(command, path=_path()) if command else None
    if found is not None and not _PYTHON.fullmatch(command):
        found = _interpreter(Path(found))
    return None if found is None or _is_this_python(found) else found


def _interpreter(script: Path) -> str | None:
    try:
        with script.open("rb") as file:
            first = file.readline(_FIRST_LINE)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = os.fsdecode(first[2:]).split()
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if not word.startswith("-")]
    if not words or not _PYTHON.fullmatch(words[0]):
        return None
    return shutil.which(words[0], path=_path())


def launchers() -> list[str]:
    """The names of the launchers that there are."""
    return [name for name in modules.below(_LAUNCH[:-1]) if modules.is_command(f"{_LAUNCH}{name}")]


def _words(entrypoint: str | Sequence[str]) -> list[str]:
    if not isinstance(entrypoint, str):
        return list(entrypoint)
    text = entrypoint.replace(PLACE, "").strip()
    if _SHELL_SYNTAX & set(text):
        return []
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    while words and words[0] in _BEFORE:
        words = words[1:]
    return [] if not words or words[0] in _BUILTIN.split() or "=" in words[0] else words


def _text(entrypoint: str | Sequence[str]) -> str:
    return entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint)


def _name_in_code(path: str, files: Mapping[str, Path]) -> str | None:
    named = (name for name in files if path.endswith(f"/{name}"))
    return next((n for n in named if os.path.realpath(files[n]) == os.path.realpath(path)), None)


def _target(args: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    position = 0
    while position < len(args):
        word, position = args[position], position + 1
        if not word.startswith("-") or word == "-":
            return ("script" if word != "-" else "", word, args[position:])
        for letter, rest in () if word.startswith("--") else _letters(word):
            if letter == "c":
                return "", "", ()
            if letter == "m":
                name, *after = [*([rest] if rest else []), *args[position:]] or [""]
                return "module", name, after
            if letter in _VALUED:
                position += not rest
                break
    return "", "", ()


def _letters(word: str) -> list[tuple[str, str]]:
    return [(word[n], word[n + 1 :]) for n in range(1, len(word))]


def _wrapped(words: Sequence[str]) -> Sequence[str]:
    rest = words[1:] if words[:1] == ["--no-redirect-stdio"] else words
    return rest[2:] if rest[1:2] == ["--"] else rest[1:]


def _is_command(word: str) -> bool:
    return word == "-m" or word.startswith("--trial")


def _path() -> str:
    # The batch script puts the Python's directory first, activated or not.
    path, first = os.environ.get("PATH", os.defpath), central.first_in_path()
    return path if first is None else os.pathsep.join([first, path])


def _syntax_error(sh: str, text: str) -> str:
    options: Any = {"encoding": "utf-8", "errors": "replace", "env": {"LC_ALL": "C.UTF-8"}}
    parsed = subprocess.run([sh, "-n"], input=text, capture_output=True, check=False, **options)
    said = parsed.stderr.partition("\n")[0].removeprefix(f"{sh}: ")
    return said if parsed.returncode else ""


def _is_this_python(command: str) -> bool:
    """Whether a command is the Python that runs this; an environment is known by its folder."""
    found = shutil.which(command, path=_path())
    here = Path(sys.executable)
    return found is not None and Path(found).parent == here.parent and here.samefile(found)


def _missing(name: str, names: Collection[str]) -> str:
    return f"there is no file {name!r} in the context directory{_hint(name, names)}"


def _hint(name: str, names: Collection[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
