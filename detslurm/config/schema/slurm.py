"""How a trial becomes a Slurm job, beyond its resources."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from detslurm.config.fields import Positive, Section, Text, accepts, must, one_line, word
from detslurm.config.sbatch_args import refuse
from detslurm.config.schema.storage import absolute

SlotType = Literal["cuda", "rocm", "cpu"]
ContainerRuntime = Literal[
    "none", "apptainer", "enroot", "pyxis", "podman", "podman-hpc", "charliecloud"
]
OnPreempt = Literal["auto", "requeue", "successor"]
UNLIMITED = "UNLIMITED"

_N = r"([0-9]{1,9})"
_CLOCK = (  # the forms that sbatch takes, and which of days, hours, minutes, seconds they give
    (re.compile(_N), "m"),
    (re.compile(f"{_N}:{_N}"), "ms"),
    (re.compile(f"{_N}:{_N}:{_N}"), "hms"),
    (re.compile(f"{_N}-{_N}"), "dh"),
    (re.compile(f"{_N}-{_N}:{_N}"), "dhm"),
    (re.compile(f"{_N}-{_N}:{_N}:{_N}"), "dhms"),
)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def limit_seconds(value: int | str) -> int | None:
    """Seconds of a time limit as sbatch takes it; None if it is none (or unlimited)."""
    for pattern, units in _CLOCK:
        if match := pattern.fullmatch(str(value).strip()):
            return sum(int(n) * _SECONDS[u] for n, u in zip(match.groups(), units, strict=True))
    return None


def canonical_limit(value: int | str) -> str | None:
    """`D-HH:MM:SS` or UNLIMITED; None if `value` is not a time limit."""
    if str(value).strip().upper() in (UNLIMITED, "INFINITE"):
        return UNLIMITED
    seconds = limit_seconds(value)
    if not seconds:
        return None
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}-{hour:02}:{minute:02}:{second:02}"


def _limit(value: Any) -> str | None:
    return None if canonical_limit(value) else ""


def _environment(value: Any) -> str | None:
    if isinstance(value, bool) or value.startswith(("/", "~")):
        return one_line(value) if isinstance(value, str) else None
    return "must be true, or the absolute path of a virtual or conda environment"


Word = Annotated[Text, must(word)]
TimeLimit = Annotated[
    str | None,
    accepts(int | str, 'minutes, or a time such as "30:00", "4:00:00", "1-12:00:00"'),
    must(_limit),
]


class Budget(Section, frozen=True, kw_only=True):
    """The budget of an experiment, which is paused when it is used up."""

    slot_hours: Annotated[float, Meta(gt=0)]


class IdleGuard(Section, frozen=True, kw_only=True):
    """The action on a run that has used and reported nothing for `minutes`."""

    minutes: Annotated[float, Meta(ge=0.5)] = 30.0
    action: Literal["warn", "restart", "pause"] = "warn"


class Slurm(Section, frozen=True, kw_only=True):
    """Options of the jobs; `sbatch_args` is for options without a field of their own."""

    slots_per_node: Positive | None = None
    gpu_type: Word | None = None
    sbatch_args: tuple[Annotated[Text, must(refuse)], ...] = ()
    account: Word | None = None
    qos: Word | None = None
    time: TimeLimit = None
    constraint: Annotated[Text, must(one_line)] | None = None
    setup: tuple[str, ...] = ()
    modules: tuple[Word, ...] = ()
    container: ContainerRuntime = "none"
    container_args: tuple[Text, ...] = ()
    container_prefix: tuple[Text, ...] = ()
    image_root: Annotated[Text, must(absolute, "an absolute path")] | None = None
    private_tmp: bool = False
    mpi: Word | None = None
    on_preempt: OnPreempt = "auto"
    signal_lead: Annotated[int, Meta(ge=0, le=65535)] = 120
    slot_type: SlotType | None = None
    network_interface: Word | None = None
    trials_per_job: Positive = 1
    warm_start: bool = False
    budget: Budget | None = None
    idle_guard: IdleGuard = IdleGuard()
    stage_environment: Annotated[bool | str, must(_environment)] = False

    @property
    def time_seconds(self) -> int | None:
        """The time limit; None without a limit."""
        return None if self.time is None else limit_seconds(self.time)
