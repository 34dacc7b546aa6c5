"""The answers of all commands that read a store, as plain data, by `--json`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from detslurm.cli import main
from detslurm.look.snapshot import encode, snapshot
from detslurm.sdk import Client
from detslurm.searcher import Search
from detslurm.store import ExperimentDir, Store
from detslurm.store.event_log import logged_events
from tests.envelope import unwrap
from tests.sdk.scenes import Queue

# These fields differ from day to day, or from one machine to another.
_VOLATILE = frozenset({"taken", "age", "import_id", "archive", "output"})


def answers(root: Path) -> dict[str, Any]:
    """The answer of each command, without volatile fields; the store's path is `STORE`."""
    found: dict[str, Any] = {}
    queue = Queue()
    env = {"DETSLURM_ROOT": str(root), "DETSLURM_SITE": "", "TZ": "UTC", "HOME": str(root.parent)}
    with (
        mock.patch.dict(os.environ, env),
        mock.patch("detslurm.slurm.detect.detect_cluster", lambda name="auto", root=None: queue),
    ):
        store = Store(root)
        ids = sorted(store.newest_first())
        for words in _questions(store, ids):
            found[" ".join(words)] = _said(*words)
        client = Client(root, warn=lambda text: None, connect=lambda name: queue)
        for number in ids:
            taken = snapshot([client.stored(number)], code=True)
            found[f"snapshot {number}"] = json.loads(encode(taken))
            found[f"bundle {number}"] = _bundled(root, number)
            if (directory := store.experiment(number)).created().search:
                found[f"decisions {number}"] = list(_decisions(directory))
        found["report"] = _report(root, ids)
    steady: dict[str, Any] = _steady(found, str(root))
    return steady


def _questions(store: Store, ids: list[int]) -> Iterator[tuple[str, ...]]:
    yield from (("experiment", "list", "--all"), ("checkpoint", "list", "--all"))
    yield from (("model", "list"), ("usage",), ("usage", "--by", "experiment"))
    yield from (("workspace", "list"), ("model", "describe", "line"))
    for number in map(str, ids):
        for verb in ("describe", "list-trials", "list-checkpoints", "efficiency", "provenance"):
            yield "experiment", verb, number
    for trial in _trials(store, ids):
        yield from (("trial", "describe", str(trial)), ("trial", "metrics", str(trial)))


def _trials(store: Store, ids: list[int]) -> Iterator[int]:
    client = Client(store.path, warn=lambda text: None, connect=lambda name: Queue())
    for number in ids:
        yield from (trial.id for trial in client.stored(number).trials())


def _said(*words: str) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = main([*words, "--json"])
    assert status == 0, (words, out.getvalue())
    return unwrap(out.getvalue())


def _bundled(root: Path, number: int) -> dict[str, Any]:
    """The names in its bundle."""
    path = root.parent / f"bundle-{number}.tar"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if status := main(["experiment", "bundle", str(number), "-o", str(path)]):
            return {"status": status}  # it is not over
    with tarfile.open(path) as archive:
        names = sorted(archive.getnames())
    path.unlink()
    return {"names": names}


def _report(root: Path, ids: list[int]) -> bool:
    path = root.parent / "report.html"
    _said("report", *map(str, ids), "-o", str(path))
    text = path.read_text()
    path.unlink()
    return "packed" in text


def _decisions(directory: ExperimentDir) -> Iterator[Any]:
    """The search after each of its events: who waits, who was stopped, what each is to train."""
    search = Search(directory.config())
    state = search.initial()
    for event in logged_events(directory.search, search):
        search.apply(state, [event])
        yield [
            state.waiting(),
            [[t.status, t.target_length, t.stop, t.rung, t.outcome] for t in state.trials],
            state.done,
        ]
    yield [search.plan(state, index).hparams for index in range(state.created)]


def _steady(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in _VOLATILE}
        return {key: _steady(item, root) for key, item in kept.items()}
    if isinstance(value, list):
        return [_steady(item, root) for item in value]
    return value.replace(root, "STORE") if isinstance(value, str) else value
