"""Log policies: patterns that are looked for in every line of a trial's log."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from detslurm._base.child_processes import die_with_parent_alone
from detslurm.config.run_config import RunLogPolicy
from detslurm.exec.agent_loop import PipeWriter

# Characters of a line that are searched.
_SEARCHED = 4096
_PLAIN = r"[\w \-,:;=@%&'\"<>/#~`!]+"
_ANYTHING = r"(?:\.\*\??)+(?![?+*{])"


class PolicyMatch(NamedTuple):
    """A policy that matched: its name and its action (None is a mere label)."""

    name: str
    action: str | None


class LogPolicies:
    """The policies of an experiment; each is reported at most once a run.

    Plain text is looked for here; a true pattern by a `PatternMatcher`, for it may take any time.
    """

    def __init__(self, policies: Iterable[RunLogPolicy]) -> None:
        self._plain: list[tuple[str, PolicyMatch]] = []
        self.matchers: list[PatternMatcher] = []
        for policy in policies:
            if (pattern := policy.pattern) is None:
                continue
            match = PolicyMatch(policy.name or pattern, policy.action)
            text = plain(pattern)
            if text is not None:
                self._plain.append((text, match))
            else:
                self.matchers.append(PatternMatcher(essential(pattern), match))

    def matches(self, lines: Iterable[str]) -> Iterator[PolicyMatch]:
        """Plain policies that any of the lines matches; the others get the lines to search."""
        # Code that prints its own configuration would match every pattern in it.
        heads = [line[:_SEARCHED] for line in lines if "log_policies" not in line[:_SEARCHED]]
        for entry in [e for e in self._plain if any(e[0] in head for head in heads)]:
            self._plain.remove(entry)
            yield entry[1]
        if self.matchers and heads:
            data = "".join(f"{head}\n" for head in heads).encode("utf-8", "replace")
            for matcher in self.matchers:
                matcher.put(data)

    @property
    def behind(self) -> bool:
        """Whether a matcher needs time before it should get more lines."""
        return any(matcher.writer.full for matcher in self.matchers)

    def close(self) -> None:
        """There will be no more lines."""
        for matcher in self.matchers:
            matcher.close()

    def abandon(self) -> list[PolicyMatch]:
        """End the matchers that are still at work; the policies that may have missed something."""
        left, self.matchers = self.matchers, []
        for matcher in left:
            matcher.kill()
        return [matcher.match for matcher in left]


class LineMatcher:
    """A process that searches lines for a pattern, as `line_matcher` takes it."""

    def __init__(self, pattern: Any, output: int) -> None:
        path = Path(__file__).with_name("line_matcher.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-W", "ignore", str(path)],
            stdin=subprocess.PIPE,
            stdout=output,
            bufsize=0,
            preexec_fn=die_with_parent_alone,
        )
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        self.writer = PipeWriter(self._stdin.fileno())
        self._closing = False
        self.pattern = pattern
        self.put(msgspec.json.encode(pattern) + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it is at work."""
        return self._process.poll()

    def put(self, data: bytes) -> None:
        """Search these lines, too; after `close` they are ignored."""
        if self._closing:
            return
        # A broken pipe means that it has found its pattern or used up its time, and has exited: the
        # result is there to read, and the loop comes to it.
        with contextlib.suppress(BrokenPipeError):
            self.writer.put(data)

    def push(self) -> None:
        """Hand over what waits, and its end when there will be no more."""
        if self._stdin.closed:
            return  # its result came at the same moment
        with contextlib.suppress(BrokenPipeError):
            self.writer.push()
        if self._closing and not self.writer.waiting:
            self._stdin.close()

    def close(self) -> None:
        self._closing = True
        self.push()

    def kill(self) -> None:
        if not self._stdin.closed:
            self._stdin.close()
        self._process.kill()
        self._process.wait()


class PatternMatcher(LineMatcher):
    """One policy's process: its output ends when it has found or failed."""

    def __init__(self, pattern: str, match: PolicyMatch) -> None:
        super().__init__(pattern, subprocess.PIPE)
        self.match = match
        assert self._process.stdout is not None
        self._stdout = self._process.stdout

    def fileno(self) -> int:
        """Readable when there is a result."""
        return self._stdout.fileno()

    def result(self) -> bool | None:
        """Whether it has found the pattern; None when it was ended for taking too long."""
        # One byte is "found". The end without a byte is "not found" with status 0; any other
        # status means that the kernel's timer has ended it or that it failed: unknown.
        if os.read(self.fileno(), 1):
            self.kill()
            return True
        failed = self._process.wait() != 0
        self.kill()
        return None if failed else False

    def kill(self) -> None:
        self._stdout.close()
        super().kill()


def essential(pattern: str) -> str:
    """The pattern without a `.*` before it: found in the same lines, and not in quadratic time."""
    begins = re.match(_ANYTHING, pattern)
    return pattern[begins.end() :] if begins else pattern


def plain(pattern: str) -> str | None:
    """The text that the pattern matches, if the pattern is nothing but a text."""
    text = re.sub(r"(?:\.\*)+$", "", essential(pattern))
    return text if re.fullmatch(_PLAIN, text) else None
