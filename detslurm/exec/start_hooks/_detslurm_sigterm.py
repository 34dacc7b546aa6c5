"""Runs at the start of each Python of a run with `preempt_signal`, on sites without cgroups.

There Slurm's SIGTERM at a preemption comes to every process, and the agent starts the code with it
blocked. Python unblocks it again, because pools end their workers by it, and lets a preemption's
pass. Launchers keep it blocked: torchrun would end its workers, which are saving.
"""

import sys


def begin() -> None:
    """Unblock SIGTERM, unless this process is a launcher."""
    import signal

    if signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return
    from detslurm._base.flag import PreemptFlag
    from detslurm._base.launcher_names import is_launcher
    from detslurm._base.surviving_signal import survive_preemption_signal

    if is_launcher(sys.orig_argv):
        return
    flag = PreemptFlag.of_this_node()
    if flag is not None:
        survive_preemption_signal(flag)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
