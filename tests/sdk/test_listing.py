"""How a walk through a store reads its experiments: one after the other, or several at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.experiments import listing
from detslurm.store import Store


@pytest.mark.parametrize("waits", [True, False])
def test_the_rest_is_read_by_threads_where_most_of_the_first_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """In the same order; one busy moment proves nothing."""
    readers: list[int] = []

    def reading(directory: Any, **options: Any) -> Any:
        readers.append(threading.get_ident())
        if waits or directory.id == 2:
            time.sleep(0.003)
        return directory.id

    monkeypatch.setattr(listing, "read", reading)
    store, numbers = Store.open(tmp_path / "store"), [*range(1, 61)]
    assert [*listing.read_all(store, numbers)] == [(number, number) for number in numbers]
    assert readers.count(threading.get_ident()) == (5 if waits else len(numbers))
