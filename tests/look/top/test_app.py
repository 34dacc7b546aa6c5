"""`detslurm top`: driven by textual's pilot, and in a real terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("textual")

from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from detslurm.look.top.app import TopApp
from detslurm.look.top.watcher import Request, TopView, Watcher
from detslurm.sdk.client import Client
from detslurm.store import RunLog
from tests.look.top.test_watcher import job
from tests.sdk.scenes import Scene

SIZES = [(80, 24), (200, 60)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Trial 1 runs, trial 2 waits, and experiment 2 is over."""
    scene = Scene(tmp_path / "store")
    experiment = scene.experiment(2, name="resnet")
    losses = [1 / n for n in range(1, 30)]
    checkpoint = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    scene.run(experiment, 0, losses=losses, ref="7_0", log=["0: step 1"], checkpoint=checkpoint)
    report = {"t": "metrics", "group": "training", "steps": 3, "metrics": {"lr": 0.5}}
    with RunLog.open(scene.store.find_trial(1).records_path(1)) as records:
        records.append(report)
    scene.run(scene.experiment(1, job=None, name="done"), losses=[0.125], end="completed")
    scene.queue.rows = [job("7_0", "RUNNING"), job("7_1", "PENDING", "Priority")]
    return scene


def drive(
    scene: Scene,
    act: Callable[[Pilot[None]], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    watcher: Watcher | None = None,
) -> None:
    """Open the view, and act."""

    def acting(warn: Callable[[str], None]) -> Client:
        return Client(scene.root, warn=warn, connect=lambda name: scene.queue)

    async def run() -> None:
        view = watcher or Watcher(scene.root, lambda name: scene.queue)
        async with TopApp(view, acting).run_test(size=size) as pilot:
            await act(pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str = "") -> None:
    """Wait for what the thread that looks will bring."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, f"{what}\n{screen(pilot)}"
        await pilot.pause(0.05)


def screen(pilot: Pilot[None]) -> str:
    """What the terminal shows."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def burst(pilot: Pilot[None], *keys: str) -> None:
    """Keys that arrive together, as over a slow line."""
    for key in keys:
        pilot.app.post_message(Key(key, key if len(key) == 1 else None))


def keys(pilot: Pilot[None], name: str) -> list[str | None]:
    """The rows of a table."""
    return [key.value for key in pilot.app.query_one(f"#{name}", DataTable).rows]


def said(pilot: Pilot[None], text: str) -> Callable[[], bool]:
    """Whether a message beside the tables has a text."""
    return lambda: any(text in str(one.message) for one in pilot.app._notifications)


def shows(pilot: Pilot[None], text: str) -> Callable[[], bool]:
    return lambda: text in screen(pilot)


@pytest.mark.parametrize("size", SIZES)
def test_every_page_by_its_key(scene: Scene, size: tuple[int, int]) -> None:
    """Experiments above, and below trials, curves, the log, checkpoints and the queue."""

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: keys(pilot, "experiments") == ["2", "1"])
        await until(pilot, shows(pilot, "experiment 2 is COMPLETED"))
        await pilot.press("down")
        await until(pilot, lambda: keys(pilot, "trials") == ["1", "2"])
        assert "7_1: other jobs come first" in screen(pilot)
        for key, text in [
            ("2", "a trial 1  RUNNING  0.0344828 @ 29"), ("m", "training lr by steps"),
            ("m", "validation loss by steps"), ("3", "04:46:00 0| step 1"),
            ("4", "1b4e28ba"), ("5", "other jobs come first"), ("1", "experiment 1 is ACTIVE"),
        ]:  # fmt: skip
            await pilot.press(key)
            await until(pilot, shows(pilot, text), text)
        last = screen(pilot).splitlines()[-1]
        for word in ("tab Other half", "/ Filter", "p Pause", "a Activate", "c Cancel", "k Kill"):
            assert word in last
        assert "q Quit" in last
        assert max(map(len, screen(pilot).splitlines())) == size[0]

    drive(scene, act, size)


def test_a_trial_is_chosen_in_the_lower_half(scene: Scene) -> None:
    """Until then the log is that of a trial that runs."""
    scene.run(scene.store.experiment(1), 1, losses=[2.0], ref="7_1", log=["0: other"], end="error")

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)
        await pilot.press("down", "3")
        await until(pilot, shows(pilot, "log of trial 1, run 1"))
        await pilot.press("1")
        await until(pilot, lambda: keys(pilot, "trials") == ["1", "2"])
        await pilot.press("tab", "down", "3")
        await until(pilot, shows(pilot, "log of trial 2, run 1"))
        await until(pilot, shows(pilot, "0| other"))

    drive(scene, act)


def test_the_filter(scene: Scene) -> None:
    """Typed letter by letter; Escape takes it away."""

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)
        await pilot.press("slash", *"resn")
        await until(pilot, shows(pilot, "filter 'resn'"))
        await until(pilot, lambda: keys(pilot, "experiments") == ["1"])
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.focused is pilot.app.query_one("#experiments"))
        assert "filter 'resn'" in screen(pilot)
        await pilot.press("slash", "escape")
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)

    drive(scene, act)


def test_changes_ask_first(scene: Scene) -> None:
    """n leaves everything; y does it, and a kill says that it can't be undone."""

    def state() -> str:
        return str(scene.client.stored(1).state)

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)
        await pilot.press("down", "k")
        await until(pilot, shows(pilot, "This can't be undone"))
        assert "Kill experiment 1 (resnet)?" in screen(pilot)
        await pilot.press("n")
        await until(pilot, lambda: "leave it" not in screen(pilot))
        assert state() == "ACTIVE" and scene.queue.calls == []
        for key, found in [("p", "PAUSED"), ("a", "ACTIVE"), ("c", "STOPPING_CANCELED"),
                           ("k", "STOPPING_KILLED")]:  # fmt: skip
            await pilot.press(key)
            await until(pilot, shows(pilot, "leave it"))
            await pilot.press("y")
            await until(pilot, shows(pilot, found))
            await until(pilot, lambda: "leave it" not in screen(pilot))
            assert state() == found
        await pilot.press("up", "k", "y")
        await until(pilot, said(pilot, "Experiment 2 has already ended: COMPLETED"))

    drive(scene, act)


def test_a_burst_of_keys_changes_what_the_cursor_has_come_to(scene: Scene) -> None:
    """Not what it was on before, whose page is still shown."""

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)
        await until(pilot, shows(pilot, "experiment 2 is COMPLETED"))
        burst(pilot, "down", "k", "y")
        await until(pilot, said(pilot, "Killed experiment 1"))
        assert scene.client.stored(1).state == "STOPPING_KILLED"
        burst(pilot, "up", "k", "y")
        await until(pilot, said(pilot, "Experiment 2 has already ended: COMPLETED"))

    drive(scene, act)


def test_a_view_that_was_read_too_late_is_dropped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's last message may arrive when the widgets are gone already."""
    late: list[bool] = []

    async def close_all(
        app: TopApp, close: Callable[..., Awaitable[None]] = TopApp._close_all
    ) -> None:
        await close(app)
        app._show_view(app._view)
        late.append(True)

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)

    monkeypatch.setattr(TopApp, "_close_all", close_all)
    drive(scene, act)
    assert late


def test_a_burst_of_keys_goes_where_they_lead(scene: Scene) -> None:
    """The letters of a filter are no commands, and after Tab the arrows move in the other half."""

    async def act(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, TopApp)
        field = pilot.app.query_one("#search", Input)
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)
        burst(pilot, "slash", *"k/y")
        await until(pilot, lambda: field.value == "k/y")
        await pilot.press("escape")
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)
        await pilot.press("down")
        await until(pilot, lambda: keys(pilot, "trials") == ["1", "2"])
        burst(pilot, "tab", "down")
        await until(pilot, lambda: pilot.app._request.trial == 2)  # type: ignore[attr-defined]
        assert pilot.app._request.experiment == 1 and scene.queue.calls == []

    drive(scene, act)


def test_a_refusal_is_shown(scene: Scene) -> None:
    """And the view goes on."""

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)
        await pilot.press("p")
        await until(pilot, shows(pilot, "Pause experiment 2 (done)?"))
        await pilot.press("y")
        await until(pilot, said(pilot, "can't pause experiment 2: it is COMPLETED"))

    drive(scene, act)


class _Hangs:
    """A file server that does not answer."""

    has_answered = False

    def poll(self, request: Request) -> TopView:
        time.sleep(600)
        self.has_answered = True
        return TopView(request)


def test_the_keys_work_while_nothing_answers(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says for how long, and q still ends it."""
    monkeypatch.setattr("detslurm.look.top.app._STALLED_SECONDS", 0.1)

    async def act(pilot: Pilot[None]) -> None:
        status = pilot.app.query_one("#status", Static)
        await until(pilot, lambda: "no answer for" in str(status.content))
        await pilot.press("q")
        await until(pilot, lambda: not pilot.app.is_running)

    watcher = _Hangs()
    drive(scene, act, watcher=watcher)  # type: ignore[arg-type]
    assert not watcher.has_answered


def test_a_fault_of_our_own_ends_it(scene: Scene) -> None:
    """It is not hidden behind a view that never changes again."""

    class Broken:
        def poll(self, request: Request) -> TopView:
            raise AssertionError("ours")

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: not pilot.app.is_running)

    with pytest.raises(AssertionError, match="ours"):
        drive(scene, act, watcher=Broken())  # type: ignore[arg-type]


def test_what_is_chosen_stays_when_rows_come(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new experiment stands first, and the cursor goes with its own line."""
    monkeypatch.setattr("detslurm.look.top.reader.MOST", 1.0)  # a busy machine waits longer

    async def act(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, TopApp)
        await until(pilot, lambda: len(keys(pilot, "experiments")) == 2)
        await pilot.press("down")
        await until(pilot, lambda: keys(pilot, "trials") == ["1", "2"])
        await pilot.press("tab", "down")
        await until(pilot, lambda: pilot.app._request.trial == 2)  # type: ignore[attr-defined]
        scene.experiment(1, job=None, name="new")
        await until(pilot, lambda: keys(pilot, "experiments") == ["3", "2", "1"])
        await pilot.pause(0.2)
        assert (pilot.app._request.experiment, pilot.app._request.trial) == (1, 2)
        assert pilot.app.query_one("#experiments", DataTable).cursor_row == 2

    drive(scene, act)
