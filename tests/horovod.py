"""Horovod for the tests: built from source, in minutes, while those that don't need it run."""

from __future__ import annotations

import pytest

from tests.builds import PATIENCE, built, that_need


@pytest.fixture(scope="session")
def horovod(pytestconfig: pytest.Config) -> None:
    """Horovod is installed, for this torch and this MPI."""
    built(pytestconfig, "horovod")


def put_last(items: list[pytest.Item]) -> None:
    """Let the tests that need Horovod come last, with the time that its build may take.

    They are slow ones, too: the inner loop does not wait for a build.
    """
    needing = that_need("horovod", items)
    for item in needing:
        item.add_marker(pytest.mark.timeout(PATIENCE + 300))
        item.add_marker("slow")
        item.add_marker("nightly")
    items[:] = [item for item in items if item not in needing] + needing
