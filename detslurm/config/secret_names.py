"""Recognise a secret by the name that it stands under."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

MASK: Final = "********"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Always a secret, in whatever word: DBPASSWORD, client_secret, apikey.
_SURE = re.compile(r"passw|passphrase|passwd|pwd$|secret|credential|(?:api|access|private)key")
_TITLES = frozenset(
    ["auth", "authkey", "authorization", "bearer", "cookie", "cookies", "dsn", "jwt", "pass",
     "sig", "signature", "token", "webhook"]
)  # fmt: skip
_GLUED = re.compile(r"(?:api|auth|access|hf|gh|git|bot|bearer|refresh)tokens?|(?:db|pg|my|ssh)pass")
# Before "key" and "tokens", which without them are those of a sort and of a text.
_SERVICES = frozenset(
    ["access", "account", "admin", "anthropic", "api", "app", "application", "auth", "aws",
     "azure", "bearer", "client", "comet", "consumer", "dd", "deploy", "encryption", "gcp",
     "github", "gitlab", "google", "hf", "huggingface", "license", "master", "mlflow", "neptune",
     "ngc", "openai", "openrouter", "private", "refresh", "s3", "secret", "service", "session",
     "shared", "signing", "ssh", "storage", "stripe", "subscription", "wandb"]
)  # fmt: skip
# Before "token": those of a vocabulary. Before "pass": those of a training.
_HARMLESS = frozenset(
    ["audio", "backward", "begin", "bos", "class", "cls", "context", "eos", "eval", "first",
     "forced", "forward", "full", "image", "input", "label", "lang", "language", "last", "low",
     "high", "band", "mask", "max", "min", "multi", "next", "new", "num", "output", "pad",
     "padding", "per", "prefix", "prompt", "query", "second", "sep", "single", "sos", "special",
     "start", "stop", "sub", "target", "text", "train", "two", "unk", "val", "video", "vision",
     "visual", "vocab", "word"]
)  # fmt: skip
# The name of something about a secret.
_ABOUT = frozenset(
    ["column", "count", "dim", "dir", "dropout", "embedding", "field", "file", "folder", "id",
     "ids", "index", "len", "length", "limit", "path", "policy", "rate", "size", "type"]
)  # fmt: skip
_MARKER = re.compile(r"<.*>|\[.*\]|-?[\d.]+(?:[eE][+-]?\d+)?|true|false|none|null|", re.IGNORECASE)


def is_secret(name: str, value: Any = "text") -> bool:
    """Whether what stands under this name, in any spelling, is a secret.

    `tokenizer`, `max_tokens`, `pad_token`, `author` and `sort_key` are not. Numbers, and markers
    such as `<pad>`, are secrets only of passwords.
    """
    kind = _kind(name)
    if value is None or isinstance(value, bool) or not kind:
        return False
    return kind == "sure" or (isinstance(value, str) and not _MARKER.fullmatch(value))


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    key = name.isupper() and name.endswith(("_KEY", "_WEBHOOK_URL")) and len(name) > 4
    return key or bool(_kind(name))


@lru_cache(4096)
def _kind(name: str) -> str:
    """How sure it is that the name is a secret's: "sure", "likely" or nothing."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if words and words[-1] == "url" and "webhook" in words:
        words.pop()
    if not words or (words[-1] in _ABOUT and words[-3:] != ["access", "key", "id"]):
        return ""
    if any(map(_SURE.search, words)) or not _KEYS.isdisjoint(pairwise(words)):
        return "sure"
    *before, last = words
    previous = before[-1] if before else ""
    if last == "tokens":
        return "likely" if previous in _SERVICES else ""
    if (last in _TITLES and previous not in _HARMLESS) or _GLUED.fullmatch(last):
        return "likely"
    return "likely" if words[-2:] in _STRINGS else ""


_KEYS = {(service, key) for service in _SERVICES for key in ("key", "keys")}
_STRINGS = (["connection", "string"], ["conn", "str"], ["sas", "uri"])
