"""Should this process stop? The answer is the node's preemption flag."""

from __future__ import annotations

import enum
import os
import signal
import threading
from collections.abc import Callable

from detslurm._base.display import Displayed
from detslurm._base.flag import PreemptFlag
from detslurm.core._distributed import DistributedContext


class PreemptMode(enum.Enum):
    """The ranks that may call `should_preempt()`, and how they agree.

    Attributes:
        WorkersAskChief: All ranks call equally often and get the chief's answer.
        ChiefOnly: Only the chief may call.
        WorkersAskMaster: Each rank calls when it likes and sees its own node's flag; ranks may
            differ for a moment.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext(Displayed):
    """Whether to save a checkpoint and exit now: `core.preempt`.

    The reason may be preemption, the time limit, a request of the user, or a decision of the
    search.
    """

    def __init__(
        self,
        dist: DistributedContext,
        flag: PreemptFlag | None,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
        on_first_question: Callable[[], None] | None = None,
    ) -> None:
        self._dist = dist
        self._flag = flag
        self._on_first_question = on_first_question
        self._is_refused = preempt_mode is PreemptMode.ChiefOnly and dist.rank != 0
        self._asks_chief = preempt_mode is PreemptMode.WorkersAskChief and dist.size > 1
        self._started = self._preempted = self._acknowledged = False

    def _facts(self) -> dict[str, bool]:
        return {"started": self._started, "preempted": self._preempted}

    def start(self) -> PreemptContext:
        """Begin to watch, and return this object; the context of `core.init()` calls it. A second
        call raises `RuntimeError`.
        """
        if self._started:
            raise RuntimeError("PreemptContext.start() was called twice")
        self._started = True
        return self

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return True once this process should save a checkpoint and exit, and from then on.

        It is cheap enough for every batch. In mode WorkersAskChief every rank must call it equally
        often.

        Args:
            auto_ack: Whether the first True also acknowledges the request, which promises that the
                code exits: the trial then goes on later, whatever the exit code. On by default.

        Raises:
            RuntimeError: Before `start()`, and on a worker in mode ChiefOnly.

        Example:
            import detslurm as det

            with det.core.init() as core:
                for batch in range(1000):
                    if core.preempt.should_preempt():
                        break  # save a checkpoint first
        """
        if not self._started:
            raise RuntimeError(
                "should_preempt() was called before PreemptContext.start(): enter the `with` block"
                " of core.init(), or call start() on what core.init() gave"
            )
        if self._is_refused:
            raise RuntimeError(
                "this preempt_mode is ChiefOnly, but should_preempt() was called from non-chief "
                f"worker of rank={self._dist.rank}"
            )
        self._note_question()
        # Where ranks agree, all get their first True from one broadcast: none waits for another.
        if not self._preempted:
            self._preempted = self._read_flag()
        if self._preempted and auto_ack and not self._acknowledged:
            self.acknowledge_preemption_signal()
        return self._preempted

    def _note_question(self) -> None:
        if self._on_first_question is not None:
            act, self._on_first_question = self._on_first_question, None
            act()

    def _should_leave(self) -> bool:
        """As `should_preempt`, by this node's flag alone: for ranks that ask when they like."""
        self._note_question()
        if self._flag is None or not self._flag.is_to_leave:
            return False
        self.acknowledge_preemption_signal()
        return True

    def _read_flag(self) -> bool:
        flag = self._flag
        seen = flag is not None and flag.is_to_leave
        if self._asks_chief:
            return bool(self._dist.broadcast(seen))
        return seen

    def acknowledge_preemption_signal(self) -> None:
        """Promise that this process exits now with work left to do, which a later run continues."""
        self._acknowledged = True
        if self._flag is not None:
            self._flag.acknowledge()

    def close(self) -> None:
        """Stop watching."""
        self._flag = None


def end_with_agent(flag: PreemptFlag) -> None:
    """End this process as soon as its node's agent is gone, however that came.

    Nothing would read what it prints, ask it to stop, or keep the next run from starting beside it.
    A thread sleeps in the kernel for it: the training loop pays nothing.
    """
    threading.Thread(target=_end_after, args=(flag,), name="detslurm-agent", daemon=True).start()


def _end_after(flag: PreemptFlag) -> None:
    if flag.outlive_owner():
        # Without exit handlers: the main thread may hang in a call to peers, or in C code. And not
        # by a signal, which would not end the first process of a container.
        os._exit(128 + signal.SIGKILL)
