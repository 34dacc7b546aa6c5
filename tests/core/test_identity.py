"""What only the processes of one run know, and where they meet by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detslurm._base.contract import RUN_TOKEN
from detslurm._base.identity import (
    KEY_FILE,
    derived_ports,
    key_of,
    name_on_node,
    secret_of_user,
    secret_on_node,
    socket_names,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_token_of_the_run_comes_first(home: Path) -> None:
    """Without it, or with an empty one, a key at home that is made once."""
    assert secret_of_user({RUN_TOKEN: "told"}) == b"told"
    assert not (home / KEY_FILE).exists()
    made = secret_of_user({})
    assert len(made) == 32
    assert secret_of_user({RUN_TOKEN: ""}) == made
    assert (home / KEY_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(home: Path, mode: int) -> None:
    """Whoever knows it could send pickles."""
    secret_of_user({})
    (home / KEY_FILE).chmod(mode)
    with pytest.raises(RuntimeError, match="readable by its owner alone"):
        secret_of_user({})


def test_a_key_of_another_user_or_place_is_refused(home: Path) -> None:
    """A link may lead to a file whose content is known; another's file is known to them."""
    (home / KEY_FILE).parent.mkdir(parents=True)
    (home / "known").write_bytes(bytes(32))
    (home / "known").chmod(0o600)
    (home / KEY_FILE).symlink_to(home / "known")
    with pytest.raises(RuntimeError, match=f"all of them the same secret in {RUN_TOKEN}"):
        secret_of_user({})
    (home / KEY_FILE).unlink()
    (home / "known").rename(home / KEY_FILE)
    if os.getuid() == 0:
        os.chown(home / KEY_FILE, 12345, -1)
        with pytest.raises(RuntimeError, match="readable by its owner alone"):
            secret_of_user({})


def test_nobody_else_knows_the_places(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and ports follow from the secret; a node without one still has names."""
    ours, theirs = {RUN_TOKEN: "ours"}, {RUN_TOKEN: "theirs"}
    assert name_on_node(ours, "x") == name_on_node(ours, "x") != name_on_node(theirs, "x")
    keys = [key_of("same", secret_of_user(env)) for env in (ours, theirs)]
    for places in (socket_names, derived_ports):
        assert places(keys[0]) != places(keys[1])
    monkeypatch.setenv("HOME", "/proc")
    assert secret_on_node({}) == b""
    assert name_on_node({}, "x\udcff")
