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


@dataclass(frozen=True, slots=True)
class Reason:
    """One of Slurm's reasons in plain words.

    Attributes:
        code: Slurm's own name of it.
        category: What kind of reason it is.
        short: A few words, for a column of a table.
        sentence: The cause, as the end of a sentence that begins with the job.
        remedy: What would help, in a sentence; empty where it can only wait.
        permanent: Whether the job never starts unless somebody changes something.
    """

    code: str
    category: Category
    short: str
    sentence: str
    remedy: str = ""
    permanent: bool = False


_UNKNOWN = "waits for a reason that detslurm does not know"
_RELEASE = "Release it with `scontrol release {ref}`."
_LESS = "Kill it, and submit it again with less."
_MORE = "Kill it, and submit it again with more."
_ROOM = "It starts when jobs under the same limit end."
_SPENT = "It starts when the site grants more, or under another account or QOS (slurm.account)."
_PARTITION = "Choose another partition with resources.resource_pool."
_EXISTING = (
    "Kill it, and submit it with resources and features that exist: `sinfo -o '%P %c %m %G %f'`"
    " lists them."
)
_WITHOUT_RESERVATION = (
    "Take the reservation away with `scontrol update JobId={ref} ReservationName=`, then"
    " `scontrol release {ref}`."
)

# code, category, short, sentence, remedy, permanent
_LISTED = (
    # -- resources ------------------------------------------------------------------------------
    Reason("Resources", "resources", "nodes are busy", "needs what is not free now"),
    Reason("Priority", "resources", "other jobs come first", "has other jobs ahead of it"),
    Reason(
        "Licenses",
        "resources",
        "licenses are in use",
        "waits for licenses that others use",
        "It starts when they are returned.",
    ),
    Reason(
        "Reservation",
        "resources",
        "reservation not ready",
        "waits for its reservation to begin, or for room in it",
        "Submit it without the reservation (--reservation in slurm.sbatch_args) to start earlier.",
    ),
    Reason(
        "ReqNodeNotAvail",
        "resources",
        "nodes not available",
        "needs nodes that are down, drained or reserved",
        "It starts when they return; allow it other nodes, or a time limit that ends before a"
        " reservation begins.",
    ),
    Reason(
        "NodeDown",
        "resources",
        "node is down",
        "needs a node that is down",
        "Allow it other nodes, or wait until the site repairs it.",
    ),
    Reason(
        "FrontEndDown",
        "resources",
        "front end is down",
        "needs a front-end node, and none is up",
        "The site must repair it.",
    ),
    Reason(
        "PartitionDown",
        "resources",
        "partition is down",
        "is in a partition that starts no jobs at present",
        _PARTITION,
    ),
    Reason(
        "PartitionInactive",
        "resources",
        "partition is inactive",
        "is in a partition that is switched off",
        _PARTITION,
    ),
    Reason(
        "BadConstraints",
        "resources",
        "no node can hold it",
        "asks for what no node has",
        _EXISTING,
        True,
    ),
    Reason(
        "Constraints",
        "resources",
        "no node can hold it",
        "asks for what no node has",
        _EXISTING,
        True,
    ),
    Reason(
        "BurstBufferResources",
        "resources",
        "burst buffer is full",
        "waits for room in the burst buffer",
    ),
    Reason(
        "BurstBufferStageIn",
        "resources",
        "data being staged in",
        "waits until its data is in the burst buffer",
    ),
    Reason(
        "PowerNotAvail", "resources", "power is short", "waits for electrical power to be available"
    ),
    Reason(
        "PowerReserved", "resources", "power is reserved", "waits for reserved electrical power"
    ),
    Reason(
        "MaxPoweredUpNodes",
        "resources",
        "no more nodes may boot",
        "waits because the site powers up no more nodes at present",
    ),
    Reason("MpiPortsBusy", "resources", "MPI ports are in use", "waits for free ports for MPI"),
    # -- quota ----------------------------------------------------------------------------------
    Reason(
        "JobArrayTaskLimit",
        "quota",
        "own limit on trials",
        "waits for its own experiment: as many of its trials run as it allows at once",
        "Let more run at once: searcher.max_concurrent_trials or resources.max_slots; `detslurm"
        " experiment set max-slots` changes it now.",
    ),
    Reason(
        "PartitionTimeLimit",
        "quota",
        "time limit too long",
        "asks for more time than its partition grants",
        "Ask for less with slurm.time: training goes on in the next segment.",
        True,
    ),
    Reason(
        "PartitionNodeLimit",
        "quota",
        "too many nodes",
        "asks for more (or fewer) nodes than its partition grants",
        "Ask for another number of nodes, or choose another partition.",
        True,
    ),
    Reason(
        "PartitionConfig",
        "quota",
        "partition forbids it",
        "asks for what its partition does not permit",
        "`scontrol show partition` shows its rules. " + _PARTITION,
        True,
    ),
    Reason(
        "AccountNotAllowed",
        "quota",
        "account not allowed",
        "has an account that may not use its partition",
        "Choose another account with slurm.account, or another partition.",
        True,
    ),
    Reason(
        "QOSNotAllowed",
        "quota",
        "QOS not allowed",
        "has a QOS that its account or its partition does not permit",
        "Choose another QOS with slurm.qos.",
        True,
    ),
    Reason(
        "InvalidAccount",
        "quota",
        "invalid account",
        "has an account that is not valid",
        "`sacctmgr show associations user=$USER` lists yours; set slurm.account.",
        True,
    ),
    Reason(
        "InvalidQOS",
        "quota",
        "invalid QOS",
        "has a QOS that is not valid for it",
        "`sacctmgr show qos` lists the QOS names; set slurm.qos.",
        True,
    ),
    Reason(
        "QOSUsageThreshold",
        "quota",
        "fair share used up",
        "belongs to an account that has used more than the threshold of its QOS",
        "It starts when the recorded usage has decayed, or under another QOS (slurm.qos).",
    ),
    Reason("QOSJobLimit", "quota", "QOS: jobs", "waits for a limit of its QOS on jobs"),
    Reason("QOSResourceLimit", "quota", "QOS: resources", "waits for a resource limit of its QOS"),
    Reason(
        "QOSTimeLimit",
        "quota",
        "QOS: time limit",
        "asks for more time than its QOS grants",
        "Ask for less with slurm.time.",
        True,
    ),
    Reason(
        "AssociationJobLimit", "quota", "account: jobs", "waits for its account's limit of jobs"
    ),
    Reason(
        "AssociationResourceLimit",
        "quota",
        "account: resources",
        "waits for a resource limit of its account",
    ),
    Reason(
        "AssociationTimeLimit",
        "quota",
        "account: time",
        "waits for a time limit of its account",
        "Ask for less with slurm.time, or use another account (slurm.account).",
    ),
    Reason("AccountingPolicy", "quota", "accounting limit", "waits for a limit of the accounting"),
    Reason(
        "MaxMemPerLimit",
        "quota",
        "too much memory",
        "asks for more memory a node or CPU than the site grants",
        "Ask for less memory.",
        True,
    ),
    # -- held -----------------------------------------------------------------------------------
    Reason("JobHeldUser", "held", "held by its user", "was held by its user", _RELEASE, True),
    Reason(
        "JobHeldAdmin",
        "held",
        "held by Slurm or the site",
        "was held by Slurm or by an administrator",
        f"{_RELEASE} If that is refused, an administrator holds it: ask them.",
        True,
    ),
    Reason(
        "job requeued in held state",
        "held",
        "requeued and held",
        "was put back into the queue and held",
        _RELEASE,
        True,
    ),
    Reason(
        "launch failed requeued held",
        "held",
        "could not be started",
        "could not be started by its nodes, again and again, until Slurm held it",
        "Release it with `scontrol release {ref}`; if it comes back, the slurmd logs of its nodes"
        " have the cause.",
        True,
    ),
    Reason(
        "user env retrieval failed requeued held",
        "held",
        "login environment failed",
        "is held, for its node could not read your login environment in time",
        "Release it with `scontrol release {ref}`. Without --export or --get-user-env in"
        " slurm.sbatch_args, and SBATCH_EXPORT, it is not read; login scripts may be too slow.",
        True,
    ),
    Reason(
        "JobHoldMaxRequeue",
        "held",
        "requeued too often",
        "was requeued as often as the site allows, and is held",
        _RELEASE,
        True,
    ),
    Reason(
        "ReservationDeleted",
        "held",
        "reservation is gone",
        "is held, for its reservation was deleted",
        _WITHOUT_RESERVATION,
        True,
    ),
    Reason(
        "ReservationInvalid",
        "held",
        "reservation is invalid",
        "is held, for its reservation is not valid any more",
        _WITHOUT_RESERVATION,
        True,
    ),
    # -- dependency -----------------------------------------------------------------------------
    Reason("Dependency", "dependency", "waits for another job", "waits for another job"),
    Reason(
        "DependencyNeverSatisfied",
        "dependency",
        "never: failed dependency",
        "waits for a job that ended otherwise than required: it never starts",
        "Drop the condition with `scontrol update JobId={ref} Dependency=`, or kill the job.",
        True,
    ),
    # -- other ----------------------------------------------------------------------------------
    Reason("BeginTime", "other", "not before its time", "may not begin yet"),
    Reason("None", "other", "not looked at yet", "has not been looked at by the scheduler yet"),
    Reason("Prolog", "other", "prolog is running", "waits for the prolog of its nodes"),
    Reason("Cleaning", "other", "last run is cleaned up", "waits until its last run is cleaned up"),
    Reason("SchedDefer", "other", "not looked at yet", "was submitted to be looked at later"),
    Reason(
        "FedJobLock", "other", "another cluster decides", "is being looked at by another cluster"
    ),
    Reason(
        "JobLaunchFailure",
        "other",
        "could not be started",
        "could not be started by its nodes",
        "The slurmd logs of its nodes have the cause.",
    ),
    Reason(
        "BurstBufferOperation",
        "other",
        "burst buffer failed",
        "had a failure of its burst buffer",
        "The site's administrators see the cause.",
    ),
    Reason("SystemFailure", "other", "system failure", "met a failure of Slurm or its nodes"),
    Reason("DeadLine", "other", "deadline missed", "can't end before its deadline", "", True),
)
_BY_CODE = {reason.code.lower(): reason for reason in _LISTED}

# Descriptions that Slurm prints in place of a code, and the reason that each belongs to.
_DESCRIPTIONS = (
    (r"reqnodenotavail\b", "ReqNodeNotAvail"),
    (r"nodes required for job are down, drained or reserved", "ReqNodeNotAvail"),
    (r"job's account not permitted", "AccountNotAllowed"),
    (r"job's qos not permitted", "QOSNotAllowed"),
    (r"burst_buffer/", "BurstBufferOperation"),
    (r"reservation \S+ was deleted", "ReservationDeleted"),
    (r"job held by administrator", "JobHeldAdmin"),
)

# What a limit counts: in Slurm's names of reasons, in its tables, and in words.
_THINGS = {
    "cpu": ("cpu", "CPUs"),
    "mem": ("mem", "memory"),
    "memory": ("mem", "memory"),
    "node": ("node", "nodes"),
    "energy": ("energy", "energy"),
    "gres": ("gres/gpu", "GPUs"),
    "license": ("license", "licenses"),
    "bb": ("bb", "burst buffer"),
    "billing": ("billing", "billing units"),
    "unknown": ("", "some resource"),
    "job": ("jobs", "jobs"),
    "submitjob": ("submitted", "submitted jobs"),
    "wall": ("wall", "wall time"),
    "wallduration": ("wall", "wall time"),
}
_LIMIT = re.compile(
    r"(?P<whose>qos|assoc|)(?P<kind>grp|max|min)"
    r"(?P<thing>cpu|memory|mem|node|energy|gres|license|bb|billing|unknown|submitjob|job"
    r"|wallduration|wall)s?"
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

Scope = Literal["job", "node", "user", "account", "group", "own"]


class Limit(NamedTuple):
    """Which limit of a QOS or an account a reason names.

    Attributes:
        of_qos: Whether it is a limit of a QOS; else of an account.
        scope: What it is counted for: one job, one node of it, all jobs of a user or of an account,
            the whole QOS or account (`group`), or the user's own part of an account.
        counted: What it counts, as Slurm's tables name it: "gres/gpu", "cpu", "jobs" ...
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


@lru_cache(maxsize=256)  # a long queue has few reasons
def reason_of(text: str) -> Reason:
    """Slurm's reason in plain words; the first that is known, where Slurm prints several.

    What is not known is of category "other", with Slurm's own words.

    Args:
        text: What squeue or scontrol prints as the reason.
    """
    clean = " ".join(text.replace("_", " ").split())
    for pattern, code in _DESCRIPTIONS:
        if re.match(pattern, " ".join(text.split()), re.I) or re.match(pattern, clean, re.I):
            return _BY_CODE[code.lower()]
    words = [clean, *(word.strip() for word in clean.split(","))]
    found = next((one for one in map(_known, words) if one is not None), None)
    return found or (Reason(clean, "other", clean, _UNKNOWN) if clean else _BY_CODE["none"])


def _known(word: str) -> Reason | None:
    if reason := _BY_CODE.get(word.lower()):
        return reason
    limit = limit_of(word)
    return _limited(word, limit) if limit else None


def limit_of(code: str) -> Limit | None:
    """The limit that a reason names by the parts of its name; None if it is another reason."""
    match = _LIMIT.fullmatch(code)
    if match is None:
        return None
    whose, kind, thing = (match[name].lower() for name in ("whose", "kind", "thing"))
    counted, words = _THINGS[thing]
    if match["minutes"]:
        counted, words = f"{counted} minutes", f"minutes of {words}"
    per = (match["per"] or "").lower()
    # Nothing that ends makes room for a job that is longer than its limit.
    fallback = "group" if kind == "grp" else "job" if thing == "wallduration" else "own"
    spent = not match["run"] and per != "job" and bool(match["minutes"] or thing == "wall")
    scope: Any = per or fallback
    return Limit(whose != "assoc", scope, counted, words, kind == "min", spent)


def _limited(code: str, limit: Limit) -> Reason:
    whose = "its QOS" if limit.of_qos else "its account"
    short, thing = f"{whose.removeprefix('its ')}: {limit.words}", limit.words
    if limit.minimum:
        sentence = f"asks for less than {whose} requires ({thing})"
        return Reason(code, "quota", short, sentence, _MORE, True)
    if limit.scope in ("job", "node"):
        sentence = f"asks for more than {whose} grants a {limit.scope} ({thing})"
        return Reason(code, "quota", short, sentence, _LESS, True)
    if limit.spent:
        return Reason(code, "quota", short, f"exceeds what {whose} still has ({thing})", _SPENT)
    sentence = f"waits for a limit of {whose} {_SPANS[limit.scope]} ({thing})"
    return Reason(code, "quota", short, sentence, _ROOM)
