"""The stores of earlier releases: every later commit reads them, and says the same of them.

`python -m tests.released.make_store` has made them by real runs. A field that a later version adds
is no difference.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk import Client
from detslurm.store import EventLog, Store, fold_trial
from detslurm.store.records import Intent
from tests.released.answers import answers
from tests.sdk.scenes import Queue

HERE = Path(__file__).parent
RELEASES = sorted(path.name.split("-")[1].removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
CACHES = (
    *("*.json", "*.parts", "experiments/*/summary.json", "experiments/*/trials.json"),
    *("experiments/*/metrics.h5", "experiments/*/search/state.bin", "experiments/*/search/*.pack"),
)


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture
def store(release: str, tmp_path: Path) -> Path:
    archive = HERE / f"store-{release}.tar.xz"
    subprocess.run(["tar", "-xf", archive, "--no-same-owner", "-C", tmp_path], check=True)
    return tmp_path / "store"


@pytest.fixture(scope="module")
def recorded(release: str) -> dict[str, Any]:
    packed = (HERE / f"store-{release}.answers.json.xz").read_bytes()
    found: dict[str, Any] = json.loads(lzma.decompress(packed))
    return found


def differences(now: Any, then: Any, where: str = "") -> Iterator[str]:
    """Where an answer lacks or contradicts the recorded one."""
    if isinstance(now, dict) and isinstance(then, dict):
        for key, value in then.items():
            if key in now:
                yield from differences(now[key], value, f"{where}/{key}")
            else:
                yield f"{where}/{key} is missing"
    elif isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        for place, (one, other) in enumerate(zip(now, then, strict=True)):
            yield from differences(one, other, f"{where}/{place}")
    elif now != then:
        yield f"{where} is {now!r}, and was {then!r}"


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_commands_say_what_they_said(
    store: Path, recorded: dict[str, Any], is_rebuilt: bool
) -> None:
    """With the caches of that version, and with none: decisions of searches included."""
    for pattern in CACHES if is_rebuilt else ():
        for path in store.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = json.loads(json.dumps(answers(store)))
    assert list(differences(found, recorded)) == []


def test_a_paused_trial_goes_on(store: Path) -> None:
    """A runner reads its configuration, its claim and its checkpoint, and finishes it."""
    number = next(row.id for row in _client(store).rows() if row.state == "PAUSED")
    experiment = Store(store).experiment(number)
    experiment.append(Intent(intent="activate"))
    (experiment.path / "secret").write_text("0" * 32)
    env = os.environ | {"DETSLURM_ROOT": str(store), "DETSLURM_LOCAL_JOB_ID": "1"}
    argv = [sys.executable, "-m", "detslurm.exec.runner", str(experiment.path), "0"]
    subprocess.run(argv, env=env, check=True)
    view = fold_trial(experiment.trial(experiment.created().first_trial))
    assert [run.outcome for run in view.runs] == ["paused", "completed"]
    assert view.runs[1].resumed_steps == 2 and view.steps == 4


def test_a_search_goes_on(store: Path) -> None:
    """Keys that its configuration lacks, because they are newer, are no changes."""
    client = _client(store)
    first = next(row.id for row in client.rows() if row.name == "asha")
    done = client.experiment(first).continue_(["searcher.max_trials=8"])
    search = client.stored(done.id)._snapshot.search
    assert search is not None and len(search.state.brackets[0].rungs[0].results) == 4
    assert len(search.state.waiting()) == 2
    assert EventLog(Store(store).experiment(done.id).search, search._search).catch_up().created == 6


def _client(store: Path) -> Client:
    return Client(store, warn=lambda text: None, connect=lambda name: Queue())
