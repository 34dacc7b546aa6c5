"""When a job would start: `sbatch --test-only`, which queues nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from detslurm import _env
from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.pending_details import StartTest

_PATIENCE = 10.0
_ANSWER = re.compile(r"to start at (\d+) .*?(?: in partition (\S+))?\s*$", re.MULTILINE)


def start_of(options: Sequence[str]) -> StartTest:
    """Slurm's estimate for a job with these options of sbatch. Raises `SlurmError`."""
    argv = ["sbatch", "--test-only", *options, "--wrap=true"]
    # Nothing of a job's own, and no options that the user's shell would add to those given.
    own = _env.inheritable(command.environment(), "SBATCH_")
    env = {**own, "SLURM_TIME_FORMAT": "%s"}
    done = command.call(argv, env=env, within=_PATIENCE)
    if done is None:
        raise SlurmError(f"sbatch --test-only: no answer within {_PATIENCE:g} seconds")
    return parse_test(done.stderr + done.stdout)


def parse_test(text: str) -> StartTest:
    """What `sbatch --test-only` prints: a start, or a refusal."""
    found = _ANSWER.search(text)
    if found is not None:
        return StartTest(float(found[1]))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = re.sub(r"^(?:sbatch: |error: |allocation failure: )+", "", lines[-1]) if lines else ""
    return StartTest(refusal=last or "no answer")
