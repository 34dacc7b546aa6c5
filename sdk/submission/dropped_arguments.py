"""Name shells that drop a trial's arguments: each trial would train with the defaults."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from detslurm.config import ExperimentConfig
from detslurm.config.entrypoints import with_place

_ALL = "$@"
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|k|z)?sh")
_GIVES_TEXT = re.compile(r"-[a-z]*c")
_FIRST_LINE = re.compile(r"#!.*sh\b")
_LARGEST = 1 << 18  # characters of a script
# A file that a script sources may use its arguments.
_USES = re.compile(r"\$\{?[@*#1-9]|\bgetopts\b|\bargv\b|^\s*(?:source|\.)\s", re.MULTILINE)


def dropped_arguments(config: ExperimentConfig, files: Mapping[str, Path]) -> list[str]:
    """Return why no command would get the arguments; empty if one may."""
    form = config.arguments
    in_file = form is not None and not isinstance(form, str) and form.file is not None
    if form is None or in_file or not config.hyperparameters:
        return []
    entrypoint = config.entrypoint or ()
    try:
        words = (
            shlex.split(with_place(entrypoint))
            if isinstance(entrypoint, str)
            else [*entrypoint, _ALL]
        )
    except ValueError:  # text that only a shell can parse
        return []
    return list(dict.fromkeys(_dropped(words, files)))


def _dropped(words: Sequence[str], files: Mapping[str, Path]) -> Iterator[str]:
    for index, word in enumerate(words):
        mine = list(takewhile(lambda word: word[:1] not in "|&;<>", words[index + 1 :]))
        if _SHELL.fullmatch(word):
            options = list(takewhile(lambda word: word.startswith("-"), mine))
            rest = mine[len(options) :]
            if options and _GIVES_TEXT.fullmatch(options[-1]):
                # The word behind the text is $0.
                passed = _ALL in rest[2:] and _USES.search(rest[0])
                if not passed and (_ALL in mine or _ALL not in words):
                    yield (
                        f"entrypoint: `{word} {options[-1]}` passes no arguments on to the commands"
                        ' in its text: make this text itself the entrypoint, with "$@" behind the'
                        " command that trains"
                    )
            elif rest and _ALL in rest and _ignores_all(files.get(posixpath.normpath(rest[0]))):
                yield _SCRIPT.format(rest[0])
        elif word.startswith("./") and _ALL in mine:
            source = files.get(posixpath.normpath(word))
            if source is not None and _FIRST_LINE.match(_text(source)) and _ignores_all(source):
                yield _SCRIPT.format(word)


_SCRIPT = 'entrypoint: {} uses none of its arguments: write "$@" behind its command that trains'


def _ignores_all(script: Path | None) -> bool:
    return script is not None and not _USES.search(_text(script))


def _text(script: Path) -> str:
    try:
        with script.open(errors="replace") as file:
            return file.read(_LARGEST)
    except OSError:  # the copy of the code will fail with the reason
        return _ALL
