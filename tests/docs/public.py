"""What the public API consists of, and what its docstrings document."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from detslurm import errors

SECTIONS = ("Args", "Attributes", "Example", "Raises", "Returns", "Yields")

FRAMEWORKS = ("keras", "lightning", "pytorch_lightning", "transformers")
"""Packages that call methods of ours with arguments of their own, which they document."""

_HEADING = re.compile(r"^(\w+):$")
_SECTION = re.compile(rf"^(?:{'|'.join(SECTIONS)}):\n(?: {{4}}.*\n?|\n)*", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\*{0,2}\w+): (.*)$")
_REFERENCE = re.compile(r"\b[Aa]rguments\b[\w\s,]*\bas\s+in\s+`([\w.]+)`")


@dataclass(frozen=True)
class Documented:
    """A public function, method or class, its parameters and its docstring."""

    name: str
    subject: Any
    parameters: tuple[inspect.Parameter, ...]
    home: Any = None

    @property
    def referenced(self) -> Docstring:
        """The docstrings with the arguments and errors that this one leaves out: "Arguments as in
        `NAME`", where NAME is beside it, or in its module or `detslurm.sdk`."""
        found, doc, home = Docstring(""), self.doc, self.home
        while reference := _REFERENCE.search(doc.text):
            home, name = self._named_by(reference[1], home)
            doc = Docstring.of(inspect.getdoc(getattr(home, name)) or "")
            found = found.over(doc)
        return found

    def _named_by(self, reference: str, home: Any) -> tuple[Any, str]:
        from detslurm import sdk

        *owner, name = reference.split(".")
        if owner:
            module = sys.modules[self.subject.__module__]
            return getattr(module, owner[0], None) or getattr(sdk, owner[0]), name
        return home if hasattr(home, name) else sdk, name

    @property
    def doc(self) -> Docstring:
        return Docstring.of(inspect.getdoc(self.subject) or "")

    @property
    def common(self) -> Docstring:
        """The docstrings of its classes: they describe what several methods take or raise."""
        is_method = inspect.isclass(self.home) and self.home is not self.subject
        found = Docstring("")
        for home in self.home.__mro__[:-1] if is_method else ():
            found = found.over(Docstring.of(inspect.cleandoc(home.__doc__ or "")))
        return found

    @property
    def returns(self) -> bool:
        """Whether a call gives anything."""
        if not inspect.isfunction(self.subject):
            return False
        given = inspect.signature(self.subject).return_annotation
        return given not in (None, "None", "Iterator[None]")

    def raised(self) -> set[str]:
        """The names of the exceptions that its own body raises."""
        function = inspect.unwrap(getattr(self.subject, "fget", None) or self.subject)
        if inspect.isclass(function):
            function = vars(function).get("__init__") if self.parameters else None
        if not inspect.isfunction(function) or "<string>" in function.__code__.co_filename:
            return set()
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        calls = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise))
        names = (c.func for c in calls if isinstance(c, ast.Call))
        found = {name.id for name in names if isinstance(name, ast.Name)}
        return {name for name in found if name[0].isupper()} - {"NotImplementedError"}


@dataclass
class Docstring:
    """A docstring's text and its sections; entries by name where a section has entries."""

    text: str
    sections: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Docstring:
        found, lines = cls(text), None
        for line in text.splitlines():
            if heading := _HEADING.match(line):
                lines = found.sections.setdefault(heading[1], [])
            elif lines is not None and (line.startswith("    ") or not line):
                lines.append(line)
            else:
                lines = None
        return found

    def entries(self, section: str) -> dict[str, str]:
        """`name: text` of a section in order; text may go on in lines that are further in."""
        found: dict[str, str] = {}
        last = ""
        for line in self.sections.get(section, ()):
            if entry := _ENTRY.match(line):
                last = entry[1]
                found[last] = entry[2]
            elif last:
                found[last] += " " + line.strip()
        return found

    def over(self, other: Docstring) -> Docstring:
        """Both as one, with this one's entries before those of the other."""
        sections = {name: lines.copy() for name, lines in other.sections.items()}
        for name, lines in self.sections.items():
            sections[name] = [*sections.get(name, ()), *lines]
        return Docstring(f"{self.text}\n{other.text}", sections)

    @property
    def named(self) -> set[str]:
        """The names in the text around the sections, which describes short functions by itself."""
        text = _SECTION.sub("", self.text)
        return set(re.findall(r"`(\*{0,2}\w+)`", text))

    @property
    def says_result(self) -> bool:
        """Whether the first paragraph is about what it gives."""
        first = self.text.split("\n\n")[0].replace("\n", " ")
        return first.startswith(("Return ", "Yield ", "Make ", "Draw ")) or "return " in first

    def example(self) -> str:
        """The code of its example; empty where it has none."""
        return textwrap.dedent("\n".join(self.sections.get("Example", ())))


def public(module: str, ours: Callable[[type], bool]) -> Iterator[Documented]:
    """Everything that users call of what a module exports; of classes that are `ours` to make,
    the methods alone."""
    package = importlib.import_module(module)
    for name in exported(package):
        subject = getattr(package, name)
        if inspect.isclass(subject):
            yield from _of_class(f"{module}.{name}", subject, ours(subject))
        elif inspect.isfunction(subject):
            yield Documented(f"{module}.{name}", subject, _parameters(subject), package)


def exported(package: Any) -> list[str]:
    """The names that a package exports, or those that it defines where it names none."""
    if (names := getattr(package, "__all__", None)) is not None:
        return list(names)
    here = package.__name__
    return [
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == here
    ]


def _of_class(name: str, subject: type, ours: bool) -> Iterator[Documented]:
    plain = issubclass(subject, BaseException) and "__init__" not in vars(subject)
    hidden = ours or plain or issubclass(subject, Enum)
    yield Documented(name, subject, () if hidden else _parameters(subject), subject)
    for member in dir(subject):
        value, home = _defined(subject, member)
        if member.startswith("_") or not home.__module__.startswith("detslurm"):
            continue
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if inspect.isfunction(function):
            given = () if _is_hook(subject, member) else _parameters(function)
            yield Documented(f"{name}.{member}", function, given, subject)
        elif isinstance(function, (property, functools.cached_property)):
            yield Documented(f"{name}.{member}", function, ())


def _defined(subject: type, member: str) -> tuple[Any, type]:
    for home in subject.__mro__:
        if member in vars(home):
            return vars(home)[member], home
    return None, object


def _is_hook(subject: type, member: str) -> bool:
    """Whether a framework calls it."""
    homes = (home for home in subject.__mro__ if member in vars(home))
    return any(home.__module__.partition(".")[0] in FRAMEWORKS for home in homes)


def _parameters(subject: Any) -> tuple[inspect.Parameter, ...]:
    found = inspect.signature(subject).parameters.values()
    return tuple(p for p in found if p.name not in ("self", "cls") and not p.name.startswith("_"))


def spelled(parameter: inspect.Parameter) -> str:
    """As a docstring names it."""
    prefixes = {
        inspect._ParameterKind.VAR_POSITIONAL: "*",
        inspect._ParameterKind.VAR_KEYWORD: "**",
    }
    return prefixes.get(parameter.kind, "") + parameter.name


def is_exception(name: str) -> bool:
    """Whether users find an exception by that name."""
    import detslurm
    from detslurm import core, sdk, store

    homes = (builtins, errors, detslurm, core, sdk, store)
    return any(hasattr(home, name) for home in homes)
