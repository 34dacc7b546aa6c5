"""A store is its user's alone unless its root is shared; then every file follows the root."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detslurm._base import access
from detslurm.store import ExperimentDir, Store, StoreError, compact
from detslurm.store.root_access import COMMON, SHARED, weakness
from tests.store import scenes
from tests.store.listing import rows_of

CONFIG = {"data": {"secrets": {"token": "hush"}}}
MASKED = {"data": {"secrets": {"token": "***"}}}


@contextmanager
def umask(value: int) -> Iterator[None]:
    """Another umask for this process."""
    old = os.umask(value)
    try:
        yield
    finally:
        os.umask(old)


def modes(folder: Path) -> dict[str, str]:
    """The mode of everything below a directory, by its name there."""
    return {
        str(path.relative_to(folder)): f"{stat.S_IMODE(path.lstat().st_mode):o}"
        for path in sorted(folder.rglob("*"))
    }


def full(root: Path) -> ExperimentDir:
    """An experiment with a file of each kind."""
    store = Store.open(root)
    made = store.experiment(scenes.finished(store).id)
    made.write_config(CONFIG, "text", MASKED)
    with made.freeze_code():
        pass
    compact(made)
    rows_of(store)
    return made


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
@pytest.mark.parametrize("mode", [None, 0o755, 0o700])
def test_a_private_store_is_closed(place: Path, mask: int, mode: int | None) -> None:
    """Whatever the root's mode before, and whatever the umask: others read nothing."""
    root = place / "store"
    with umask(mask):
        if mode is not None:
            root.mkdir(mode)
            root.chmod(mode)
        full(root)
    if mode is not None:
        assert stat.S_IMODE(root.stat().st_mode) == mode
    assert not {name: m for name, m in modes(root).items() if int(m, 8) & 0o077}


@pytest.mark.parametrize("mask", [0o002, 0o077])
def test_a_shared_store_follows_its_root(place: Path, mask: int) -> None:
    """The group reads all but secrets and adds experiments; nobody changes another's."""
    root = place / "store"
    root.mkdir()
    root.chmod(0o2770)
    with umask(mask):
        full(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o3770
    found = modes(root)
    common = (*COMMON, *SHARED)
    assert {name: found.pop(name) for name in common} == dict.fromkeys(common, "3770")
    assert f"index-{os.geteuid()}.json" in found
    secret = {n for n, m in found.items() if m in ("600", "2700")}
    names = ("config.json", "config.yaml", "secret", "jobs", "code")
    assert secret == {f"experiments/1/{name}" for name in names}
    assert {m for n, m in found.items() if n not in secret} == {"640", "2750"}


def test_what_was_private_becomes_shared_with_the_root(place: Path) -> None:
    """The first submission after `chmod` lets the others in; old experiments stay closed."""
    full(place / "store")
    (place / "store").chmod(0o2770)
    store = Store.open(place / "store")
    assert store.own("index.json").name == "index.json"  # as it was
    assert store.own("unmanaged").name == f"unmanaged-{os.geteuid()}"
    found = modes(place / "store")
    assert {found[name] for name in COMMON} == {"3770"}
    assert {m for name, m in found.items() if name.startswith("ledger/")} == {"640"}
    assert found["experiments/1"] == "700"


def test_a_process_from_before_the_store_was_shared(place: Path) -> None:
    """A job that began then lets the others read what it notes for all."""
    store = full(place / "store").store
    (place / "store").chmod(0o2770)
    opened = "import sys; from detslurm.store import Store; Store.open(sys.argv[1])"
    subprocess.run([sys.executable, "-c", opened, place / "store"], check=True)
    store.touch(1)
    facts = [stat.S_IMODE(path.stat().st_mode) for path in store.ledger.log.path.iterdir()]
    assert set(facts) == {0o640} and len(facts) > 1


@pytest.mark.parametrize(
    ("mode", "uid", "says"),
    [
        (0o777, 0, "everybody may write"),
        (0o1777, 0, "chmod o-w"),
        (0o770, 0, "chmod 3770"),
        (0o2700, 12345, "belongs to user 12345 and is not shared"),
        (0o2755, 12345, "belongs to user 12345 and is not shared"),
        (0o3770, 12345, None),
        (0o3770, 0, None),
        (0o2770, 54321, None),  # becomes 3770
        (0o2770, 12345, "chmod +t"),
        (0o2770, 0, "chmod +t"),
        (0o755, 0, None),
        (0o700, 65534, None),
    ],
)
def test_weak_roots_are_refused(
    mode: int, uid: int, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the remedy: who can rename what lies there decides what jobs execute."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    state = os.stat_result((stat.S_IFDIR | mode, 0, 0, 2, uid, 98765, 0, 0, 0, 0))
    found = weakness(Path("/store"), state)
    assert (says in found) if says and found else found is says


@pytest.mark.parametrize("name", ["a\\b", "a\nb", "a\\"])
def test_roots_that_no_job_can_have_are_refused(place: Path, name: str) -> None:
    """Before anything is created there."""
    with pytest.raises(StoreError, match="in its name: choose another"):
        Store.open(place / name)
    assert not list(place.iterdir())


def test_a_root_that_anybody_writes_to_is_refused(place: Path) -> None:
    """Before anything is created there."""
    place.chmod(0o777)
    with pytest.raises(StoreError, match="chmod o-w"):
        Store.open(place)
    assert not list(place.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for others")
def test_what_root_writes_stays_readable_for_the_owner(place: Path) -> None:
    """An administrator who kills or lists leaves nothing that locks the owner out."""
    made = full(place / "store")
    for path in (place / "store", *(place / "store").rglob("*")):
        os.chown(path, 12345, 12345)
    access.clear_cache()
    made.append({"type": "intent", "intent": "kill"})
    rows_of(made.store)
    found = {path.stat().st_uid for path in (place / "store").rglob("*")}
    assert found == {12345}
    with pytest.raises(StoreError, match="belongs to user 12345"):
        Store.open(place / "store")
