"""Log policies: patterns that are looked for in every line of a trial's log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Match:
    """A policy that matched: its name and its action (None is a mere label)."""

    name: str
    action: str | None


class LogPolicies:
    """The policies of an experiment; each is reported at most once a run."""

    def __init__(self, policies: Iterable[Mapping[str, Any]]) -> None:
        self._waiting = [
            (re.compile(policy["pattern"]), Match(_name(policy), _action(policy)))
            for policy in policies
            if policy.get("pattern") is not None
        ]

    def matches(self, line: str) -> Iterator[Match]:
        """Policies that match this line for the first time in this run."""
        # Code that prints its own configuration would match every pattern in it.
        if not self._waiting or "log_policies" in line:
            return
        for entry in [e for e in self._waiting if e[0].search(line)]:
            self._waiting.remove(entry)
            yield entry[1]


def _name(policy: Mapping[str, Any]) -> str:
    return str(policy.get("name") or policy["pattern"])


def _action(policy: Mapping[str, Any]) -> str | None:
    action = policy.get("action")
    if isinstance(action, Mapping):
        action = action.get("type")
    return None if action is None else str(action)
