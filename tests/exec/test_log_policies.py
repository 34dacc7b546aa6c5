"""Log policies find what they should, and take no longer than they may."""

from __future__ import annotations

import re
import select

import pytest

from detslurm.config.run_config import RunLogPolicy
from detslurm.exec.log_policies import LogPolicies, PatternMatcher, PolicyMatch, essential, plain

PATIENCE = 120.0


def found(policies: LogPolicies, *lines: str) -> list[str]:
    """The names of the policies that match, and of those that gave up with a `?`."""
    names = [match.name for match in policies.matches(lines)]
    policies.close()
    for matcher in policies.matchers:
        while not select.select([matcher], [], [], 0.1)[0]:
            matcher.push()
        result = matcher.result()
        names += [] if result is False else [matcher.match.name + ("" if result else "?")]
    return sorted(names)


def test_the_usual_patterns_are_plain_texts() -> None:
    """Those of every experiment need no process and no time that grows with the line's square."""
    assert plain(".*CUDA out of memory.*") == "CUDA out of memory"
    policies = LogPolicies([RunLogPolicy(name="oom", pattern=".*CUDA out of memory.*")])
    assert not policies.matchers
    assert found(policies, "x" * 100_000, "E: CUDA out of memory. Tried to") == ["oom"]
    assert found(policies, "CUDA out of memory") == []  # once a run


@pytest.mark.parametrize(
    "pattern", [".*a.c", ".*?b+", ".*+b", ".*", ".*.*b.*", r"foo\.*", ".*b|x", ".*^a", ".*(?<=a)b"]
)
def test_a_pattern_without_what_is_before_it_finds_the_same(pattern: str) -> None:
    """Python itself is asked."""
    for line in ("", "abc", "xxa-cyy", "foo", "foo...", "bb", "ab\\"):
        assert bool(re.search(essential(pattern), line)) == bool(re.search(pattern, line))
        text = plain(pattern)
        assert text is None or (text in line) == bool(re.search(pattern, line))


def test_patterns_are_searched_beside_the_agent() -> None:
    """One matches, one does not, one takes years, one is none: each by itself."""
    policies = LogPolicies(
        [
            RunLogPolicy(name="found", pattern="lo+ss"),
            RunLogPolicy(name="absent", pattern="no+thing"),
            RunLogPolicy(name="evil", pattern="(a+)+$"),
            RunLogPolicy(name="broken", pattern="("),
            RunLogPolicy(name="disabled", pattern=None),
        ]
    )
    lines = ["log_policies: [{pattern: 'no+thing'}] nothing", "a" * 60 + "!", "loooss é \udc00"]
    assert found(policies, *lines) == ["broken?", "evil?", "found"]


def test_a_bounded_part_of_a_line_is_searched() -> None:
    """What a pattern costs does not depend on the length of the line."""
    policies = LogPolicies(
        [RunLogPolicy(name="near", pattern="x+y"), RunLogPolicy(name="far", pattern="x+z")]
    )
    assert found(policies, "xy" + "." * 10_000 + "xz") == ["near"]


def test_a_search_that_is_behind_says_so() -> None:
    """Whoever feeds it can wait; abandoned, it is gone."""
    matcher = PatternMatcher("(a+)+$", PolicyMatch("evil", None))
    while not matcher.writer.full:
        matcher.put(b"a" * 60 + b"!\n")
    matcher.kill()
    matcher.push()  # harmless
