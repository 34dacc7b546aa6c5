"""YAML text to nodes: every key and value with its line and column, every fault a problem."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from detslurm.config.describe import found
from detslurm.config.errors import ConfigErrors, ConfigProblem, Position
from detslurm.config.scalars import resolve, was_bool_in_yaml_1_1
from detslurm.config.yaml_node import MAX_DEPTH, MAX_VALUES, Scalar, YamlNode, scalar_problem

MAX_BYTES = 4 << 20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_TOO_DEEP = f"the data is nested more than {MAX_DEPTH} levels deep"


def read_file(path: Path, name: str | None = None) -> str:
    """The text of a configuration file (`-`: standard input), or ConfigErrors."""
    name = name or str(path)
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else _read_regular(path)
    except (OSError, ValueError) as error:
        raise ConfigErrors([_unreadable(path, name, error)]) from None
    if len(data) > MAX_BYTES:
        message = f"the file is bigger than {MAX_BYTES >> 20} MiB: that is not a configuration"
        raise ConfigErrors([ConfigProblem(name, None, None, "", message)])
    return _decode(data, name)


def _read_regular(path: Path) -> bytes:
    # O_NONBLOCK: a FIFO without a writer must not make the command hang.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123
        return file.read(MAX_BYTES + 1) or b""


def _unreadable(path: Path, name: str, error: Exception) -> ConfigProblem:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = ""
    if isinstance(error, FileNotFoundError) and path.parent.is_dir():
        found = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml"))
        hint = f"there is {', '.join(found[:5])}" if found else ""
    return ConfigProblem(name, None, None, "", f"can't read the configuration: {reason}", hint)


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        message = f"this is not UTF-8 text (byte 0x{data[error.start]:02x})"
        raise ConfigErrors([ConfigProblem(name, line, column, "", message)]) from None


def parse(text: str, name: str) -> YamlNode:
    """The nodes of one YAML document."""
    _refuse_binary(text, name)
    _refuse_script(text, name)
    composer = _Composer(name)
    try:
        node = composer.document(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        raise ConfigErrors([*composer.problems, _syntax(error, text, name)]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = ConfigProblem(name, None, None, "", f"this is not YAML: {error}")
        raise ConfigErrors([*composer.problems, problem]) from None
    if composer.problems:
        raise ConfigErrors(composer.problems)
    return node


def parse_mapping(text: str, name: str) -> YamlNode:
    """As `parse`, for a mapping of keys to values; an empty document is an empty mapping."""
    root = parse(text, name)
    if root.value is None:
        return root._replace(value={})
    if root.is_mapping:
        return root
    hint = ""
    if isinstance(root.value, str) and ":" in root.value:
        hint = "a space is needed after the colon of a key"
    message = f"a mapping of keys to values is expected, found {found(root)}"
    raise ConfigErrors([ConfigProblem.at(root.at, "", message, hint)])


def _refuse_binary(text: str, name: str) -> None:
    for index, char in enumerate(text):
        if (char < " " and char not in "\t\n\r") or char in "\x7f\ufffe\uffff":
            line = text.count("\n", 0, index) + 1
            column = index - text.rfind("\n", 0, index)
            message = f"the control character {char!a} has no place in a text file"
            raise ConfigErrors(
                [ConfigProblem(name, line, column, "", message, "is it a YAML file?")]
            )


def _refuse_script(text: str, name: str) -> None:
    file = name.rpartition("/")[2]
    if file.endswith(".py"):
        program, instead = "python3", ""
    elif text.startswith("#!") or file.endswith((".sh", ".sbatch", ".slurm")):
        program = "python3" if "python" in text.partition("\n")[0] else "bash"
        instead = (
            f". Or keep `sbatch {file}`: `detslurm batch-script list` has batch scripts whose"
            " training is recorded"
        )
    else:
        return
    hint = f"submit an experiment.yaml beside it that has `entrypoint: {program} {file}`{instead}"
    message = "this is a script, not a configuration"
    raise ConfigErrors([ConfigProblem(name, None, None, "", message, hint)])


def _syntax(error: yaml.MarkedYAMLError, text: str, name: str) -> ConfigProblem:
    mark = error.problem_mark or error.context_mark
    message = ", ".join(part for part in (error.context, error.problem) if part)
    hint = ""
    if mark and text[mark.index : mark.index + 1] == "\t":
        hint = "indent with spaces, not with tabs"
    elif "mapping values are not allowed" in message:
        hint = "check the indentation, and quote text that contains a colon and a space"
    elif "cannot start any token" in message:
        hint = "quote text that begins with this character"
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    # libyaml of PyYAML 6.0.4 has a limit, too, and reads ahead.
    says = _TOO_DEEP if "nesting depth" in message else f"YAML syntax: {message}"
    return ConfigProblem(name, line, column, "", says, hint)


class _Composer:
    """Builds nodes from the parser's events; keeps all problems that leave the syntax readable."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._anchors: dict[str, tuple[YamlNode, int]] = {}
        self._count = 0
        self.problems: list[ConfigProblem] = []

    def document(self, events: Iterator[Any]) -> YamlNode:
        self._events = events
        root = YamlNode(None, Position(self._name, 1, 1))
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._problem(event, "there is more than one document in this file")
                    break
                root = self._node(next(events), 0)
        return root

    def _node(self, event: Any, depth: int) -> YamlNode:
        if depth > MAX_DEPTH:
            self._fatal(event, _TOO_DEEP)
        self._count += 1
        if self._count > MAX_VALUES:
            self._fatal(event, f"there are more than {MAX_VALUES} values")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._count
        if isinstance(event, yaml.ScalarEvent):
            unquoted = event.implicit[0] and event.tag is None
            was_bool = unquoted and was_bool_in_yaml_1_1(event.value)
            node = YamlNode(self._scalar(event), self._at(event), was_bool=was_bool)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, depth)
        else:
            node = self._mapping(event, depth)
        if event.anchor:
            self._anchors[event.anchor] = (node, self._count - before + 1)
        return node

    def _alias(self, event: Any) -> YamlNode:
        if event.anchor not in self._anchors:
            self._problem(event, f"there is no anchor &{event.anchor} before this")
            return YamlNode(None, self._at(event))
        node, size = self._anchors[event.anchor]
        # Aliases of aliases grow without bound when they are written out.
        self._count += size
        if self._count > MAX_VALUES:
            self._fatal(event, f"written out, the aliases give more than {MAX_VALUES} values")
        return node

    def _sequence(self, start: Any, depth: int) -> YamlNode:
        self._check_tag(start, "seq")
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return YamlNode(items, self._at(start))

    def _mapping(self, start: Any, depth: int) -> YamlNode:
        self._check_tag(start, "map")
        entries: dict[str, YamlNode] = {}
        inherited: list[YamlNode] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, depth)
            value = self._node(next(self._events), depth + 1)
            if key == "<<" and event.implicit[0]:
                inherited.extend(value.value if value.is_list else [value])
            elif key in entries:
                line = entries[key].where.line
                self._problem(event, f'the key "{key}" is already in line {line}', key)
            elif key is not None:
                entries[key] = value._replace(key_at=self._at(event))
        return YamlNode(self._inherit(entries, inherited), self._at(start))

    def _inherit(
        self, entries: dict[str, YamlNode], sources: list[YamlNode]
    ) -> dict[str, YamlNode]:
        for source in sources:
            if not source.is_mapping:
                message = "<< takes a mapping, or a list of mappings"
                self.problems.append(ConfigProblem.at(source.at, "", message))
                continue
            entries = {**source.value, **entries}
        return entries

    def _key(self, event: Any, depth: int) -> str | None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
            return str(event.value)
        self._node(event, depth + 1)
        self._problem(event, "a key must be text, not a list, a mapping or an alias")
        return None

    def _scalar(self, event: Any) -> Scalar:
        value = self._tagged(event)
        if message := scalar_problem(value):
            self._problem(event, message)
        return value

    def _tagged(self, event: Any) -> Scalar:
        text = str(event.value)
        if event.tag is None or event.tag == "!":
            return resolve(text) if event.implicit[0] and event.tag is None else text
        if event.tag == _CORE + "str":
            return text
        value = resolve(text)
        wanted = {"int": int, "float": float, "bool": bool, "null": type(None)}
        kind = wanted.get(event.tag.removeprefix(_CORE))
        if kind is float and type(value) is int:
            return float(value)
        if kind is None or type(value) is not kind:
            self._problem(event, f"the tag {event.tag.replace(_CORE, '!!')} can't be used here")
        return value

    def _check_tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", _CORE + kind):
            self._problem(event, f"the tag {event.tag.replace(_CORE, '!!')} can't be used here")

    def _at(self, event: Any) -> Position:
        mark = event.start_mark
        return Position(self._name, mark.line + 1, mark.column + 1)

    def _problem(self, event: Any, message: str, path: str = "") -> None:
        self.problems.append(ConfigProblem.at(self._at(event), path, message))

    def _fatal(self, event: Any, message: str) -> None:
        self._problem(event, message)
        raise ConfigErrors(self.problems)
