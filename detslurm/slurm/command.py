"""Calling Slurm's own commands: quoting-free, patient with a busy controller, plain on refusals."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from detslurm.slurm.errors import SlurmError

Process = subprocess.Popen[str]

calls: dict[str, int] = {}
"""How often this process has begun each of Slurm's programs."""

# Slurm's messages when the controller is busy, restarting or rationing its callers. Anything else
# that fails is an answer, and asking again would not change it.
_TRANSIENT = (  # compiled by its first use: no start needs it
    r"socket timed out"
    r"|unable to contact slurm controller"
    r"|slurm controller \(connect failure\)"
    r"|controller not responding"
    r"|connection (refused|timed out|reset)"
    r"|communication connection failure"
    r"|message (receive|send) failure"
    r"|zero bytes were transmitted"
    r"|transport endpoint is not connected"
    r"|resource temporarily unavailable"
    r"|credential expired"  # a node, or the way to it, was slow
    r"|temporarily unable to accept job"
    r"|in standby mode"
    r"| failed \(-\d+\)"  # killed: its progress is unknown
    r"|rate limit"
    r"|too many (requests|rpcs)"
    r"|try again later"
)

_ADVICE: tuple[tuple[str, str], ...] = (
    (r"invalid partition", "`sinfo -s` lists the partitions; set resources.resource_pool."),
    (
        r"invalid account",
        "`sacctmgr show associations user=$USER` lists your accounts; set slurm.account.",
    ),
    (r"invalid qos", "`sacctmgr show qos` lists the QOS names; set slurm.qos."),
    (
        r"time limit (specification|is too)|requested time limit|timelimit",
        "Ask for less with slurm.time; `sinfo -o '%P %l'` shows each partition's limit.",
    ),
    (
        r"node configuration is not available|partition node limit|more processors",
        "No node of this partition can ever hold that. Check resources.slots_per_trial,"
        " slurm.slots_per_node, slurm.gpu_type, resources.resource_pool, and slurm.sbatch_args"
        " (--mem, --cpus-per-task).",
    ),
    (
        r"memory specification|invalid --?mem|memory (is )?required|specify .*mem(ory)?\b",
        "Ask for memory that a node has: slurm.sbatch_args: [\"--mem=16G\"]; `sinfo -o '%P %m'"
        " lists the megabytes of nodes.",
    ),
    (
        r"unrecognized option|unknown option|invalid option|invalid feature|requested reservation"
        r"|invalid reservation|licen[cs]e specification|invalid node name|dependency problem",
        "Options of sbatch are set with slurm.sbatch_args (features with slurm.constraint):"
        ' ["--reservation=name", "--exclude=node7"].',
    ),
    (r"invalid (generic resource|gres)", "`sinfo -o '%P %G'` lists the GPU types."),
    (
        r"submit limit|maxsubmit|job limit|assocmax|qosmax",
        "Your account or QOS allows no more jobs in the queue, where each element of an array is"
        " one. Wait for some to end, or let each element run several trials, one after the other:"
        " raise slurm.trials_per_job.",
    ),
    (r"invalid job array", "The array is larger than the site's MaxArraySize allows."),
    (
        r"not permitted to use this partition",
        "`scontrol show partition` shows whom it admits; set resources.resource_pool.",
    ),
    (r"invalid job id", "The job has left the queue."),
    (
        r"slurm_load_.*access/permission denied",
        "Slurm does not show that to you: the site keeps it for its administrators (PrivateData).",
    ),
    (r"access/permission denied|invalid user", "The job belongs to another user."),
    (
        r"configuration source|slurm\.conf",
        "Slurm's commands are installed, but no cluster is configured for this machine.",
    ),
)


# Options that users set for their own calls: a filter would make a job seem to be gone, and
# SCANCEL_INTERACTIVE waits for a yes.
_OPTIONS = ("SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_", "SCONTROL_")
_NOT_ADMITTED = (
    "You may not submit there: the partition may be for administrators alone (RootOnly=YES in"
    " `scontrol show partition`); set resources.resource_pool."
)


def is_submit_limit(message: str) -> bool:
    """True when fewer jobs might have been taken: a limit on how many there may be was in the way,
    or a limit that sbatch does not name."""
    unnamed = "\n" not in message and "(job submit limit" in message
    return unnamed or "submitjob" in message.lower()


def is_hidden(message: str) -> bool:
    """True when the site shows the answer to administrators alone (PrivateData)."""
    return bool(re.search(r"slurm_load_.*access/permission denied", message, re.IGNORECASE))


def is_transient(message: str) -> bool:
    """True when the same call may succeed a little later."""
    return bool(re.search(_TRANSIENT, message, re.IGNORECASE))


def advice_for(message: str, program: str = "") -> str:
    """The remedy for a refusal of Slurm's; empty when none is known."""
    if is_transient(message):
        return (
            "The controller is busy or down: `scontrol ping` shows it. Nothing was lost; try again."
        )
    if program == "sbatch" and re.search("access/permission denied", message, re.I):
        return _NOT_ADMITTED
    if limits := list(filter(None, map(_limit_of_a_job, message.splitlines()))):
        return limits[0]
    return next((text for pattern, text in _ADVICE if re.search(pattern, message, re.I)), "")


def _limit_of_a_job(line: str) -> str | None:
    """The advice where sbatch names a limit that no wait can help against: one on each job."""
    from detslurm.slurm.reasons import reason_of

    reason = reason_of(line.rpartition(":")[2])
    if reason.limit is None or not reason.limit.of_each_job:
        return None
    than = "more" if reason.limit.minimum else "less"
    return (
        f"The job {reason.sentence}: ask for {than} (resources.slots_per_trial,"
        " slurm.time, slurm.sbatch_args), or use another slurm.qos or slurm.account."
    )


def backoff(patience: float) -> Iterator[float]:
    """Growing waits with jitter that together stay within `patience` seconds."""
    wait = 0.5
    # Jitter: a controller that comes back has refused thousands of runners at the same moment.
    while patience > 0:
        # `random` itself costs each runner ten path calls.
        chosen = min(wait * (0.7 + 0.6 * os.urandom(1)[0] / 255), patience)
        patience -= chosen
        yield chosen
        wait = min(wait * 2, 30.0)


def environment() -> dict[str, str]:
    """The caller's environment with what Slurm prints made stable, and nothing left out of it."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(_OPTIONS)},
        "LC_ALL": "C.UTF-8",
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",  # else long lists of array indices end in "..."
    }


def run(
    argv: Sequence[str],
    *,
    patience: float = 30.0,
    env: dict[str, str] | None = None,
    before_retry: Callable[[], str | None] = lambda: None,
    within: float | None = None,
    begun: Process | None = None,
    messages: bool = False,
) -> str:
    """stdout of a Slurm command; retries transient errors, raises SlurmError on a refusal.

    Slurm's commands wait half a minute for a controller that is down: that counts as patience,
    too, and `within` bounds each call.
    `before_retry` may find that the failed call took effect after all, and answer in its place.
    `begun` is the first call, where it was started ahead. With `messages` stderr comes first.
    """
    waits, deadline = backoff(patience), time.monotonic() + patience
    while True:
        process, begun = begun or begin(argv, env), None
        done = _finish(process, within)
        if done is None:
            message = f"{argv[0]}: no answer within {within:g} seconds: connection timed out"
            raise SlurmError(message, advice_for(message))
        if done.returncode == 0:
            return done.stderr + done.stdout if messages else done.stdout
        said = done.stderr or done.stdout if done.returncode > 0 else ""  # killed: no refusal
        message = _clean(said) or f"{argv[0]} failed ({done.returncode})"
        wait = next(waits, None) if is_transient(message) else None
        if wait is None or time.monotonic() > deadline:
            raise SlurmError(message, advice_for(message, argv[0]))
        # After the wait: a busy controller may still be at the call that it has not answered.
        time.sleep(wait)
        answer = before_retry()
        if answer is not None:
            return answer


@overload
def call(
    argv: Sequence[str], *, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]: ...
@overload
def call(
    argv: Sequence[str], *, env: dict[str, str] | None = None, within: float
) -> subprocess.CompletedProcess[str] | None: ...
def call(
    argv: Sequence[str], *, env: dict[str, str] | None = None, within: float | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Run one Slurm command once and give back whatever happened; None if not `within` seconds."""
    return _finish(begin(argv, env), within)


def begin(argv: Sequence[str], env: dict[str, str] | None = None) -> Process:
    """Start one Slurm command, for `run` to wait for once its answer is needed.

    It takes no thread: a process that ends with a thread in the middle of something may crash.
    """
    calls[argv[0]] = calls.get(argv[0], 0) + 1
    try:
        return subprocess.Popen(
            argv,
            env=environment() if env is None else env,
            stdin=subprocess.DEVNULL,  # the caller's own may be its batch script, being read
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as error:
        advice = "Slurm's commands are not on this machine; `--cluster local` runs without Slurm."
        raise SlurmError(f"{argv[0]}: command not found", advice) from error


def _finish(process: Process, within: float | None) -> subprocess.CompletedProcess[str] | None:
    with process:
        try:
            stdout, stderr = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            # The command is killed, and may have been carried out all the same: `within` is for
            # queries, and for what may be missed or done twice.
            process.kill()
            return None
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _clean(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "\n".join(re.sub(r"^\w+: (error|fatal): ", "", line) for line in lines)
