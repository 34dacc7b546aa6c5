"""Let Slurm's SIGTERM pass where it comes to every process of the step: sites without cgroups."""

from __future__ import annotations

import os
import signal
import threading

from detslurm._base.flag import PreemptFlag


def survive_preemption_signal(flag: PreemptFlag) -> None:
    """Let Slurm's SIGTERM pass: it comes to every process of the step when the job is preempted.

    The code learns of preemption from the flag, at a moment of its choice. A SIGTERM without
    preemption (a launcher ending its workers) ends the process, as without us. A handler that
    the user installed is kept.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # Python lets no other thread install handlers
    # The parent's handler does nothing in a forked rank, so that it gets a handler of its own.
    current = signal.getsignal(signal.SIGTERM)
    if current is signal.SIG_DFL or (isinstance(current, SurvivingSignal) and not current.is_mine):
        signal.signal(signal.SIGTERM, SurvivingSignal(flag))


class SurvivingSignal:
    """A handler of SIGTERM for this process, not for children that it forks.

    A pool that is left while the flag is up ends its workers so, and then waits for their end.
    """

    def __init__(self, flag: PreemptFlag) -> None:
        self._flag, self._owner = flag, os.getpid()

    @property
    def is_mine(self) -> bool:
        return os.getpid() == self._owner

    def __call__(self, number: int, frame: object) -> None:
        # This interrupts the main thread anywhere: the flag is mapped memory, read without a lock
        # that the interrupted code could hold. A SIGTERM without a preemption is sent again, so
        # that the exit status names it.
        if not (self.is_mine and self._flag.explains_signal()):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
