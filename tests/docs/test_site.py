"""The site of the documentation: built without a warning, complete, and asking nobody."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import REPOSITORY
from tests.docs.public import public
from tests.docs.test_docstrings import MODULES
from tests.look.browser import browser, missing

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` makes it; a warning, of a dead link too, is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return folder


def test_nothing_public_is_missing(site: Path) -> None:
    """The reference has every function, class and method that users can call, with its text."""
    text = (site / "python.html").read_text()
    anchors = set(re.findall(r'id="([\w.]+)"', text))
    found = [one for module in MODULES for one in public(module, lambda kind: True)]
    shown = {home(one.subject) for one in found if one.name in anchors}
    assert [one.name for one in found if not {home(one.subject)} & (shown | anchors)] == []


def home(subject: Any) -> str:
    """The name where it is defined, whatever it is exported or inherited as."""
    plain = getattr(subject, "fget", None) or getattr(subject, "func", subject)
    function = inspect.unwrap(plain)
    return f"{function.__module__}.{function.__qualname__}"


def test_pages_load_from_nowhere_else(site: Path) -> None:
    """No script, style, font or image comes from another host: a cluster may have no internet."""
    loads = re.compile(r"<(?:script|img|link)\b[^>]*(?:src|href)=\"?(https?:)?//", re.IGNORECASE)
    found = {p.name for p in site.rglob("*.html") if loads.search(p.read_text())}
    assert found == set()


GUIDES = {
    "out of memory": "troubleshooting.html#out-of-memory",
    "conda": "troubleshooting.html#conda-modules-and-setup",
    "resume": "getting-started.html#pause-and-resume",
    "delete": "results.html#delete-experiments",
    "early stopping": "search.html#early-stopping",
}


@pytest.mark.skipif(bool(missing("chromium")), reason=f"missing: {missing('chromium')}")
def test_search_works_from_disk_and_finds_the_guide_first(site: Path) -> None:
    """A page that was opened as a file searches, too, and asks no host for anything."""
    with browser("chromium") as shown:
        shown.open((site / "index.html").as_uri())
        for query, first in GUIDES.items():
            shown.js(
                "const field = document.querySelector('[data-md-component=search-query]');"
                f"field.focus(); field.value = {query!r}; field.dispatchEvent(new Event('input'));"
                "field.dispatchEvent(new Event('keyup'))"
            )
            word = query.split()[0]
            shown.wait_for(
                f"document.querySelector('.md-search-result__link[href*=\"?h={word}\"]')"
            )
            links = shown.js(
                "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
            )
            parts = (link.rpartition("/")[2] for link in links)
            assert next(filter(lambda part: "#" in part, map(unmarked, parts))) == first
        assert [one for one in shown.requests if not one.startswith(("file:", "data:"))] == []


def unmarked(link: str) -> str:
    """A result's address without the words to highlight."""
    return re.sub(r"\?h=[^#]*", "", link)
