"""W&B's mode in a job with `record`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from detslurm.exec import wandb_mode
from detslurm.exec.wandb_mode import is_reachable, wandb_variables

OFFLINE = {"WANDB_MODE": "offline"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, OFFLINE),  # no account
        ({"WANDB_MODE": "online"}, {}),
        ({"WANDB_DISABLED": "true"}, {}),
        ({"WANDB_API_KEY": "k"}, OFFLINE),  # no network
        ({"WANDB_API_KEY": "k", "HTTPS_PROXY": "http://proxy:80"}, {}),
    ],
)
def test_the_user_s_choice_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    expected: dict[str, str],
) -> None:
    """Then the account, then the network; a proxy may know a way."""
    monkeypatch.setattr(wandb_mode, "is_reachable", lambda host, port: False)
    assert wandb_variables({"HOME": str(tmp_path), **variables}) == expected


def test_settings_and_logins_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login for the server in the settings; and a mode there is a choice."""
    asked: list[tuple[str, int]] = []

    def reach(host: str, port: int) -> bool:
        asked.append((host, port))
        return True

    monkeypatch.setattr(wandb_mode, "is_reachable", reach)
    folder = tmp_path / ".config" / "wandb"
    folder.mkdir(parents=True)
    (folder / "settings").write_text("[default]\nbase_url = http://wandb.site:8080/\n")
    (tmp_path / ".netrc").write_text("machine wandb.site\n  login user\n  password secret\n")
    assert wandb_variables({"HOME": str(tmp_path)}) == {}
    assert asked == [("wandb.site", 8080)]
    (folder / "settings").write_text("[default]\nmode = offline\n")
    assert wandb_variables({"HOME": str(tmp_path)}) == {} and len(asked) == 1


def test_a_connection_shows_that_there_is_a_network() -> None:
    """A port where nothing listens shows none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_reachable("127.0.0.1", port)
    assert not is_reachable("127.0.0.1", port)
