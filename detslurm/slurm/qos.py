"""What QOS and associations allow their users, and how much of it is in use.

The controller's own table (`scontrol show assoc_mgr`) has limits and use, with one call. It has no
flags, and what a QOS allows each user it shows only of users who had a job since it started: the
accounting database (`sacctmgr`) has those, and never what is in use.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.queue import parse_amount, parse_duration

_PATIENCE = 5.0  # what can't be asked is not known, and no submission waits for it
_QOS = (
    "Name,Flags,MaxWall,MaxTRES,MaxJobsPU,MaxSubmitPU,MaxTRESPU,MaxJobsPA,MaxSubmitPA,MaxTRESPA,"
    "GrpJobs,GrpSubmit,GrpTRES"
)
_ASSOCIATION = (
    "Account,Partition,DefaultQOS,QOS,MaxWall,User,MaxTRES,MaxJobs,MaxSubmit,GrpJobs,GrpSubmit,"
    "GrpTRES"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit and what of it is in use; each None where there is none or it is not known."""

    most: int | None = None
    used: int | None = None

    @property
    def room(self) -> int | None:
        """How much more is allowed, at least as far as is known; None for any amount."""
        return None if self.most is None else max(self.most - (self.used or 0), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuota:
    """What a user, an account or a group may have at once; each array element is a job."""

    jobs: Bound = Bound()  # running
    submitted: Bound = Bound()  # pending and running
    tres: Mapping[str, Bound] = field(default_factory=dict)  # "cpu", "gres/gpu", "mem" (MB) ...


@dataclass(frozen=True, slots=True)
class Qos:
    """The limits of a QOS: the longest job in minutes, and whether they override others."""

    longest: float | None = None
    flags: frozenset[str] = frozenset()  # none where the controller was asked
    per_job: Mapping[str, Bound] = field(default_factory=dict, kw_only=True)
    per_user: JobQuota = field(default=JobQuota(), kw_only=True)
    per_account: JobQuota = field(default=JobQuota(), kw_only=True)
    group: JobQuota = field(default=JobQuota(), kw_only=True)
    accounts: Mapping[str, JobQuota] = field(default_factory=dict, kw_only=True)
    shows_user: bool = field(default=True, kw_only=True)  # else `per_user` is not known

    def of_account(self, account: str) -> JobQuota:
        """What an account may have, with what it has where that is known."""
        return self.accounts.get(account, self.per_account)


@dataclass(frozen=True, slots=True)
class Association:
    """A user's place in an account, for one partition or all, and its limits.

    Without a user it is the account's own record: its `group` limits count for all below it.
    """

    account: str
    partition: str = ""
    default_qos: str = ""  # empty where the controller was asked
    longest: float | None = None
    user: str = field(default="", kw_only=True)
    parent: str = field(default="", kw_only=True)
    per_job: Mapping[str, Bound] = field(default_factory=dict, kw_only=True)
    own: JobQuota = field(default=JobQuota(), kw_only=True)
    group: JobQuota = field(default=JobQuota(), kw_only=True)
    is_default: bool = field(default=False, kw_only=True)  # shown by the controller alone


@dataclass(frozen=True, slots=True)
class QuotaTable:
    """What the controller shows: QOS by name, and a user's associations with those above them."""

    qos: Mapping[str, Qos]
    associations: tuple[Association, ...] = ()

    def above(self, one: Association) -> tuple[Association, ...]:
        """The records whose group limits count for an association: its accounts, up to the root."""
        accounts = {each.account: each for each in self.associations if not each.user}
        found: list[Association] = []
        account = one.account
        while (record := accounts.pop(account, None)) is not None:
            found.append(record)
            account = record.parent
        return tuple(found)


class UserQuotas:
    """One user's QOS and associations; each source is asked when it counts, and only once.

    All of it raises `SlurmError` where the source does not answer.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    @cached_property
    def user(self) -> str | None:
        """The name of the user who runs this process; None for one without an account."""
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return None

    @cached_property
    def controller(self) -> QuotaTable:
        """Limits and use, with one call to the controller."""
        return ask_controller(self.user or str(os.getuid()))

    @cached_property
    def table(self) -> QuotaTable:
        """The controller's, or without what is in use the database's where it does not answer."""
        try:
            return self.controller
        except SlurmError:
            return QuotaTable(self.database, self.associations)

    @cached_property
    def database(self) -> Mapping[str, Qos]:
        """All QOS with their flags, with one call to the accounting database."""
        return parse_qos(_sacctmgr("show", "qos", f"format={_QOS}"))

    @cached_property
    def associations(self) -> tuple[Association, ...]:
        """The user's own with their default QOS, with one call to the accounting database."""
        if self.user is None:
            return ()
        who = [f"user={self.user}", f"cluster={self._cluster}"]
        return parse_associations(
            _sacctmgr("show", "assoc", "where", *who, f"format={_ASSOCIATION}")
        )


def ask_controller(user: str) -> QuotaTable:
    """What the controller shows of a user, with one call. Raises `SlurmError`."""
    argv = ["scontrol", "--oneliner", "show", "assoc_mgr", f"users={user}", "flags=assoc,qos"]
    return parse_assoc_mgr(_answer(argv), user)


def parse_assoc_mgr(text: str, user: str) -> QuotaTable:
    """The records that `scontrol --oneliner show assoc_mgr` prints."""
    lines = text.splitlines()
    known = dict(_controller_qos(line, user) for line in lines if line.startswith("QOS="))
    found = (_controller_association(line) for line in lines if line.startswith("ClusterName="))
    return QuotaTable(known, tuple(found))


def _controller_qos(line: str, user: str) -> tuple[str, Qos]:
    line, _, users = line.partition(" User Limits=")
    line, _, accounts = line.partition(" Account Limits=")
    record = _words(line)
    mine = _own_part(_parts(users), user)
    return record["QOS"].partition("(")[0], Qos(
        parse_amount(record.get("MaxWallPJ", "")),
        per_job=_tres(record.get("MaxTRESPJ", "")),
        per_user=_quota(mine, "MaxJobsPU", "MaxSubmitJobsPU", "MaxTRESPU"),
        group=_quota(record, "GrpJobs", "GrpSubmitJobs", "GrpTRES"),
        accounts={
            name: _quota(part, "MaxJobsPA", "MaxSubmitJobsPA", "MaxTRESPA")
            for name, part in _parts(accounts).items()
        },
        shows_user=bool(mine),
    )


def _parts(text: str) -> dict[str, dict[str, str]]:
    """`1001={MaxJobsPU=N(7) ...} 1002={...}` by holder."""
    return {name: _words(part) for name, part in re.findall(r"(\S+)=\{(.*?)\}", text)}


def _own_part(parts: Mapping[str, dict[str, str]], user: str) -> dict[str, str]:
    own = {user, _user_id(user)}
    return next((part for name, part in parts.items() if not own.isdisjoint(_ids(name))), {})


def _ids(name: str) -> tuple[str, str]:
    """Both of `alice(1001)`, twice the same of `1001`."""
    first, _, second = name.rstrip(")").partition("(")
    return first, second or first


def _user_id(user: str) -> str | None:
    try:
        return str(pwd.getpwnam(user).pw_uid)
    except KeyError:
        return None


def _controller_association(line: str) -> Association:
    record = _words(line)
    return Association(
        record.get("Account", ""),
        record.get("Partition", ""),
        longest=parse_amount(record.get("MaxWallPJ", "")),
        user=record.get("UserName", "").partition("(")[0],
        parent=record.get("ParentAccount", "").partition("(")[0],
        per_job=_tres(record.get("MaxTRESPJ", "")),
        own=_quota(record, "MaxJobs", "MaxSubmitJobs"),
        group=_quota(record, "GrpJobs", "GrpSubmitJobs", "GrpTRES"),
        is_default=record.get("DefAssoc") == "Yes",
    )


def parse_qos(rows: Iterable[Mapping[str, str]]) -> dict[str, Qos]:
    """The QOS of `sacctmgr show qos`, by name."""
    return {row["Name"]: _database_qos(row) for row in rows}


def _database_qos(row: Mapping[str, str]) -> Qos:
    return Qos(
        _minutes(row["MaxWall"]),
        frozenset(filter(None, row["Flags"].split(","))),
        per_job=_tres(row["MaxTRES"]),
        per_user=_quota(row, "MaxJobsPU", "MaxSubmitPU", "MaxTRESPU"),
        per_account=_quota(row, "MaxJobsPA", "MaxSubmitPA", "MaxTRESPA"),
        group=_quota(row, "GrpJobs", "GrpSubmit", "GrpTRES"),
    )


def parse_associations(rows: Iterable[Mapping[str, str]]) -> tuple[Association, ...]:
    """A user's associations in `sacctmgr show assoc`."""
    return tuple(
        Association(
            row["Account"],
            row["Partition"],
            row["DefaultQOS"] or _fallback(row["QOS"]),
            _minutes(row["MaxWall"]),
            user=row["User"],
            per_job=_tres(row["MaxTRES"]),
            own=_quota(row, "MaxJobs", "MaxSubmit"),
            group=_quota(row, "GrpJobs", "GrpSubmit", "GrpTRES"),
        )
        for row in rows
    )


def _fallback(qos: str) -> str:
    """Slurm's own default among the QOS of an association that names none."""
    return "normal" if "normal" in qos.split(",") else ""


def _words(line: str) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in line.split())}


def _quota(record: Mapping[str, str], jobs: str, submitted: str, tres: str = "") -> JobQuota:
    return JobQuota(
        jobs=_bound(record.get(jobs, "")),
        submitted=_bound(record.get(submitted, "")),
        tres=_tres(record.get(tres, "")),
    )


def _tres(text: str) -> Mapping[str, Bound]:
    """`cpu=32(8),gres/gpu=N(1)`, limits with use, or `cpu=32`: limits alone."""
    pairs = (entry.rpartition("=") for entry in text.split(","))
    return {name: _bound(value) for name, _, value in pairs if name}


def _bound(text: str) -> Bound:
    """`20(10)`, `N(10)` where there is no limit, `20` or nothing."""
    most, _, used = text.partition("(")
    return Bound(parse_amount(most), parse_amount(used.rstrip(")")))


def _minutes(text: str) -> float | None:
    seconds = parse_duration(text)
    return None if seconds is None else seconds / 60


def _sacctmgr(*words: str) -> list[dict[str, str]]:
    """The rows as dictionaries; the last word says which columns there are."""
    names = words[-1].partition("=")[2].split(",")
    text = _answer(["sacctmgr", "--noheader", "--parsable2", *words])
    return list(_rows(text, names))


def _rows(text: str, names: list[str]) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != len(names):
            raise SlurmError(f"sacctmgr: {line!r} can't be understood")
        yield dict(zip(names, values, strict=True))


def _answer(argv: list[str]) -> str:
    return command.run(argv, patience=_PATIENCE, within=_PATIENCE)
