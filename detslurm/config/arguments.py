"""Turn a trial's hyperparameters into arguments of its command. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from detslurm.config.schema.arguments import Arguments, Flags

Form = str | Arguments
"""`flags`, `hydra`, a template, or `Arguments`."""

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def form_of(plain: Any) -> Form:
    """Return the form that the configuration's `arguments` has. Raises `ValidationError`."""
    form: Form = msgspec.convert(plain, Form)
    return form


def arguments_of(form: Form, hparams: Mapping[str, Any]) -> list[str]:
    """Return the arguments for these hyperparameters, word by word.

    Raises `ValueError` for a template that does not parse, or that names no hyperparameter.

    Example:
        assert arguments_of("flags", {"lr": 0.1}) == ["--lr=0.1"]
    """
    if form == "hydra":
        return assignments(hparams)
    if isinstance(form, str):
        return flags(hparams, Flags()) if form == "flags" else filled(form, hparams)
    if form.file is not None:
        return [form.file] if form.option is None else [form.option, form.file]
    return flags(hparams, form.flags or Flags())


class ArgumentFile(NamedTuple):
    """A file of hyperparameters, by its path in the working directory."""

    name: str
    text: str


def argument_file(form: Form, hparams: Mapping[str, Any]) -> ArgumentFile | None:
    """Return the file that this form wants in the working directory; None if it wants none."""
    name = None if isinstance(form, str) else form.file
    if name is None:
        return None
    if name.endswith(".json"):
        return ArgumentFile(name, json.dumps(hparams, indent=2, ensure_ascii=False) + "\n")
    from detslurm.config.writing import as_yaml

    return ArgumentFile(name, as_yaml(hparams))


# -- flags ---------------------------------------------------------------------------------------


def flags(hparams: Mapping[str, Any], form: Flags) -> list[str]:
    """Return the hyperparameters as options; None is left out, so that the script's default counts.

    A value stands behind `=`, so that `-1` or `--x` is not taken for an option.
    """
    words = []
    for name, value in leaves(hparams, form.separator):
        if isinstance(value, bool):
            words += _switch(name, value, form)
        elif isinstance(value, list):
            words += _several(name, value, form.lists)
        elif value is not None:
            words.append(f"--{name}={text_of(value)}")
    return words


def leaves(hparams: Mapping[str, Any], separator: str = ".") -> Iterator[tuple[str, Any]]:
    """Yield the values with their joined names; an empty mapping has none."""
    for name, value in hparams.items():
        if isinstance(value, Mapping):
            for below, item in leaves(value, separator):
                yield f"{name}{separator}{below}", item
        else:
            yield name, value


def _switch(name: str, value: bool, form: Flags) -> list[str]:
    if form.booleans == "--flag=true":
        return [f"--{name}={text_of(value)}"]
    if form.booleans == "--flag=True":
        return [f"--{name}={value}"]
    if value or form.booleans == "--flag":
        return [f"--{name}"] if value else []
    # tyro, which joins by dots, negates the last part; argparse and click negate the whole name.
    outer, dot, last = name.rpartition(".") if form.separator == "." else ("", "", name)
    return [f"--{outer}{dot}no-{last}"]


def _several(name: str, items: list[Any], lists: str) -> list[str]:
    texts = [text_of(item) for item in items]
    if lists == "--flag 1 2":
        return [f"--{name}", *texts]
    if lists == "--flag=1 --flag=2":
        return [f"--{name}={text}" for text in texts]
    joined = ",".join(texts) if lists == "--flag=1,2" else text_of(items)
    return [f"--{name}={joined}"]


def text_of(value: Any) -> str:
    """Return a value as a word: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- templates -----------------------------------------------------------------------------------


def fields(template: str) -> list[str]:
    """Return the names that a template mentions. Raises `ValueError` if it does not parse."""
    found = []
    for word in shlex.split(template):
        if set("{}") & set(_FIELD.sub("", word)):
            raise ValueError("a brace has no partner; write {{ or }} for the brace itself")
        found += [match[1] for match in _FIELD.finditer(word) if match[1] is not None]
    return found


def filled(template: str, hparams: Mapping[str, Any]) -> list[str]:
    """Return the words of a template with values in place of `{name}`.

    Each value stays within its word, whatever it holds. A list becomes several words where its
    field is the whole word. An option is left out where the val of a choice lacks its value. Raises
    `ValueError` for any other name that there is not.
    """
    words = []
    for word in shlex.split(template):
        if word.startswith("-") and any(_is_lacking(hparams, name) for name in fields(word)):
            continue
        alone = _FIELD.fullmatch(word)
        value = lookup(hparams, alone[1]) if alone and alone[1] is not None else None
        if isinstance(value, list):
            words += [text_of(item) for item in value]
        else:
            words.append(_FIELD.sub(lambda field: _replacement(field, hparams), word))
    return words


def lookup(hparams: Mapping[str, Any], name: str) -> Any:
    """Return the value of a name, whose dots lead into nested mappings. Raises `ValueError`."""
    if name in hparams:
        return hparams[name]
    outer, _, rest = name.partition(".")
    below = hparams.get(outer)
    if not rest or not isinstance(below, Mapping):
        raise ValueError(f"there is no hyperparameter {name}")
    return lookup(below, rest)


def _is_lacking(hparams: Mapping[str, Any], name: str) -> bool:
    """Whether a name leads into a hyperparameter that has no such part in this trial."""
    try:
        lookup(hparams, name)
    except ValueError:
        return name.partition(".")[0] in hparams
    return False


def _replacement(field: re.Match[str], hparams: Mapping[str, Any]) -> str:
    return field[0][0] if field[1] is None else text_of(lookup(hparams, field[1]))


# -- Hydra ----------------------------------------------------------------------------------------

KEY = re.compile(r"\+{0,2}[A-Za-z_$][\w$-]*(?:[./][A-Za-z_$][\w$-]*)*(?:@[\w.:$-]+)?", re.ASCII)
"""A key of an override; `+` or `++` adds a key that the application's configuration lacks."""
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_DICT_KEY = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_WORDS = frozenset(["null", "true", "false", "inf", "nan"])


def assignments(hparams: Mapping[str, Any], outer: str = "") -> list[str]:
    """Return an override for each hyperparameter; nested names are joined by dots."""
    words = []
    for name, value in hparams.items():
        if isinstance(value, Mapping) and value:
            words += assignments(value, f"{outer}{name}.")
        else:
            words.append(f"{outer}{name}={value_of(value)}")
    return words


def value_of(value: Any) -> str:
    """Return a value in Hydra's grammar; a text arrives as it is, and nothing in it is expanded.

    Raises `ValueError` for a key inside of a list that the grammar has no form for.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(value_of, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_dict_key(k)}:{value_of(v)}' for k, v in value.items())}}}"
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if is_plain else _quoted(value)


def _dict_key(key: str) -> str:
    if not _DICT_KEY.fullmatch(key) or key.lower() in _WORDS:
        raise ValueError(f"Hydra has no form for the key {key!r} in a list")
    return key


def _quoted(text: str) -> str:
    # OmegaConf would resolve ${...}: a backslash stops it, and those before it are doubled.
    text = re.sub(r"(\\*)\$\{", lambda found: f"{found[1] * 2}\\${{", text)
    # Backslashes escape only before a quote and at the end; there they are doubled.
    escaped = re.sub(r"(\\*)'", lambda found: f"{found[1] * 2}\\'", text)
    doubled_end = "\\" * (len(escaped) - len(escaped.rstrip("\\")))
    return f"'{escaped}{doubled_end}'"
