"""Errors that the next run would meet again, as logs of real processes tell them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.exec.failure import Failure, error_in, failure_in, failure_of
from detslurm.exec.text_log import TextLog


def log_of(script: str, folder: Path, run: int = 1, *, argv: tuple[str, ...] = ()) -> Path:
    """The log of a run whose code is this script, in a directory of the run's own."""
    workdir = folder / f"workdir-{run}"
    workdir.mkdir()
    (workdir / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, *(argv or (str(workdir / "train.py"),))],
        cwd=workdir,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = TextLog(folder / f"run-{run}.log")
    log.add_message(f"run {run} of trial 1 in job 7")
    log.write(f"[rank=0] {line}" for line in done.stdout.splitlines())
    log.close()
    return folder / f"run-{run}.log"


ERRORS = {
    "import nosuch": "ModuleNotFoundError: No module named 'nosuch'",
    "from os import nosuch": "ImportError: cannot import name 'nosuch' from 'os'",
    "def f(:\n    pass": "SyntaxError: ",
    "if 1:\npass": "IndentationError: ",
    "import json\njson.Nosuch": "AttributeError: module 'json' has no attribute 'Nosuch'",
    "print('epoch 1')\n{}[lambda: 1]": "KeyError: <function <lambda> at 0x",
    "def f(a): pass\nf()": "TypeError: f() missing 1 required positional argument: 'a'",
    "raise RuntimeError('Error(s) in loading state_dict for Net:\\n\\tsize mismatch')": (
        "RuntimeError: Error(s) in loading state_dict for Net:"
    ),
    "import argparse\nargparse.ArgumentParser().parse_args(['--lr', '1'])": (
        "train.py: error: unrecognized arguments: --lr 1"
    ),
    "try:\n    {}['lr']\nexcept KeyError:\n    unknown": "NameError: name 'unknown' is not defined",
}


@pytest.mark.parametrize("script", ERRORS)
def test_an_error_of_the_code_is_the_same_in_each_run(script: str, tmp_path: Path) -> None:
    """Whatever directory it ran in, and whatever addresses its objects had."""
    first, second = (failure_in(log_of(script, tmp_path, run)) for run in (1, 2))
    assert first is not None and second is not None
    assert first.digest == second.digest
    assert first.error.startswith(ERRORS[script])
    assert Failure.from_dict(first.to_dict()) == first


def test_the_exception_is_the_reason_also_where_it_may_pass(tmp_path: Path) -> None:
    """An error that the world may be to blame for is no failure of the code, but the reason."""
    log = log_of("raise OSError('the disk is away\\nfor a while')", tmp_path)
    assert (error_in(log), failure_in(log)) == ("OSError: the disk is away", None)
    assert error_in(log_of("print('fine'); raise SystemExit(3)", tmp_path, 2)) is None
    shell = "import os; os.execlp('sh', 'train.sh', '-c', 'echo begin; nosuch')"
    log = log_of(shell, tmp_path, 3)
    assert (error_in(log) or "").endswith("nosuch: not found") and failure_in(log) is None


def test_a_module_or_script_that_is_not_there(tmp_path: Path) -> None:
    """Python says so without a traceback."""
    for run, argv in enumerate([("-m", "nosuch"), ("nosuch.py",)]):
        found = failure_in(log_of("", tmp_path, run, argv=argv))
        assert found is not None and "nosuch" in found.error


@pytest.mark.parametrize(
    "script",
    [
        "open('/nonexistent')",
        "raise TimeoutError('no answer')",
        "raise RuntimeError('NCCL error: unhandled system error')",
        "raise MemoryError",
        "class Refused(Exception): pass\nraise Refused('by the server')",
        "try:\n    open('/nonexistent')\nexcept OSError as e:\n    raise KeyError('x') from e",
        "try:\n    open('/nonexistent')\nexcept OSError:\n    raise ValueError('no data')",
        "raise SystemExit('no licence is free')",
        "print('Traceback')",
        "try:\n    import nosuch\nexcept ImportError:\n    import traceback\n"
        "    traceback.print_exc()\nfor n in range(100): print(n)\nraise SystemExit(1)",
        "try:\n    import nosuch\nexcept ImportError:\n    import traceback\n"
        "    traceback.print_exc()\nraise ConnectionError('refused')",
        "class A:\n    def __del__(self): self.nosuch\na = A()\nraise ConnectionError('refused')",
        "import threading\nt = threading.Thread(target=lambda: {}['x'])\nt.start()\nt.join()\n"
        "raise SystemExit('refused')",
    ],
)
def test_what_may_pass_by_itself_is_no_error_of_the_code(script: str, tmp_path: Path) -> None:
    """Files, networks, memory, devices, and whatever is of an unknown kind."""
    assert failure_in(log_of(script, tmp_path)) is None


def test_another_error_is_not_the_same(tmp_path: Path) -> None:
    """Another line or another text."""
    scripts = ["import nosuch", "\nimport nosuch", "import nosuch2"]
    found = [failure_in(log_of(script, tmp_path, run)) for run, script in enumerate(scripts)]
    assert None not in found and len(set(found)) == 3


# As torchrun leaves it: rank 1's own error, the other's that follows, the launcher's report.
WORKERS = """\
[rank=1] || Traceback (most recent call last):
[rank=0] || Traceback (most recent call last):
[rank=1] ||   File "/tmp/a/train.py", line 5, in <module>
[rank=0] ||   File "/tmp/a/train.py", line 9, in <module>
[rank=1] ||     labels["image 815"]
[rank=1] || {own}
[rank=0] || {follows}
[rank=0] || E1122 torch/distributed/elastic/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 9)
[rank=0] || Traceback (most recent call last):
[rank=0] ||   File "/opt/torch/run.py", line 143, in main
[rank=0] || torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
[rank=0] || ============================================================
"""


def test_of_several_ranks_the_first_error_counts() -> None:
    """What the others say of it, and their launcher, is not asked."""
    key, closed = "KeyError: 'image 815'", "RuntimeError: Connection closed by peer [10.0.0.2]:9"

    def found(own: str, follows: str) -> Failure | None:
        text = WORKERS.format(own=own, follows=follows)
        return failure_of([f"[2026-01-01T00:00:00.1Z] {line}" for line in text.splitlines()])

    failure = found(key, closed)
    assert failure is not None and failure.error == key
    assert found(closed, key) is None


def test_a_log_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    """A run that could not even say why it failed is no repetition of anything."""
    assert failure_in(tmp_path / "nosuch.log") is None
