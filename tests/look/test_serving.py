"""`detslurm ui` as a server: who reaches it, how it ends, and in whose portal it runs."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from detslurm.look import jupyter, ondemand
from detslurm.look.private_files import new_token, private_directory, socket_name
from detslurm.look.serving import UnixServer
from detslurm.sdk.errors import LifecycleError
from tests.cli.conftest import Detslurm, detslurm
from tests.cluster.waiting import wait_for
from tests.look.http_requests import get
from tests.look.ui_process import ui
from tests.sdk.scenes import Scene

__all__ = ["detslurm"]
REPOSITORY = Path(__file__).resolve().parents[2]
Env = dict[str, str]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A store with an experiment that is over: nobody has to be asked about its jobs."""
    scene = Scene(tmp_path / "store")
    scene.run(scene.experiment(1, name="lively"), losses=[0.5], end="completed")
    return scene


@pytest.fixture
def env(scene: Scene, short_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Env:
    """The environment of its user, with a directory for sockets."""
    found = {
        "DETSLURM_ROOT": str(scene.root), "DETSLURM_SITE": "", "TMPDIR": str(tmp_path),
        "XDG_RUNTIME_DIR": str(short_path),
    }  # fmt: skip
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A private directory where the paths of sockets are short enough, wherever the test runs."""
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter; those of pytest are closed."""
    with tempfile.TemporaryDirectory(prefix="public-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def listens(path: Path) -> bool:
    """Whether a server does so on a socket, which is there a moment earlier."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as reader:
        reader.connect(str(path))
        return True
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_with_its_terminal_and_leaves_no_socket(env: Env, how: signal.Signals) -> None:
    """The socket is private and answers while it runs."""
    with ui(env) as running:
        assert (mode(running.socket.parent), mode(running.socket)) == (0o700, 0o600)
        assert running.socket.parent.parent == Path(env["XDG_RUNTIME_DIR"])
        assert "lively" in get(running.to, running.path).text
        running.process.send_signal(how)
        assert running.process.wait(120) == 130
        assert not running.socket.exists()
        assert "Traceback" not in running.process.communicate()[1]


def test_it_ends_when_nobody_looks(env: Env) -> None:
    """After the minutes that were given; the clock starts again with each request."""
    with ui(env, "--idle-minutes", "0.02") as running:
        assert running.process.wait(120) == 0
        assert not running.socket.exists()
        assert "ended" in running.process.communicate()[1]


def test_a_tab_that_is_refused_keeps_no_server(env: Env) -> None:
    """One of an earlier server, with its secret, asks again and again."""
    with ui(env, "--port", "0", "--idle-minutes", "0.05") as running:
        with suppress(ConnectionError, HTTPException):  # it may end in the middle of an answer
            while running.process.poll() is None:
                assert get(running.to).status == 403
                time.sleep(0.05)
        assert running.process.wait(120) == 0


def test_a_killed_one_is_started_again_at_the_same_place(env: Env, detslurm: Detslurm) -> None:
    """A tunnel goes on; while one runs, a second one says so and ends."""
    with ui(env) as running:
        result = detslurm("ui")
        assert (result.status, "runs on this machine already" in result.err) == (1, True)
        assert get(running.socket).status == 200
        running.process.kill()
        running.process.wait(120)
        assert running.socket.exists()
    with ui(env) as again:
        assert again.to == running.to
        assert get(again.socket).status == 200


def test_many_ask_at_once(env: Env) -> None:
    """Fifty requests in parallel all get the page, also beside one who never finishes asking."""
    with ui(env) as running, socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(running.to))
        slow.send(b"GET / HT")
        with ThreadPoolExecutor(50) as readers:
            found = list(readers.map(lambda i: get(running.to).status, range(50)))
        assert found == [200] * 50


def test_a_port_needs_the_token_and_an_own_name(env: Env) -> None:
    """The secret is in a private file and in no command line; it ends with the server."""
    with ui(env, "--port", "0") as running:
        assert get(running.to).status == 403
        assert get(running.to, running.path, Host="evil.example").status == 403
        opened = get(running.to, running.path)
        assert opened.status == 303
        cookie = opened.headers["set-cookie"].partition(";")[0]
        assert "lively" in get(running.to, Cookie=cookie).text
        assert get(running.to, Cookie=cookie, Host="evil.example").status == 403
        token = running.path.partition("=")[2]
        words = Path(f"/proc/{running.process.pid}/cmdline").read_text()
        assert token not in words
        kept = Path(env["XDG_RUNTIME_DIR"]) / "detslurm" / "ui-token"
        assert (kept.read_text(), mode(kept)) == (token, 0o600)
    with ui(env, "--port", "0") as again:
        assert get(again.to, Cookie=cookie).status == 403


def test_a_tunnel_to_the_socket_serves_own_names_only(env: Env) -> None:
    """A page of elsewhere whose name leads to the tunnel's end reads nothing."""
    with ui(env) as running:
        assert get(running.to, Host="localhost:8080").status == 200
        assert get(running.to, Host="evil.example:8080").status == 403


ATTACK = """
import os, socket, sys, time
what, target, token_file = sys.argv[1:]
if what == "socket":
    for act in (lambda: socket.socket(socket.AF_UNIX).connect(target),
                lambda: os.listdir(os.path.dirname(target)), lambda: os.unlink(target),
                lambda: os.rename(target, target + "x"), lambda: open(token_file).read()):
        try:
            act()
        except PermissionError:
            print("refused")
else:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
        connection = socket.socket(family)
        connection.connect((host, int(target)))
        try:
            connection.send(b"GET / HT")
            print("open" if connection.recv(1) else "refused")
        except ConnectionError:
            print("refused")
    # Ever more that never finish asking.
    held = [socket.create_connection((host, int(target))) for host in ["127.0.0.1"] * 100]
    print("holds", flush=True)
    while held:
        time.sleep(0.5)
        for one in [*held]:
            try:
                one.send(b"G")
            except OSError:
                held.remove(one)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs two other users")
@pytest.mark.parametrize(("what", "args"), [("socket", []), ("port", ["--port", "0"])])
def test_another_user_of_the_machine_gets_nothing(
    what: str, args: list[str], public: Path, env: Env
) -> None:
    """Both are ordinary users; the directory above the runtime directory is open to all."""
    owner, other = pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("nobody").pw_uid
    scene = Scene(public / "store")
    scene.run(scene.experiment(1, name="lively"), losses=[0.5], end="completed")
    for path in (*public.rglob("*"), Path(env["XDG_RUNTIME_DIR"])):
        os.chown(path, owner, owner)
    with ui({**env, "DETSLURM_ROOT": str(scene.root)}, *args, user=owner) as running:
        secret = f"{env['XDG_RUNTIME_DIR']}/detslurm/ui-token"
        attack = subprocess.Popen(
            [sys.executable, "-c", ATTACK, what, str(running.to), secret],
            user=other, group=other, extra_groups=[], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with attack:
            try:
                assert attack.stdout is not None
                found: list[str] = []
                while (line := attack.stdout.readline()) not in ("", "holds\n"):
                    found.append(line)
                assert line == ("holds\n" if what == "port" else "")
                assert found == ["refused\n"] * (5 if what == "socket" else 2)
                assert get(running.to, running.path).status in (200, 303)
            finally:
                attack.kill()  # it goes on for as long as the server holds its connections


@pytest.mark.skipif(os.getuid() != 0, reason="needs two other users")
def test_in_a_shared_store_each_sees_what_they_may_read(public: Path, env: Env) -> None:
    """A member of the group sees the others' experiments, but for one that was closed."""
    owner, member = pwd.getpwnam("daemon"), pwd.getpwnam("nobody")
    root = public / "shared"
    root.mkdir()
    os.chown(root, owner.pw_uid, member.pw_gid)
    root.chmod(0o3770)
    scene = Scene(root)
    for name in ("open to all", "closed plans"):
        scene.run(scene.experiment(1, name=name), losses=[0.5], end="completed")
    scene.store.experiment(2).path.chmod(0o700)
    os.chown(env["XDG_RUNTIME_DIR"], member.pw_uid, member.pw_gid)
    with ui({**env, "DETSLURM_ROOT": str(root)}, user=member.pw_uid, group=member.pw_gid) as seen:
        assert "open to all" in get(seen.to).text
        assert get(seen.to, "/experiments/1/").status == 200
        for page in ("/", "/experiments/2/", "/experiments/2/snapshot.json"):
            assert "closed plans" not in get(seen.to, page).text
        assert get(seen.to, "/experiments/2/").status in (404, 503)


def test_sockets_are_kept_in_a_directory_that_is_private(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that others may enter is not used, and a name that was taken first is left alone."""
    runtime = short_path / "run"
    runtime.mkdir(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    assert private_directory({"XDG_RUNTIME_DIR": str(runtime)}) == runtime / "detslurm"
    runtime.chmod(0o755)
    elsewhere = private_directory({"XDG_RUNTIME_DIR": str(runtime)})
    assert (elsewhere.parent == runtime, mode(elsewhere)) == (False, 0o700)
    runtime.chmod(0o700)
    (runtime / "detslurm").rmdir()
    (runtime / "detslurm").symlink_to(short_path)
    taken = private_directory({"XDG_RUNTIME_DIR": str(runtime)})
    assert (taken.name == "detslurm", mode(taken)) == (False, 0o700)
    assert private_directory({"XDG_RUNTIME_DIR": f"{short_path}/missing"}) == elsewhere
    too_long = short_path / ("x" * 90)
    too_long.mkdir(0o700)
    found = private_directory({"XDG_RUNTIME_DIR": str(too_long)})
    assert len(str(found / socket_name(short_path))) < 108


def test_a_token_comes_from_no_file_of_others(tmp_path: Path) -> None:
    """A link is refused; each start has a new one, which others can't read."""
    path = tmp_path / "token"
    first = new_token(path)
    path.chmod(0o644)
    second = new_token(path)
    assert (second != first, mode(path), path.read_text()) == (True, 0o600, second)
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError):
        new_token(path)


def test_only_an_own_socket_is_removed(tmp_path: Path) -> None:
    """A file of that name stays; so does the socket of a server that came after."""
    path = tmp_path / "x.sock"
    path.write_text("precious")
    with pytest.raises(LifecycleError, match="is not a socket"):
        UnixServer(path, lambda environ, start: [])
    path.unlink()
    server = UnixServer(path, lambda environ, start: [])
    path.unlink()
    other = UnixServer(path, lambda environ, start: [])
    server.server_close()
    assert path.exists()
    other.server_close()
    assert not path.exists()


def test_of_two_that_start_at_once_one_serves(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket on which its server is about to listen is none that a killed one has left."""
    path, refusals = short_path / "x.sock", list[str]()

    def second() -> None:
        try:
            UnixServer(path, lambda environ, start: []).server_close()
        except LifecycleError as error:
            refusals.append(str(error))

    other, listen = threading.Thread(target=second), UnixServer.server_activate

    def slow_to_listen(server: UnixServer) -> None:
        if threading.current_thread() is not other:
            other.start()
            other.join(1)  # as far as it comes
        listen(server)

    monkeypatch.setattr(UnixServer, "server_activate", slow_to_listen)
    with UnixServer(path, lambda environ, start: []):
        other.join(60)
        assert len(refusals) == 1 and "runs on this machine already" in refusals[0]
        assert listens(path)
    assert [*short_path.iterdir()] == []


def test_a_port_that_is_taken_is_named(env: Env, detslurm: Detslurm) -> None:
    """Before anything is printed that would lead to somebody else's server."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = detslurm("ui", "--port", port)
    assert (result.status, result.out) == (1, "")
    assert f"port {port} of this machine: Address already in use" in result.err


# -- portals ------------------------------------------------------------------------------------


# What Passenger does: the app's own Python loads the file, and a server calls what it defines.
PASSENGER = """
import imp, os, sys
from wsgiref.simple_server import make_server
sys.path.insert(0, os.getcwd())
app = imp.load_source("passenger_wsgi", "passenger_wsgi.py")
PREFIX = "/pun/dev/detslurm"
def below(environ, start_response):
    assert environ["PATH_INFO"].startswith(PREFIX)
    environ["REQUEST_URI"] = environ["PATH_INFO"]
    environ["SCRIPT_NAME"], environ["PATH_INFO"] = PREFIX, environ["PATH_INFO"][len(PREFIX):] or "/"
    return app.application(environ, start_response)
server = make_server("127.0.0.1", 0, below)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_open_ondemand_runs_the_app_below_its_prefix(
    env: Env, tmp_path: Path, detslurm: Detslurm
) -> None:
    """With nothing of the user's environment but what was written, under the portal's name."""
    place = tmp_path / "a portal's app"
    assert detslurm("ui", "install-ondemand", "--dir", place, "--json").data["changed"]
    found = detslurm("ui", "install-ondemand", "--dir", place, "--json").data
    assert found == {"path": str(place), "store": env["DETSLURM_ROOT"], "changed": False}
    assert (place / "manifest.yml").read_text().startswith("---\nname: detslurm\n")
    command = [str(place / "bin" / "python"), "-c", PASSENGER]
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=place, env=bare, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            port, portal = int(process.stdout.readline()), "ondemand.example.org"
            bare_root = get(port, "/pun/dev/detslurm", Host=portal)
            assert (bare_root.status, bare_root.headers["location"]) == (303, "./detslurm/")
            listed = get(port, "/pun/dev/detslurm/", Host=portal)
            assert 'href="experiments/1/"' in listed.text
            shown = get(port, "/pun/dev/detslurm/experiments/1/", Host=portal)
            assert (shown.status, "lively" in shown.text) == (200, True)
            data = get(port, "/pun/dev/detslurm/experiments/1/snapshot.json", Host=portal)
            assert data.status == 200
        finally:
            process.kill()


def test_an_app_for_all_shows_each_their_own_store(
    env: Env, public: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless one was chosen, of which others may have to be able to read it."""
    place = public / "app"
    chosen = detslurm("ui", "install-ondemand", "--dir", place, "--json")
    assert chosen.data["store"] == env["DETSLURM_ROOT"]
    assert f"other users can't read the store, {env['DETSLURM_ROOT']}" in chosen.err
    monkeypatch.delenv("DETSLURM_ROOT")
    assert detslurm("ui", "install-ondemand", "--dir", place, "--json").data["store"] is None
    assert "DETSLURM_ROOT" not in (place / "bin" / "python").read_text()


def test_a_local_disk_is_no_place_for_a_portal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The portal's machine sees what is on the network alone; the store need not exist yet."""
    kinds = {tmp_path: "ext4", Path("/scratch/ada/store"): None}
    monkeypatch.setattr(ondemand, "local_kind", lambda path: kinds.get(path))
    assert ondemand.doubts(Path("/home/ada/app"), Path("/scratch/ada/store"), for_all=False) == []
    (text,) = ondemand.doubts(Path("/home/ada/app"), tmp_path, for_all=False)
    assert text.startswith(f"the store, {tmp_path}, is on a disk of this machine (ext4)")


def test_an_app_that_can_not_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a portal nothing is set that a module has set here, unless the app carries it."""
    place, modules = tmp_path / "app", tmp_path / "of a module"
    (modules / "detslurm" / "look").mkdir(parents=True)
    (modules / "detslurm" / "look" / "app.py").touch()
    bare = tmp_path / "python"  # without what is installed beside it
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    ondemand.install(place, None, {})
    assert str(ondemand.failure(place)).endswith("No module named 'detslurm'")
    ondemand.install(place, None, {"PYTHONPATH": str(modules)})
    assert ondemand.failure(place) is None
    (place / "bin" / "python").unlink()
    assert "No such file" in str(ondemand.failure(place))


def test_the_app_is_mended_where_it_was_changed(tmp_path: Path) -> None:
    """An older environment's wrapper is replaced, and a running app is told to start again."""
    place, store = tmp_path / "app", tmp_path / "store's $HOME"
    ondemand.install(place, store, {})
    wrapper = place / "bin" / "python"
    done = subprocess.run(
        [wrapper, "-c", "import os; print(os.environ['DETSLURM_ROOT'])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(store)
    code = "import imp; imp.load_source('passenger_wsgi', 'passenger_wsgi.py').application"
    newer = {"PYTHONPATH": str(place / "lib"), "DETSLURM_ROOT": str(store)}  # as with Python 3.12
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=place, env=newer, check=True)
    wrapper.write_text('#!/bin/sh\nexec /old/python "$@"\n')
    (place / "tmp" / "restart.txt").unlink()
    assert ondemand.install(place, store, {})
    assert "/old/python" not in wrapper.read_text()
    assert (place / "tmp" / "restart.txt").exists()


@pytest.mark.parametrize("name", [*ondemand._OURS, "link", "runs this"])
def test_others_files_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """An environment's own Python would start itself without end: nothing is written at all."""
    path = tmp_path / (name if "." in name else "bin/python")
    path.parent.mkdir(exist_ok=True)
    if name == "runs this":
        path.write_text('#!/bin/sh\nexec apptainer exec image python "$@"\n')
        monkeypatch.setattr(sys, "executable", str(path))
    elif name == "link":
        path.symlink_to(sys.executable)
    else:
        path.write_bytes(b"name: another\n\xff")
    before = path.read_bytes()
    with pytest.raises(LifecycleError, match="is not a file of this app"):
        ondemand.install(tmp_path, None, {})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) in ([path], [path.parent])


def test_jupyter_starts_it_on_the_socket_that_it_names(env: Env, tmp_path: Path) -> None:
    """As jupyter-server-proxy does by its entry point; any host's name is the portal's."""
    setup = ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    entry = setup["options.entry_points"]["jupyter_serverproxy_servers"].strip()
    assert entry == "detslurm = detslurm.look.jupyter:server"
    settings, path = jupyter.server(), tmp_path / "jupyter.sock"
    (tmp_path / "socketserver.py").write_text("raise SystemExit('a file of the notebook was run')")
    assert settings["unix_socket"] is True
    command = [word.format(unix_socket=path, port=0, base_url="/") for word in settings["command"]]
    with subprocess.Popen(command, env={**os.environ, **env}, cwd=tmp_path) as process:
        try:
            wait_for(lambda: listens(path), 120, "the socket")
            assert "lively" in get(path, "/experiments/1/", Host="hub.example.org").text
        finally:
            process.kill()
