"""Rules of `arguments`: faults that would end each trial are errors before anything queues."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from detslurm.config.arguments import KEY, Form, fields, form_of, leaves, text_of, value_of
from detslurm.config.entrypoints import names_trial_class, suggestion, unquoted_place
from detslurm.config.errors import ConfigProblem
from detslurm.config.schema.arguments import Flags
from detslurm.config.secret_texts import masked_text
from detslurm.config.yaml_node import YamlNode

_FLAG = re.compile(r"[^\s=-][^\s=]*")
_BARE_WORD = re.compile(r"\w+")
_ITEM_FORMS = "choose another form, such as arguments: {flags: {lists: --flag=1 --flag=2}}"

Path = tuple[str, ...]


def argument_problems(root: YamlNode) -> Iterator[ConfigProblem]:
    """All broken rules; an `arguments` of a wrong kind is left to the checker."""
    node, space = root.get("arguments"), root.get("hyperparameters")
    if node is None or (space and not space.is_mapping):
        return
    try:
        form = form_of(node.plain())
    except msgspec.ValidationError:
        return
    yield from _entrypoint(root)
    plain = space.plain() if space else {}
    name = root.get("searcher", "name")
    if name and name.value == "custom":  # its method may give trials other hyperparameters
        return
    for message, hint in _faults(form, plain):
        yield ConfigProblem.at(node.at, "arguments", message, hint)


def _entrypoint(root: YamlNode) -> Iterator[ConfigProblem]:
    node = root.get("entrypoint")
    if node is None:
        return
    if names_trial_class(root):
        message = "a Trial class reads its hyperparameters from its context: it takes no arguments"
        yield ConfigProblem.at(root.value["arguments"].where, "arguments", message, "leave it out")
    elif isinstance(node.value, str):
        for message, hint in _place(node.value):
            yield ConfigProblem.at(node.at, "entrypoint", message, hint)


def _place(text: str) -> Iterator[tuple[str, str]]:
    if unquoted := unquoted_place(text):
        yield f'{unquoted} breaks values at their spaces: "$@" with its quotes keeps them', ""
    elif better := suggestion(text):
        message = "several commands, or a redirection, leave open which command gets the arguments"
        yield message, f'put "$@" there, such as: {masked_text(better)}'


def _faults(form: Form, space: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if form == "hydra":
        yield from _hydra(space)
    elif isinstance(form, str) and form != "flags":
        yield from _template(form, space)
    elif isinstance(form, str):
        yield from _flags(Flags(), space)
    elif form.flags is not None:
        yield from _flags(form.flags, space)


def possible_values(space: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each hyperparameter's path with each value that it may have: of a range the lowest."""
    for name, spec in space.items():
        yield from _possible(spec, (*path, name))


def _possible(spec: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    match spec:
        case {"type": "const"}:
            yield path, spec.get("val")
        case {"type": "categorical", "vals": [*values]}:
            yield from ((path, value) for value in values)
        case {"type": "choice", "vals": [*values]}:
            for value in values:
                yield from _possible(value, path)
        case {"type": _}:
            yield path, spec.get("minval")
        case Mapping():
            yield from possible_values(spec, path)
        case _:
            yield path, spec


def _certain(spec: Any, path: Path = ()) -> set[str]:
    """The names that all trials have a value or a group of."""
    match spec:
        case {"type": "choice", "vals": [first, *others]}:
            return _certain(first, path).intersection(*(_certain(val, path) for val in others))
        case Mapping() if "type" not in spec:
            below = (_certain(inner, (*path, name)) for name, inner in spec.items())
            return {".".join(path)}.union(*below)
    return {".".join(path)}


def _flags(form: Flags, space: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    owners: dict[str, Path] = {}
    for path, value in possible_values(space):
        for name, item in leaves({form.separator.join(path): value}, form.separator):
            if not _FLAG.fullmatch(name) or not name.isprintable():
                yield f"the hyperparameter {name!r} can't be a flag", "rename it, or use a file"
            if (other := owners.setdefault(name, path)) != path:
                both = f"{'.'.join(other)} and {'.'.join(path)}"
                yield f"the hyperparameters {both} are both --{name}", "choose another separator"
            for text in map(text_of, item if isinstance(item, list) else ()):
                if fault := _item_fault(form.lists, text):
                    yield f"an item of {name} {fault}", _ITEM_FORMS


def _item_fault(lists: str, text: str) -> str:
    if lists == "--flag 1 2" and text.startswith("-") and not re.match(r"-[\d.]", text):
        return "begins with a dash, so that the script would take it for an option"
    return "holds a comma, which separates items" if lists == "--flag=1,2" and "," in text else ""


def _hydra(space: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path, value in possible_values(space):
        for name, item in leaves({".".join(path): value}):
            if not KEY.fullmatch(name):
                yield f"the hyperparameter {name!r} can't be a key of Hydra", "rename it"
            try:
                value_of(item)
            except ValueError as error:
                yield str(error), "use a file"


def _template(template: str, space: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if _BARE_WORD.fullmatch(template):
        yield f"there is no form {template!r}", "write flags, hydra, or a template with {name}"
        return
    try:
        given = list(dict.fromkeys(fields(template)))
    except ValueError as error:
        yield f"the template can't be read: {error}", ""
        return
    names = list(dict.fromkeys(".".join(path) for path, _ in possible_values(space)))
    unknown = [f for f in given if not any(_covers(f, name) for name in names)]
    unused = [name for name in names if not any(_covers(f, name) for f in given)]
    if unknown:
        yield f"there is no hyperparameter {', '.join(unknown)}", "write {{ for a brace itself"
    if unused:
        texts = " ".join(f"{{{name}}}" for name in unused)
        yield f"the template leaves out {', '.join(unused)}", f"add {texts}"
    fixed = [
        name for word in shlex.split(template) if not word.startswith("-") for name in fields(word)
    ]
    for name in dict.fromkeys(fixed):
        if name not in unknown and name not in _certain(space):
            option = f"--{name.rpartition('.')[2]}={{{name}}}"
            message = f"some trials have no {name}, and only a word that begins with - is left out"
            yield message, f"write the option and its value as one word, such as {option}"


def _covers(field: str, name: str) -> bool:
    return name == field or name.startswith(f"{field}.")
