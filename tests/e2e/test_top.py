"""`detslurm top` in a real terminal, on a search that runs."""

from __future__ import annotations

import pytest

from tests.cli.tmux import TmuxTerminal, needs_tmux
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_search import ASHA, LEARNS, hold_back, let_go, project, wait_until_working

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]


@needs_tmux
def test_a_search_is_watched_paused_and_killed_by_keys(desk: Desk) -> None:
    """At 80x24, and at 200x60 after the window was pulled: every page, and what keys change."""
    # So many that they still run when they are killed.
    number = desk.submit(project(desk, LEARNS, ASHA.replace("max_trials: 8", "max_trials: 500")))
    hold_back(desk, number)
    wait_until_working(desk, number, workers=2)
    assert desk.user.cwd is not None

    def run(argv: list[str]) -> str:
        return desk.user.run(*argv).stdout

    terminal = TmuxTerminal(run, str(desk.user.cwd / "tmux"), "detslurm top", (80, 24))
    try:
        terminal.shows(f" {number}   ACTIVE")
        terminal.shows("k Kill  q Quit")
        terminal.shows("RUNNING")
        terminal.press("3")
        terminal.shows("| waiting")
        terminal.press("5")
        terminal.shows("RUNNING")
        terminal.resize(200, 60)
        let_go(desk, number)
        terminal.press("2")
        screen = terminal.shows("validation loss by steps", PATIENCE)
        assert len(screen.splitlines()[-1]) <= 200
        terminal.shows("a trial", PATIENCE)
        wait_for(
            lambda: max(map(len, terminal.screen.splitlines())) > 80,
            PATIENCE,
            "use of the room that it has",
        )
        question = "This can't be undone"
        terminal.press("k")
        terminal.shows(question)
        terminal.press("n")
        wait_for(lambda: question not in terminal.screen, PATIENCE, "the end of the question")
        assert desk.view(number).desired.stopping is None
        terminal.press("k")
        terminal.shows(question)
        terminal.press("y")
        terminal.shows("Killed experiment", PATIENCE)
        wait_for(lambda: desk.view(number).desired.stopping == "kill", PATIENCE, "the kill")
        terminal.press("q")
        terminal.shows("left")
    finally:
        terminal.end()
