"""Arguments of a script pass through launchers: whatever they hold, no launcher takes them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.config.arguments import arguments_of
from tests.config.test_arguments import HOSTILE
from tests.distributed.openmpi import ENV
from tests.launchers.workers import needs_deepspeed

SCRIPT = """\
import json, os, sys
os.write(1, f"ARGV {json.dumps(sys.argv[1:])}\\n".encode())
"""


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("mpi -n 2 --", 2),
        ("autohorovod", 1),
        pytest.param("deepspeed --num_gpus 2 --", 2, marks=needs_deepspeed),
    ],
)
def test_every_word_reaches_every_rank(launcher: str, ranks: int, tmp_path: Path) -> None:
    """tests/e2e/test_arguments.py has the launcher of torch."""
    pytest.importorskip("mpi4py", reason="no MPI: mpi4py is not installed")
    words = arguments_of("flags", dict(zip("abcdefghijk", HOSTILE, strict=True)))
    words += ["--help", "--nnodes=9", "-n", "3", "-m", "--", "--trial"]
    (tmp_path / "argv.py").write_text(SCRIPT)
    name, *options = launcher.split()
    argv = [sys.executable, "-m", f"detslurm.launch.{name}", *options, "argv.py", *words]
    env = {**os.environ, **ENV}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    found = [json.loads(line) for line in re.findall("ARGV (.*)", done.stdout)]
    assert found == [words] * ranks, done.stderr
