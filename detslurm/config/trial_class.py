"""Recognise an entrypoint that is a Trial class."""

from __future__ import annotations

import re

from detslurm.config.yaml_node import YamlNode

_TRIAL_CLASS = re.compile(r"[a-zA-Z0-9_.]+:[a-zA-Z0-9_]+")
_TRIAL_OPTION = re.compile(rf"(?<!\S)--trial[ =]{_TRIAL_CLASS.pattern}(?!\S)")


def names_trial_class(root: YamlNode) -> bool:
    """Whether the entrypoint is a Trial class: then the configuration defines how to train it."""
    given = root.get("entrypoint")
    text = given.plain() if given else None
    words = text.split() if isinstance(text, str) else text
    if not isinstance(words, list):
        return False
    text = " ".join(map(str, words))
    return bool(_TRIAL_CLASS.fullmatch(text) or _TRIAL_OPTION.search(text))
