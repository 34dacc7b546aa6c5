"""The settings of a notebook's server: what it listens on, and who can read them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from detslurm.exec.tasks import jupyter_settings, notebook_server
from detslurm.exec.tasks.jupyter_settings import JupyterFiles


@pytest.mark.parametrize(
    ("port", "portal_path", "listening"),
    [
        (None, None, {"sock": "jupyter", "sock_mode": "0600", "port": 8888, "certfile": ""}),
        (0, None, {"sock": "", "ip": "127.0.0.1", "port": 0, "base_url": "/"}),
        (7, "/node/n1/7/", {"sock": "", "ip": "0.0.0.0", "port": 7, "base_url": "/node/n1/7/"}),
    ],
)
def test_what_the_server_listens_on(
    port: int | None, portal_path: str | None, listening: dict[str, Any], tmp_path: Path
) -> None:
    """With the token in each case, which no other user can read, and before the user's settings."""
    files = JupyterFiles(tmp_path)
    files.write("sesame", port, portal_path)
    environment = files.environment({"JUPYTER_CONFIG_PATH": "/mine", "A": "1"})
    first, mine = environment["JUPYTER_CONFIG_PATH"].split(":")
    path = Path(first) / "jupyter_server_config.json"
    assert (mine, environment["A"], stat.S_IMODE(path.stat().st_mode)) == ("/mine", "1", 0o600)
    settings = json.loads(path.read_text())
    assert settings["IdentityProvider"]["token"] == "sesame"
    assert settings["KernelManager"]["transport"] == "ipc"
    found = settings["ServerApp"] | {"sock": Path(settings["ServerApp"]["sock"]).name}
    assert found | listening == found


def test_open_pages_read_a_notice(tmp_path: Path) -> None:
    """Where JupyterLab finds the extension; it is empty until the job has to end."""
    files = JupyterFiles(tmp_path)
    files.write("sesame", None)
    (notice,) = tmp_path.glob("labextensions/*/static/notice.json")
    assert json.loads(notice.read_text()) == {}
    files.announce("The job ends.")
    assert json.loads(notice.read_text()) == {"message": "The job ends."}


@pytest.mark.parametrize(
    ("found", "module"),
    [
        ({"notebook", "jupyter_server", "jupyterlab"}, "jupyterlab"),
        ({"notebook", "notebook.app", "jupyter_server"}, "notebook"),
        ({"notebook", "jupyter_server"}, "jupyter_server"),  # Notebook 6
        (set(), None),
    ],
)
def test_the_best_installed_server_is_taken(
    found: set[str], module: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jupyter_settings, "find_spec", lambda name: name if name in found else None)
    assert jupyter_settings.installed_interface() == module


def test_a_notebook_is_on_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "1")
    assert notebook_server.main([]) == 0
