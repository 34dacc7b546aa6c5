"""Runs at the start of each Python of a run with `preempt_signal`, on sites without cgroups.

There Slurm's SIGTERM at a preemption comes to every process, and the agent starts the code with it
blocked. Python unblocks it again, because pools end their workers by it, and lets a preemption's
pass. Launchers keep it blocked: torchrun would end its workers, which are saving.
"""

import sys


def _load_other() -> None:
    """Load the site's own `sitecustomize`, which this file hides."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = __file__.rpartition("/")[0]
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def _unblock() -> None:
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


try:
    _unblock()
except Exception as error:  # the user's program is to start whatever goes wrong here
    print(f"detslurm: SIGTERM stays blocked in this process: {error}", file=sys.stderr)
_load_other()
