"""A headless browser, driven by WebDriver BiDi: Firefox speaks it, Chromium through its driver."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tests.cluster.waiting import wait_for

PROGRAMS: Final = {"chromium": ("chromium", "chromedriver"), "firefox": ("firefox-esr",)}
_QUIET: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
_PREFERENCES: Final = {
    "app.update.enabled": False,
    "browser.download.folderList": 2,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "remote.active-protocols": 1,
}
TIMEOUT: Final = 180.0


class Browser:
    """One browser with one tab, and what it has asked of the network."""

    def __init__(self, address: str, folder: Path) -> None:
        self.downloads = folder / "downloads"
        self.requests: list[str] = []
        import websocket

        self._socket = websocket.create_connection(address, timeout=TIMEOUT, suppress_origin=True)
        self._count = 0
        self._tab = self._frame = ""

    def begin(self, *, new_session: bool) -> None:
        """Take the tab that is there."""
        if new_session:
            self.call("session.new", capabilities={})
        self._tab = self._frame = self.call("browsingContext.getTree")["contexts"][0]["context"]
        self.call("session.subscribe", events=["network.beforeRequestSent"])

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its answer; requests that are told of meanwhile are noted."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("method") == "network.beforeRequestSent":
                self.requests.append(answer["params"]["request"]["url"])
            elif answer.get("id") == self._count:
                assert answer["type"] == "success", f"{method}: {answer}"
                return answer["result"]

    def open(self, address: str) -> None:
        """Load a page and wait until it is complete."""
        self.call("browsingContext.navigate", context=self._tab, url=address, wait="complete")

    def enter_frame(self) -> None:
        """Act in the first frame of the page, as long as the page stays."""
        self._frame = self._tree()["children"][0]["context"]

    def leave_frame(self) -> None:
        """Act in the page itself again."""
        self._frame = self._tab

    def _tree(self) -> Any:
        return self.call("browsingContext.getTree", root=self._tab)["contexts"][0]

    def resize(self, width: int, height: int) -> None:
        """Give the window's content this size."""
        size = {"width": width, "height": height}
        self.call("browsingContext.setViewport", context=self._tab, viewport=size)

    def js(self, body: str) -> Any:
        """What an async function with this body returns, through JSON."""
        found = self.call(
            "script.evaluate",
            expression=f"(async () => {{ {body} }})().then((v) => JSON.stringify(v ?? null))",
            target={"context": self._frame},
            awaitPromise=True,
        )
        assert found["type"] == "success", found["exceptionDetails"]["text"]
        return json.loads(found["result"]["value"])

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        wait_for(lambda: self.js(f"return Boolean({condition})"), timeout=TIMEOUT, what=condition)

    def place(self, selector: str) -> tuple[int, int]:
        """The middle of an element, scrolled into the window; where it is at rest."""
        x, y = self.js(
            "const frame = () => new Promise(requestAnimationFrame);"
            "for (let before = null, now = ''; ; before = now) {"
            f" const one = document.querySelector({selector!r});"
            " one.scrollIntoView({block: 'center'}); await frame(); await frame();"
            " const r = one.getBoundingClientRect(); now = [r.x, r.y, r.width, r.height].join();"
            " if (now === before) return [r.x + r.width / 2, r.y + r.height / 2]; }"
        )
        return round(x), round(y)

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        self.drag([self.place(selector)])

    def drag(self, points: Sequence[tuple[int, int]]) -> None:
        """Press the mouse at the first point, move along the others, and let go."""
        moves: list[dict[str, Any]] = [
            {"type": "pointerMove", "x": x, "y": y, "duration": 20} for x, y in points
        ]
        down, up = {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}
        self._act("pointer", [moves[0], down, *moves[1:], up])

    def type(self, text: str) -> None:
        """Press and release keys."""
        keys = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._act("key", keys)

    def press(self, key: str, *, holding: str) -> None:
        """Press a key while another one is held."""
        keys = [("keyDown", holding), ("keyDown", key), ("keyUp", key), ("keyUp", holding)]
        self._act("key", [{"type": kind, "value": value} for kind, value in keys])

    def _act(self, kind: str, actions: list[dict[str, Any]]) -> None:
        source = {"type": kind, "id": kind, "actions": actions}
        self.call("input.performActions", context=self._frame, actions=[source])

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a field."""
        self.js(
            f"const s = document.querySelector({selector!r}); s.value = {value!r};"
            "s.dispatchEvent(new Event('change', {bubbles: true}))"
        )

    def screenshot(self, target: Path) -> None:
        """Save what the window shows."""
        data = self.call("browsingContext.captureScreenshot", context=self._tab)["data"]
        target.write_bytes(base64.b64decode(data))


def missing(kind: str) -> list[str]:
    """What is needed to drive a browser and is not installed."""
    programs = [name for name in PROGRAMS[kind] if shutil.which(name) is None]
    return programs + ([] if find_spec("websocket") else ["websocket-client"])


@contextmanager
def browser(kind: str) -> Iterator[Browser]:
    """A browser of this kind with a profile of its own; it ends with the block."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
        stack.callback(wait_for, lambda: _removed(folder), what="the browser's end")
        (folder / "downloads").mkdir()
        start = _chromium if kind == "chromium" else _firefox
        address = start(stack, folder)
        made = Browser(address, folder)
        stack.callback(made._socket.close)
        made.begin(new_session=kind == "firefox")
        yield made
        made.call("browser.close")


def _removed(folder: Path) -> bool:
    """Whether a profile is gone; a browser that ends still writes to it."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _chromium(stack: ExitStack, folder: Path) -> str:
    port = wait_for(lambda: _driver_port(stack, folder), timeout=TIMEOUT, what="ChromeDriver")
    preferences = {"download.default_directory": str(folder / "downloads")}
    options = {"args": [*_QUIET, f"--user-data-dir={folder}"], "prefs": preferences}
    wanted = {"browserName": "chrome", "webSocketUrl": True, "goog:chromeOptions": options}
    body = json.dumps({"capabilities": {"alwaysMatch": wanted}}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/session", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        return str(json.load(answer)["value"]["capabilities"]["webSocketUrl"])


def _driver_port(stack: ExitStack, folder: Path) -> str | None:
    """Where a new driver is reached; None where it found no port, so that another is to try."""
    driver = _started(stack, folder, ["chromedriver", "--port=0"])
    try:
        return _told(folder, driver, r"started successfully on port (\d+)")
    except AssertionError as err:
        # It wants one number in IPv6 and IPv4, and chooses it by what is free in one of them.
        if "port not available" not in str(err):
            raise
        return None


def _firefox(stack: ExitStack, folder: Path) -> str:
    preferences = _PREFERENCES | {"browser.download.dir": str(folder / "downloads")}
    lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in preferences.items()]
    (folder / "user.js").write_text("\n".join(lines))
    words = ["firefox-esr", "--headless", "--no-remote", "--profile", str(folder)]
    process = _started(stack, folder, [*words, "--remote-debugging-port", "0"])
    return _told(folder, process, r"WebDriver BiDi listening on (ws://\S+)") + "/session"


def _started(stack: ExitStack, folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    """A process whose words go to a file; what it leaves behind ends with it."""
    log = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started: a browser outlives its driver."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)


def _told(folder: Path, process: subprocess.Popen[bytes], pattern: str) -> str:
    """What a process says in its log of how it is reached."""

    def said() -> str | None:
        assert process.poll() is None, (folder / "log").read_text(errors="replace")
        found = re.search(pattern, (folder / "log").read_text(errors="replace"))
        return found.group(1) if found else None

    return str(wait_for(said, timeout=TIMEOUT, what=pattern))
