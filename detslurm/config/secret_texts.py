"""Replace the secrets in commands, addresses, connection strings and code by asterisks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from detslurm.config.secret_names import MASK, is_secret, is_secret_variable

_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_VALUE = rf"(?:{_QUOTED}|[^\s,;&|()\[\]{{}}\"']+)"

# -- forms that are secrets wherever they stand ----------------------------------------------------

_USER_INFO = re.compile(r"(\w://)(?:[^/\s\"']+@|[^\s/:@\"']+:(?!\d+/)[^\s@\"']{1,2000}@)")
_PARAMETER = re.compile(r"([?&#;]([\w.-]+)=)([^&#;\s\"']+)")
_PARAMETERS = frozenset({"sig", "signature", "key", "code", "x-amz-signature", "x-goog-signature"})
_HOOK = re.compile(
    r"(://(?:hooks\.slack\.com/\w+|discord(?:app)?\.com/api/webhooks|[\w.-]*webhook\.office\.com"
    r"|api\.telegram\.org)/)[^\s\"'?]+"
)
_ISSUED = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|A(?:KI|SI)A[A-Z0-9]{16}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
)
_BLOCK = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)
_SCHEME = re.compile(
    r"\b((?i:bearer)\s+|Basic\s+(?=[\w+/]*={0,2}\b))(?!(?i:tokens?|auth)\b)([\w.~+/=-]{4,})"
)


def masked_forms(text: str) -> str:
    """A text without secrets that their form alone gives away: user names, passwords and secret
    parameters of addresses, tokens of well-known services, and private keys."""
    text = _USER_INFO.sub(rf"\1{MASK}@", text)
    text = _PARAMETER.sub(_parameter, text)
    text = _HOOK.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1{MASK}", _ISSUED.sub(MASK, text))
    return _BLOCK.sub(rf"\1{MASK}\2", text)


def _parameter(found: re.Match[str]) -> str:
    lead, name, value = found.groups()
    hidden = name.lower() in _PARAMETERS or is_secret(name, value)
    return f"{lead}{MASK}" if hidden else found[0]


# -- commands --------------------------------------------------------------------------------------

_HEADER = re.compile(
    r"(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)"
    r"(?:(?:basic|bearer|token|digest|apikey|negotiate)\s+)?[^\s\"']+",
    re.IGNORECASE,
)
# Names are bounded, because a long line without spaces would take minutes else.
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z])([A-Za-z][\w.-]{{0,80}})([\"']?\]?\s*(?:=(?!=)|:(?=[\s\"']))\s*)({_VALUE})"
)
_OPTION = re.compile(rf"(?<!\S)(--?([A-Za-z][\w-]*)[ \t\x1f]+)(?!-)({_VALUE})")
_SET = re.compile(rf"(\bset\s+([\w.-]+)\s+)({_VALUE})")
_LOGIN = re.compile(
    r"(\b(?:wandb|hf|huggingface-cli|comet|neptune|clearml|ngc)\s+(?:auth\s+)?login"
    r"(?:\s+--?[\w-]+(?:[=\s]https?://\S+)?)*\s+)(?![-&|;])([^\s;&|]+)"
)
_SHORT = re.compile(
    r"(\b(?:docker|podman|helm|skopeo|apptainer)\b[^;&|\n]*\blogin\b[^;&|\n]*?\s-p[\s=]*"
    r"|\bsshpass\s+-p\s*|\b(?:mysql|mysqldump|mariadb)\b[^;&|\n]*?\s-p(?=\S))([^\s;&|]+)"
)
_USER = re.compile(r"(\b(?:curl|wget)\b[^;&|\n]*?\s(?:-u|--user|--proxy-user)[\s=]*[^\s:]+:)(\S+)")
_PIPED = re.compile(r"(\b(?:echo|printf)\s+(?:-\w\s+)?)([^\s|;&]+)(?=\s*\|[^|;&]*(?:login|stdin))")


def masked_text(text: str) -> str:
    """A command, a line of a script or a connection string without its secrets.

    The value of an assignment, the word after an option, and the value of a parameter are masked
    where the name is a secret's (see `is_secret`).
    """
    text = _HEADER.sub(rf"\1{MASK}", masked_forms(text))
    text = _ASSIGNED.sub(_assigned, text)
    text = _OPTION.sub(_named, _SET.sub(_named, text))
    for form in (_LOGIN, _SHORT, _USER, _PIPED):
        text = form.sub(rf"\1{MASK}", text)
    return text


def _assigned(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    bare = value.strip("\"'")
    hidden = is_secret(name, bare) or (is_secret_variable(name) and bool(bare))
    return f"{name}{sign}{MASK}" if hidden and bare != MASK else found[0]


def _named(found: re.Match[str]) -> str:
    lead, name, value = found.groups()
    return f"{lead}{MASK}" if is_secret(name, value.strip("\"'")) else found[0]


_BETWEEN: Final = "\x1f"  # counts as a space for the expressions, and stands in no argument


def masked_words(words: Sequence[str]) -> list[str]:
    """A program's arguments without secrets; each word after a secret option is masked."""
    after = ["", *words]
    shown = [
        MASK if _is_option(before) and is_secret(before, word) else masked_text(word)
        for before, word in zip(after, words, strict=False)
    ]
    # Together: `wandb`, `login`, and the key.
    together = masked_text(_BETWEEN.join(shown)).split(_BETWEEN)
    return together if len(together) == len(shown) else shown


def _is_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word


# -- code ------------------------------------------------------------------------------------------

_LITERALS = rf"{_QUOTED}|\\\"[^\"\\]*\\\""  # in a notebook, which is JSON, they are escaped
PROGRAMS: Final = frozenset(
    [".py", ".ipynb", ".c", ".cc", ".cpp", ".cu", ".h", ".jl", ".lua", ".r"]
)
"""The endings of files in which only literals are values."""

_LITERAL = re.compile(
    rf"(?<![A-Za-z])([A-Za-z_][\w-]{{0,80}})"
    rf"(\\?[\"']?\]?\s*(?::\s*[\w.\[\] |]{{1,80}}?\s*)?(?:=|:)\s*[rbuf]?|[\"']\s*,\s*"
    rf"|[\"'][^\n]{{0,400}}?\bdefault\s*=\s*)({_LITERALS})"
)
_CALLED = re.compile(rf"(\blogin\(\s*(?:\w+\s*=\s*)?)({_LITERALS})")


def masked_code(text: str, *, program: bool) -> str:
    """A file of code without the secrets that are written in it.

    In a `program` only literals are values, as in Python; a file of settings or of shell commands
    has words without quotes, too.
    """
    if not program:
        # A private key has several lines.
        whole = _BLOCK.sub(rf"\1{MASK}\2", text)
        return "\n".join(map(masked_text, whole.split("\n")))
    return _CALLED.sub(_called, _LITERAL.sub(_literal, masked_forms(text)))


def _literal(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    # After a comma only of a variable, because a list of names has commas, too.
    listed = sign.strip("\"' \t") == "," and not name.isupper()
    hidden = not listed and MASK not in value and is_secret(name, value.strip("\\\"'"))
    return f"{name}{sign}{_quoted_mask(value)}" if hidden else found[0]


def _called(found: re.Match[str]) -> str:
    return f"{found[1]}{_quoted_mask(found[2])}"


def _quoted_mask(literal: str) -> str:
    quote = literal[:2] if literal.startswith("\\") else literal[0]
    return f"{quote}{MASK}{quote}"
