"""A report of a search with 1,000 trials in a browser, beside the same data in TensorBoard."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.looking import searched
from benchmarks.measure import Rounds
from benchmarks.report import Row, Skip
from benchmarks.rows.looking import cost_of, write_events
from detslurm.store import Store
from tests.look.browser import Browser, browser, missing

TRIALS = 1000
POINTS = 1000
METRICS = ("training/loss", "training/accuracy", "validation/loss", "validation/accuracy")
ROUNDS = 2
PEER = "TensorBoard"

REPORT = """\
import sys, time
from pathlib import Path
from detslurm.sdk import Client
client = Client(Path(sys.argv[1]))
began = time.process_time()
from detslurm.look.document import PAGE
from detslurm.look.report import page, write
from detslurm.look.snapshot import snapshot
write(page(snapshot([client.experiment(int(sys.argv[2]))], budget=PAGE)), Path(sys.argv[3]))
size = Path(sys.argv[3]).stat().st_size
"""
# Until the next frame is on the screen.
FRAME = "await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));"
PLOT = "document.querySelector('#{view} .plot')"
SORT = (
    "const began = performance.now();"
    "document.querySelector(\"th button[data-column='hparam lr']\").click();"
    f"{FRAME} return performance.now() - began"
)
# The page waits 150 ms for more keys.
FILTER = (
    "const field = document.querySelector('#filter'); field.value = 'lr<0.5';"
    "const count = document.querySelector('.count').textContent;"
    "field.dispatchEvent(new Event('input')); const began = performance.now();"
    "while (document.querySelector('.count').textContent === count)"
    " await new Promise((done) => setTimeout(done, 1));"
    f"{FRAME} return performance.now() - began - 150"
)
BRUSH = (
    "const plot = document.querySelector('#parallel .plot');"
    "const box = plot.getBoundingClientRect();"
    "const at = (kind, y) => plot.dispatchEvent(new PointerEvent(kind, {bubbles: true, button: 0,"
    " clientX: box.left + 50, clientY: box.top + y}));"
    "at('pointerdown', 70); const began = performance.now(); at('pointermove', 220);"
    f"{FRAME} const took = performance.now() - began; at('pointerup', 220); return took"
)


class Seen(NamedTuple):
    """Seconds until a page was painted, until its curves were drawn, and of what is done then."""

    paint: float
    curves: float
    sort: float
    filter: float
    brush: float


class Served(NamedTuple):
    """Seconds until TensorBoard served a first scalar and all of them, and its megabytes then."""

    first: float
    whole: float
    memory: float


def measure(bench: Bench) -> Iterator[Row]:
    """From the store to the screen."""
    if names := missing("chromium"):
        raise Skip(f"not installed: {', '.join(names)}")
    root, target = bench.folder() / "store", bench.folder() / "page.html"
    made = searched(Store.open(root), TRIALS, POINTS, METRICS)
    cost = cost_of(REPORT, root, made.id, target)
    rounds = [_seen(target) for _ in range(ROUNDS)]
    seen = Seen(*(Rounds(values) for values in zip(*rounds, strict=True)))  # type: ignore[arg-type]
    peer = _tensorboard(bench.folder())
    what = f"report of {TRIALS:,} trials with {len(METRICS)} x {POINTS:,} points"
    yield Row(what=f"{what}, in Chromium, to its first paint", ours=seen.paint, unit="s",
              anchor=peer and peer.first, peer=f"{PEER}'s first scalars", most=1.5)  # fmt: skip
    yield Row(what=f"{what}, made and drawn with its curves", ours=seen.curves + cost.seconds,
              unit="s", anchor=peer and peer.whole, peer=f"{PEER}, all runs")  # fmt: skip
    yield Row(what=what, ours=cost.size / 1e6, unit="MB", most=20)
    yield Row(what=f"{what}, making it", ours=cost.memory, unit="MB of memory",
              anchor=peer and peer.memory, peer=PEER)  # fmt: skip
    for name in ("sort", "filter", "brush"):
        yield Row(what=f"{TRIALS:,} trials in a report: {name}", ours=getattr(seen, name), unit="s")


def _seen(page: Path) -> Seen:
    """What a new browser shows of a page."""
    with browser("chromium") as opened:
        opened.resize(1280, 800)
        opened.open(page.as_uri())
        opened.wait_for("document.querySelector('#table tbody tr')")
        paint = opened.js(
            "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        curves = _drawn(opened)
        sort, filtered = opened.js(SORT), opened.js(FILTER)
        opened.js("document.querySelector('#parallel').scrollIntoView()")
        opened.wait_for("document.querySelector('#parallel .scatterlayer .trace')")
        brush = opened.js(BRUSH)
    return Seen(*(value / 1000 for value in (paint, curves, sort, filtered, brush)))


def _drawn(opened: Browser) -> float:
    """Milliseconds until the learning curves are there, from the beginning of the page."""
    opened.js("document.querySelector('#curves').scrollIntoView()")
    drawn = opened.js(
        "while (!document.querySelector('#curves .scatterlayer .trace'))"
        " await new Promise((done) => setTimeout(done, 5)); return performance.now()"
    )
    opened.js("scrollTo(0, 0)")
    return float(drawn)


# -- the peer ------------------------------------------------------------------------------------


def _tensorboard(folder: Path) -> Served | None:
    """TensorBoard on as many runs; None where it is not installed."""
    if find_spec("tensorboard") is None:
        return None
    first = folder / "trial-0" / "events.out.tfevents.1.n1"
    first.parent.mkdir()
    write_events(first, _events())
    for number in range(1, TRIALS):
        other = folder / f"trial-{number}" / first.name
        other.parent.mkdir()
        os.link(first, other)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder)]
    with _running([*program, "--host=127.0.0.1", f"--port={port}"]) as process:
        return _served(f"http://127.0.0.1:{port}/data/plugin/scalars", process)


def _events() -> Iterator[tuple[str, int, float]]:
    for step in range(1, POINTS + 1):
        for name in METRICS:
            yield name, step, 100 / (100 + step)


@contextmanager
def _running(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # with its data server
        process.wait(timeout=30)


def _served(address: str, process: subprocess.Popen[bytes]) -> Served:
    began = time.monotonic()
    first = None
    while True:
        tags = _answer(f"{address}/tags") or {}
        if first is None and any(tags.values()):
            run = next(run for run, names in tags.items() if names)
            if _answer(f"{address}/scalars?run={run}&tag={METRICS[0]}"):
                first = time.monotonic() - began
        if first is not None and len(tags) == TRIALS and _is_whole(address):
            return Served(first, time.monotonic() - began, _memory(process.pid))
        if process.poll() is not None or time.monotonic() - began > 300:
            raise RuntimeError(f"TensorBoard serves {len(tags)} of {TRIALS} runs")
        time.sleep(0.05)


def _is_whole(address: str) -> bool:
    """Whether the last run has all its points; others were read before it."""
    urls = (f"{address}/scalars?run=trial-{n}&tag={METRICS[-1]}" for n in (0, TRIALS - 1))
    return all(len(_answer(url) or ()) == POINTS for url in urls)


# Whatever proxy this machine has: it does not know our loopback.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _answer(url: str) -> Any:
    try:
        with _DIRECT.open(url, timeout=60) as answer:
            return json.load(answer)
    except OSError:
        return None


def _memory(group: int) -> float:
    """Megabytes of all processes of a group."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(entry.name)) == group:
                text = (entry / "status").read_text()
                total += int(text.partition("VmRSS:")[2].split()[0])
        except OSError:
            continue  # it has ended
    return total / 1024
