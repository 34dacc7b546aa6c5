"""Run a function that was submitted from Python: `python3 -m detslurm.launch.function KIND`.

KIND `call`: the trial's hyperparameter `function` selects the submitted call; its result or
exception is kept for `Job.result()`. KIND `training`: the one function is called with the context
of `core.init()`.

A call is interrupted when it must leave its node. If its callable has a method `checkpoint`, that
method decides how to go on, and the next run does so; otherwise the next run begins again.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from zipfile import ZipFile

from detslurm import core
from detslurm._base.trust import trusted
from detslurm.config.run_config import RunConfig
from detslurm.core._trial import trial_of
from detslurm.slurm import SIGNAL_EARLY
from detslurm.store import fs

FUNCTIONS = "functions.zip"
"""Beside the code: one pickle a call, and where modules are found."""

PLACES = "places.json"
FAILED = "detslurm: the function raised an exception, and is not called again"
"""A log policy finds this line: a failure of the machine is retried, that of a function is not."""

_CHECKPOINT = "submission.pkl"
_LOOK = 0.2
_SIGNAL = signal.SIGUSR2


def main(argv: Sequence[str]) -> int:
    """Run the submitted calls; returns the exit status."""
    if len(argv) != 1 or argv[0] not in ("call", "training"):
        print(__doc__, file=sys.stderr)
        return 2
    alone = core.DistributedContext(
        rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1
    )  # however many slots it has, it is one process
    with core.init(distributed=alone) as context:
        assert context.info is not None, "functions run in jobs alone"
        with ZipFile(trusted(Path(FUNCTIONS).absolute())) as functions:
            _find_modules(json.loads(functions.read(PLACES)), enter=argv[0] == "call")
            if argv[0] == "training":
                pickle.loads(functions.read("0")).function(context)
                return 0
            _tell_submitit(context)
            number = context.info.trial.hparams["function"]
            return _call(context, _latest(context) or pickle.loads(functions.read(str(number))))


def _tell_submitit(context: core.Context) -> None:
    """`submitit.JobEnvironment()` works in functions, outside of Slurm too."""
    assert context.info is not None
    if "SLURM_JOB_ID" in os.environ:
        os.environ["SUBMITIT_EXECUTOR"] = "slurm"
        return
    number = str(context.info.trial.trial_id)
    os.environ |= {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": number}


def _find_modules(places: dict[str, Any], *, enter: bool) -> None:
    """Modules are found where they were at the submission; a call begins in the same directory."""
    sys.path += [place for place in places["path"] if place not in sys.path]
    if enter and Path(places["directory"]).is_dir():
        os.chdir(places["directory"])


def _latest(context: core.Context) -> Any:
    """The continuation that the run before left to this one."""
    assert context.info is not None
    if (uuid := context.info.latest_checkpoint) is None:
        return None
    with context.checkpoint.restore_path(uuid) as path:
        return pickle.loads(trusted(path / _CHECKPOINT).read_bytes())


def _call(context: core.Context, submission: Any) -> int:
    leaving = _Leaving(context, submission)
    try:
        with leaving:
            outcome = ("success", submission.result())
    except Exception:
        outcome = ("error", traceback.format_exc())
        print(f"{outcome[1]}{FAILED}", file=sys.stderr, flush=True)
    assert context.info is not None
    write_result(context, outcome)
    return 0 if outcome[0] == "success" else 1


def write_result(context: core.Context, outcome: tuple[str, Any]) -> None:
    """Keep what came of the call, for this user alone; a run has its own file."""
    import cloudpickle

    assert context.info is not None
    run = context.info.trial._trial_run_id
    try:
        data = cloudpickle.dumps(outcome)
    except Exception:  # whatever a result's own methods raise
        text = f"{traceback.format_exc()}the result can't be pickled"
        print(f"{text}\n{FAILED}", file=sys.stderr, flush=True)
        data = cloudpickle.dumps(("error", text))
    fs.write_new(str(trial_of(context.info).path / f"result-{run}.pkl"), data, secret=True)


class _Leaving:
    """Interrupts the block when the process must leave its node, as a signal handler would."""

    def __init__(self, context: core.Context, submission: Any) -> None:
        self._context = context
        self._submission = submission
        self._began = time.time()
        self._over = threading.Event()

    def __enter__(self) -> None:
        signal.signal(_SIGNAL, self._leave)
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        # Ignored, not restored: a watcher that has just decided to interrupt may send it after the
        # block, and the default action would kill the process before the result is written.
        signal.signal(_SIGNAL, signal.SIG_IGN)
        self._over.set()

    def _watch(self) -> None:
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        while not self._over.wait(_LOOK):
            if self._context.preempt.should_preempt(auto_ack=False):
                # To the main thread alone: a sleep or a read of the call ends at once, and no
                # process that the call has started is hit.
                signal.pthread_kill(main_thread, _SIGNAL)
                return

    def _leave(self, number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(_SIGNAL, signal.SIG_IGN)  # saving is not interrupted itself
        following = self._submission._checkpoint_function()
        if following is None and self._is_timed_out():
            raise TimeoutError("the time limit is reached, and the callable has no checkpoint()")
        if following is not None:
            self._save(following)
        self._context.preempt.acknowledge_preemption_signal()
        raise SystemExit(0)

    def _is_timed_out(self) -> bool:
        assert self._context.info is not None
        config = RunConfig.of(self._context.info.trial._config)
        return is_timed_out(
            now=time.time(),
            began=self._began,
            minutes=int(self._submission._timeout_min),
            end=float(os.environ.get("SLURM_JOB_END_TIME", 0)),
            lead=config.slurm.signal_lead,
        )

    def _save(self, following: Any) -> None:
        import cloudpickle

        assert self._context.info is not None
        following.set_timeout(self._submission._timeout_min, self._submission._timeout_countdown)
        steps = self._context.info.trial._trial_run_id
        with self._context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
            (path / _CHECKPOINT).write_bytes(cloudpickle.dumps(following))


def is_timed_out(*, now: float, began: float, minutes: int, end: float, lead: float) -> bool:
    """Whether a call must leave for its time limit: run again, it would never come to its end.

    As submitit judges by a limit of `minutes`, else by the end of the job that Slurm reports:
    the warning comes `lead` seconds before, or earlier.
    """
    if minutes > 0:
        return now - began >= min(0.8 * 60 * minutes, 60 * minutes - 600)
    return end > 0 and now >= end - lead - SIGNAL_EARLY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
