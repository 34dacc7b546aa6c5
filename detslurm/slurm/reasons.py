"""Why Slurm lets a job wait: each of its reasons as a category, plain words, and what would help.

The names are those that squeue and scontrol print in Slurm 22.05 to 26.05. Limits of QOS and
accounts have names that are built from parts; all others are listed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

Category = Literal["quota", "resources", "held", "dependency", "other"]
Scope = Literal["job", "node", "user", "account", "group", "own"]


class Limit(NamedTuple):
    """The limit of a QOS or an account that a reason names.

    Attributes:
        of_qos: Whether it is a limit of a QOS; else of an account.
        scope: The scope of its count: one job, one node of it, all jobs of a user or an account,
            the whole QOS or account (`group`), or the user's own part of an account.
        counted: Its unit, as Slurm's tables name it: "gres/gpu", "cpu", "jobs" ...
        words: The same in words.
        minimum: Whether it demands more, rather than less.
        spent: Whether it is used up for good, rather than in use by jobs.
    """

    of_qos: bool
    scope: Scope
    counted: str
    words: str
    minimum: bool = False
    spent: bool = False

    @property
    def of_each_job(self) -> bool:
        """Whether each job has to meet it, so that no wait helps."""
        return self.minimum or self.scope in ("job", "node")


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason of Slurm's in plain words.

    Attributes:
        short: A few words, for a column of a table.
        remedy: The remedy, in a sentence; empty where it can only wait.
        permanent: Whether the job never starts unless something is changed.
        cause: The end of a sentence that begins with the job; by default "waits: " and `short`.
        limit: The limit of a QOS or an account that it names; None if it names none.
    """

    code: str
    category: Category
    short: str
    remedy: str = ""
    permanent: bool = False
    cause: str = ""
    limit: Limit | None = None

    @property
    def sentence(self) -> str:
        """The cause, as the end of a sentence that begins with the job."""
        return self.cause or f"waits: {self.short}"

    @property
    def for_nodes(self) -> bool:
        """Whether it waits for resources of nodes, of a partition that is in service."""
        return self.category == "resources" and not self.code.startswith(("Partition", "Licenses"))


_UNKNOWN = "waits for a reason that detslurm does not know"
_RELEASE = "Release it with `scontrol release {ref}`."
_LESS = "Kill it, and submit it again with less."
_MORE = "Kill it, and submit it again with more."
_ROOM = "It starts when jobs under the same limit end."
_SPENT = "It starts when the site grants more, or under another account or QOS (slurm.account)."
_PARTITION = "Choose another partition with resources.resource_pool."
_RULES = "`scontrol show partition` shows its rules. " + _PARTITION
_TIME = "Ask for less with slurm.time: training goes on in the next segment."
_ACCOUNT = "`sacctmgr show associations user=$USER` lists your accounts; set slurm.account."
_QOS = "`sacctmgr show qos` lists the QOS names; set slurm.qos."
_EXISTING = (
    "Kill it, and submit it with resources and features that exist: `sinfo -o '%P %c %m %G %f'`"
    " lists them."
)
_RETURN = "It starts when they return; a time limit that ends before a reservation begins may help."
_NO_RESERVATION = "Without --reservation in slurm.sbatch_args it may start earlier."
_WITHOUT_RESERVATION = (
    "Take the reservation away with `scontrol update JobId={ref} ReservationName=`, then"
    " `scontrol release {ref}`."
)
_THROTTLE = (
    "Let more run at once: searcher.max_concurrent_trials or resources.max_slots; `detslurm"
    " experiment set max-slots` changes it now."
)
_NODES_FAILED = _RELEASE + " If it comes back, the slurmd logs of its nodes have the cause."
_ENVIRONMENT = (
    _RELEASE + " Without --export or --get-user-env in slurm.sbatch_args, and SBATCH_EXPORT, your"
    " login environment is not read; login scripts may be too slow."
)
_ENV_FAILED = "user env retrieval failed requeued held"
_DROP = "Drop the condition with `scontrol update JobId={ref} Dependency=`, or kill the job."

# code, category, short, remedy, permanent
_LISTED = (
    Reason("Resources", "resources", "nodes are busy"),
    Reason("Priority", "resources", "other jobs come first"),
    Reason("Licenses", "resources", "licenses are in use", "It starts when they are returned."),
    Reason("Reservation", "resources", "reservation not ready", _NO_RESERVATION),
    Reason("ReqNodeNotAvail", "resources", "nodes down, drained or reserved", _RETURN),
    Reason("NodeDown", "resources", "node is down", _RETURN),
    Reason("FrontEndDown", "resources", "front end is down"),
    Reason("PartitionDown", "resources", "partition is down", _PARTITION),
    Reason("PartitionInactive", "resources", "partition is inactive", _PARTITION),
    Reason("BadConstraints", "resources", "no node can hold it", _EXISTING, True),
    Reason("Constraints", "resources", "no node can hold it", _EXISTING, True),
    Reason("BurstBufferResources", "resources", "burst buffer is full"),
    Reason("BurstBufferStageIn", "resources", "data being staged in"),
    Reason("PowerNotAvail", "resources", "power is short"),
    Reason("PowerReserved", "resources", "power is reserved"),
    Reason("MaxPoweredUpNodes", "resources", "no more nodes may boot"),
    Reason("MpiPortsBusy", "resources", "MPI ports are in use"),
    Reason("JobArrayTaskLimit", "quota", "own limit on trials", _THROTTLE),
    Reason("PartitionTimeLimit", "quota", "more time than partition grants", _TIME, True),
    Reason("PartitionNodeLimit", "quota", "nodes outside limits of partition", _RULES, True),
    Reason("PartitionConfig", "quota", "partition forbids it", _RULES, True),
    Reason("AccountNotAllowed", "quota", "account not allowed in partition", _ACCOUNT, True),
    Reason("QOSNotAllowed", "quota", "QOS not allowed in partition", _QOS, True),
    Reason("InvalidAccount", "quota", "invalid account", _ACCOUNT, True),
    Reason("InvalidQOS", "quota", "invalid QOS", _QOS, True),
    Reason("QOSUsageThreshold", "quota", "fair share used up", _SPENT),
    Reason("QOSJobLimit", "quota", "QOS: limit of jobs", _ROOM),
    Reason("QOSResourceLimit", "quota", "QOS: limit of resources", _ROOM),
    Reason("QOSTimeLimit", "quota", "more time than QOS grants", _TIME, True),
    Reason("AssociationJobLimit", "quota", "account: limit of jobs", _ROOM),
    Reason("AssociationResourceLimit", "quota", "account: limit of resources", _ROOM),
    Reason("AssociationTimeLimit", "quota", "account: limit of time", _SPENT),
    Reason("AccountingPolicy", "quota", "accounting limit"),
    Reason("MaxMemPerLimit", "quota", "more memory than site grants", _LESS, True),
    Reason("JobHeldUser", "held", "held by its user", _RELEASE, True),
    Reason("JobHeldAdmin", "held", "held by an administrator", "The site must release it.", True),
    Reason("job requeued in held state", "held", "requeued and held", _RELEASE, True),
    Reason("launch failed requeued held", "held", "nodes could not start it", _NODES_FAILED, True),
    Reason(_ENV_FAILED, "held", "login environment failed", _ENVIRONMENT, True),
    Reason("JobHoldMaxRequeue", "held", "requeued too often", _RELEASE, True),
    Reason("ReservationDeleted", "held", "reservation is gone", _WITHOUT_RESERVATION, True),
    Reason("ReservationInvalid", "held", "reservation is invalid", _WITHOUT_RESERVATION, True),
    Reason("Dependency", "dependency", "another job comes first"),
    Reason("DependencyNeverSatisfied", "dependency", "never: failed dependency", _DROP, True),
    Reason("BeginTime", "other", "not before its time"),
    Reason("None", "other", "not considered yet"),
    Reason("Prolog", "other", "prolog is running"),
    Reason("Cleaning", "other", "last run is cleaned up"),
    Reason("SchedDefer", "other", "to be considered later"),
    Reason("FedJobLock", "other", "another cluster decides"),
    Reason("JobLaunchFailure", "other", "could not be started"),
    Reason("BurstBufferOperation", "other", "burst buffer failed"),
    Reason("SystemFailure", "other", "system failure"),
    Reason("DeadLine", "other", "deadline missed", "", True),
)
_BY_CODE = {reason.code.lower(): reason for reason in _LISTED}

# Descriptions that Slurm prints in place of a code, and the reason that each belongs to.
_DESCRIPTIONS = (
    (r"reqnodenotavail\b", "ReqNodeNotAvail"),
    (r"nodes required for job are down, drained or reserved", "ReqNodeNotAvail"),
    (r"job's account not permitted", "AccountNotAllowed"),
    (r"job's qos not permitted", "QOSNotAllowed"),
    (r"burst buffer/", "BurstBufferOperation"),
    (r"reservation .+ was deleted", "ReservationDeleted"),
    (r"job held by administrator", "JobHeldAdmin"),
)

# The units of limits: in Slurm's names of reasons, in its tables, and in words.
_THINGS = {
    "cpu": ("cpu", "CPUs"),
    "memory": ("mem", "memory"),
    "mem": ("mem", "memory"),
    "node": ("node", "nodes"),
    "energy": ("energy", "energy"),
    "gres": ("gres/gpu", "GPUs"),
    "license": ("license", "licenses"),
    "billing": ("billing", "billing units"),
    "bb": ("bb", "burst buffer"),
    "unknown": ("", "some resource"),
    "submitjob": ("submitted", "submitted jobs"),
    "job": ("jobs", "jobs"),
    "wallduration": ("wall", "wall time"),
    "wall": ("wall", "wall time"),
}
_LIMIT = re.compile(
    rf"(?P<whose>qos|assoc|)(?P<kind>grp|max|min)(?P<thing>{'|'.join(_THINGS)})s?"
    r"(?P<run>run)?(?P<minutes>minutes|mins)?(?:per(?P<per>job|node|user|account))?"
    r"(?:notsatisfied|limit)?",
    re.IGNORECASE,
)
_SPANS = {
    "user": "for all jobs of a user",
    "account": "for all jobs of an account",
    "group": "for all its jobs",
    "own": "for a user",
}


@lru_cache(maxsize=256)  # a long queue has few reasons
def reason_of(text: str) -> Reason:
    """The reason of a job in plain words; where Slurm prints several, the first that is known.

    An unknown reason is of category "other", with Slurm's own words.
    """
    clean = " ".join(text.replace("_", " ").split())
    for pattern, code in _DESCRIPTIONS:
        if re.match(pattern, clean, re.I):
            return _BY_CODE[code.lower()]
    for word in (clean, *map(str.strip, clean.split(","))):
        if reason := _BY_CODE.get(word.lower()) or _limit_reason(word):
            return reason
    return Reason(clean, "other", clean, cause=_UNKNOWN) if clean else _BY_CODE["none"]


def _limit_reason(code: str) -> Reason | None:
    """The reason that names a limit by the parts of its name; None if it is another reason."""
    match = _LIMIT.fullmatch(code)
    if match is None:
        return None
    kind, thing, per = ((match[name] or "").lower() for name in ("kind", "thing", "per"))
    counted, words = _THINGS[thing]
    if match["minutes"]:
        counted, words = f"{counted} minutes", f"minutes of {words}"
    # Nothing that ends makes room for a job that is longer than its limit.
    fallback = "group" if kind == "grp" else "job" if thing == "wallduration" else "own"
    scope: Any = per or fallback
    spent = not match["run"] and per != "job" and bool(match["minutes"] or thing == "wall")
    of_qos = match["whose"].lower() != "assoc"
    return _limited(code, Limit(of_qos, scope, counted, words, kind == "min", spent))


def _limited(code: str, limit: Limit) -> Reason:
    whose, thing = "QOS" if limit.of_qos else "account", limit.words
    if limit.minimum:
        cause = f"asks for less than its {whose} requires ({thing})"
    elif limit.of_each_job:
        cause = f"asks for more than its {whose} grants a {limit.scope} ({thing})"
    elif limit.spent:
        cause = f"exceeds what its {whose} still has ({thing})"
    else:
        cause = f"waits for a limit of its {whose} {_SPANS[limit.scope]} ({thing})"
    remedy = _SPENT if limit.spent else _ROOM
    if limit.of_each_job:
        remedy = _MORE if limit.minimum else _LESS
    short = f"{whose}: {thing}"
    return Reason(code, "quota", short, remedy, limit.of_each_job, cause, limit)
