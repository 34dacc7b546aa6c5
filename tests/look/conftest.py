"""The browsers in which pages are tried."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.look.browser import PROGRAMS, Browser, browser, missing


@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def any_browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Each kind of browser in turn, one for all tests of a module."""
    yield from _of_kind(request.param)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium, one for all tests of a module."""
    yield from _of_kind("chromium")


def _of_kind(kind: str) -> Iterator[Browser]:
    if names := missing(kind):
        pytest.skip(f"no {kind}: not installed: {', '.join(names)}")
    with browser(kind) as started:
        yield started
