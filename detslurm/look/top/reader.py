"""The thread that looks at the store and the queue, so that the keys never wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from detslurm.look.top.watcher import Request, TopView

SHARE: Final = 0.01
"""The most of one core that looking and drawing may take; the terminal takes the rest."""

SOONEST: Final = 1.0
LATEST: Final = 15.0
MOST: Final = 60.0
"""The longest pause after a slow look: the display gets no older, even if looks then take more
than `SHARE`."""


class PollInterval:
    """The pause between two looks, in seconds."""

    def __init__(self) -> None:
        self._pause = SOONEST

    def after(self, *, changed: bool, cost: float) -> float:
        """Return how many seconds to wait after a look that has found something new or not, and
        since the look before has `cost` the process that many seconds of processor time."""
        self._pause = SOONEST if changed else min(1.5 * self._pause, LATEST)
        return max(self._pause, min(cost / SHARE, MOST))


class Reader:
    """Looks again and again, soon after a request has changed, else at the pace of what happens.

    The thread is a daemon: a file server that hangs keeps no program from ending. In the thread,
    `show` gets each view, and `failed` a fault of our own, after which the thread ends.
    """

    def __init__(
        self,
        poll: Callable[[Request], TopView],
        show: Callable[[TopView], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._poll = poll
        self._show = show
        self._failed = failed
        self._request = Request()
        self._asked = threading.Condition()
        self._news = False
        self._over = False
        self._busy_since: float | None = None

    @property
    def busy_seconds(self) -> float:
        """For how long the store or the queue has not answered; 0 while nothing is asked."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="detslurm-top", daemon=True).start()

    def ask(self, request: Request) -> None:
        """Look at something else, now."""
        with self._asked:
            self._request, self._news = request, True
            self._asked.notify()

    def stop(self) -> None:
        """End after the look that is under way."""
        with self._asked:
            self._over = True
            self._asked.notify()

    def _run(self) -> None:
        interval, spent = PollInterval(), time.process_time()
        while not self._over:
            # Without the lock: a request from before this line is read below, and one from after it
            # ends the wait at once. At most one look is made too many.
            self._news = False
            self._busy_since = time.monotonic()
            try:
                view = self._poll(self._request)
            except Exception as error:  # the view's thread raises it: here it would be invisible
                self._failed(error)
                return
            self._busy_since = None
            self._show(view)
            before, spent = spent, time.process_time()
            self._wait(interval.after(changed=view.changed, cost=spent - before))

    def _wait(self, seconds: float) -> None:
        with self._asked:
            self._asked.wait_for(lambda: self._news or self._over, seconds)
