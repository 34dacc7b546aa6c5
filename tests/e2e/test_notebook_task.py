"""`detslurm notebook` on the real cluster: JupyterLab in a job, reached as a laptop reaches it."""

from __future__ import annotations

import json
import re
import signal
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import User
from tests.cluster.waiting import wait_for
from tests.e2e.desk import Desk
from tests.envelope import unwrap
from tests.look import ui_process
from tests.look.http_requests import SocketConnection, get

pytest.importorskip("jupyterlab")
websocket = pytest.importorskip("websocket")
pytestmark = pytest.mark.cluster

CPU = ("--config", "slurm.slot_type=cpu")
TUNNEL = re.compile(r"ssh -N -L 8888:(\S+) -J alice@\S+ alice@(\S+)")
OPEN = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
CELL = """
import json, os, time
names = ("SLURM_JOB_ID", "DET_EXPERIMENT_ID", "CUDA_VISIBLE_DEVICES", "PATH")
json.dump({name: os.environ.get(name) for name in names}, open("made.json", "w"))
time.sleep(15)
open("slept", "w").close()
"""


OLD_SETTINGS = """
c.ServerApp.ip = "*"
c.ServerApp.port = 9999
c.ServerApp.token = ""
c.ServerApp.password = ""
c.ServerApp.certfile = "mine.pem"
c.ServerApp.base_url = "/lab9/"
c.ServerApp.root_dir = "/usr"
c.KernelManager.transport = "tcp"
"""


def tokened(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}"}


def post(to: Path, path: str, token: str) -> Any:
    """The answer to a request of a page."""
    connection = SocketConnection(to)
    try:
        connection.request("POST", path, "{}", tokened(token))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def execute(to: Path, kernel: str, token: str, code: str) -> None:
    """Run a cell as a page does, and leave as soon as it has begun."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(60)
        end.connect(str(to))
        url = f"ws://localhost/api/kernels/{kernel}/channels"
        channel = websocket.create_connection(url, socket=end, header=tokened(token), timeout=60)
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s"}
        header |= {"username": "alice", "version": "5.3", "date": "2026-01-01T00:00:00Z"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        content |= {"user_expressions": {}, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        channel.send(json.dumps({**message, "channel": "shell", "buffers": []}))
        while json.loads(channel.recv())["msg_type"] != "execute_input":
            pass
        channel.shutdown()


def test_a_notebook_runs_cells_in_its_directory_and_ends_when_idle(desk: Desk, bob: User) -> None:
    """Its socket is its user's alone, and wants the token, whatever old settings of the user say;
    a cell that runs is not idle, though the page is closed."""
    old = desk.user.home / ".jupyter/jupyter_server_config.py"
    old.parent.mkdir()
    old.write_text(OLD_SETTINGS)
    desk.user.own(old.parent)
    folder = desk.write("lab/data.txt", "mine").parent
    idle = ("--config", "idle_timeout=12s")
    started = desk.run("notebook", "start", *CPU, *idle, "--json", cwd=folder)
    found = unwrap(started.stdout)
    number, token = found["id"], found["url"].partition("token=")[2]
    tunnel = TUNNEL.fullmatch(found["tunnel"])
    assert tunnel is not None and found["node"] == tunnel[2]
    place = Path(tunnel[1])

    kernel = post(place, "/api/kernels", token)["id"]
    execute(place, kernel, token, CELL)
    assert get(place, "/api/contents").status == 403
    assert bob.run("python3", "-c", OPEN, str(place), check=False).returncode == 1
    folder_of = place.parent.stat()
    assert (folder_of.st_mode & 0o777, folder_of.st_uid) == (0o700, desk.user.uid)
    listed = json.loads(get(place, "/api/contents", **tokened(token)).body)
    names = [one["name"] for one in listed["content"]]
    assert "data.txt" in names
    assert get(place, f"/?token={token}").headers["location"].startswith("/lab")
    assert f"{number} " in desk.run("notebook", "list").stdout
    again = desk.run("notebook", "open", "last").stdout.splitlines()
    assert [line[17:] for line in again] == [found["tunnel"], found["url"]]

    words = ["detslurm", "notebook", "open", "last", "--relay"]
    with ui_process.started(desk.user.popen(words), laptop_port=8888) as running:
        wait_for(running.socket.exists, 60, "the relay")
        assert get(running.socket, "/api/contents").status == 403
        assert get(running.socket, "/api/contents", **tokened(token)).status == 200
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 130
        assert not running.socket.exists()

    wait_for(lambda: (folder / "made.json").exists() and (folder / "made.json").read_text(), 60)
    made = json.loads((folder / "made.json").read_text())
    assert (made["SLURM_JOB_ID"], made["DET_EXPERIMENT_ID"]) == (desk.job(number), str(number))
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert "ends because no cell ran and no page was connected for 12 seconds" in desk.log(number)
    assert (folder / "slept").exists() and not place.parent.exists()
    assert desk.outcomes(number) == ["completed"]
    assert "has ended (COMPLETED" in desk.run("notebook", "open", "last", check=False).stderr
