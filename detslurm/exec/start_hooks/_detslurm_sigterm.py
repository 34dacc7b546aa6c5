"""Runs at the start of each Python of a run with `preempt_signal`, on sites without cgroups.

There Slurm's SIGTERM at a preemption comes to every process, and the agent starts the code with it
blocked. Python unblocks it again, because pools end their workers by it and wait for their end, and
lets a preemption's pass. Launchers keep it blocked: torchrun would end its workers, which are
saving. The Python of the code may have no detslurm: then a handler of this file stands in.
"""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123 (every Python of the run imports this file)

import os


def begin() -> None:
    """Unblock SIGTERM, unless this process is a launcher."""
    import signal

    if signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return
    if _is_launcher():
        return
    try:
        _survive_by_detslurm()
    except Exception:  # this Python has none, or another release, or is too old for it
        _survive_alone(os.environ["DETSLURM_PREEMPT_FLAG"])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _is_launcher() -> bool:
    # By its path: the module stands by itself, and needs no detslurm around it.
    from importlib.util import module_from_spec, spec_from_file_location

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    place = os.path.join(package, "_base", "launcher_names.py")
    spec = spec_from_file_location("_detslurm_launcher_names", place)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().rstrip(b"\0").split(b"\0")
    return bool(module.is_launcher([os.fsdecode(word) for word in words]))


def _survive_by_detslurm() -> None:
    from detslurm._base.flag import PreemptFlag
    from detslurm._base.surviving_signal import survive_preemption_signal

    flag = PreemptFlag.of_this_node()
    if flag is not None:
        survive_preemption_signal(flag)


def _survive_alone(flag: str) -> None:
    """The same without detslurm, as far as it is needed here."""
    import signal
    import time

    owner = os.getpid()

    def is_raised() -> bool:
        try:
            with open(flag, "rb") as file:
                return file.read(1) not in (b"", b"\0")
        except OSError:
            return False

    def handle(number: int, frame: object) -> None:
        deadline = time.monotonic() + 2.0  # the agent's node may be crowded
        while os.getpid() == owner and time.monotonic() < deadline:
            if is_raised():
                return
            time.sleep(0.01)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handle)
