"""Limits of QOS and accounts, and their use, as the controller shows them.

One call shows them all (`scontrol show assoc_mgr`), but for what a QOS allows each user or account
that has had no job since the controller started: that is unknown.
"""

from __future__ import annotations

import pwd
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from detslurm.slurm import command
from detslurm.slurm.interface import Charge
from detslurm.slurm.pending_details import QuotaLimit, Scope
from detslurm.slurm.queue import parse_amount

_PATIENCE = 5.0  # seconds: no submission waits longer for limits
_FIELD = re.compile(r"(Grp|Max)(SubmitJobs|Jobs|TRES|Wall)(PJ|PU|PA)?")
_PER: dict[str | None, tuple[Scope, str]] = {
    "PJ": ("job", "PerJob"),
    "PU": ("user", "PerUser"),
    "PA": ("account", "PerAccount"),
    None: ("own", ""),
    "Grp": ("group", ""),
}
_COUNTED = {"SubmitJobs": "submitted", "Jobs": "jobs", "Wall": "wall"}


def ask_controller(user: str) -> str:
    """All QOS, a user's associations and all accounts, as Slurm prints them."""
    return ask("scontrol", "--oneliner", "show", "assoc_mgr", f"users={user}", "flags=assoc,qos")


def ask(*argv: str) -> str:
    """The answer of one of Slurm's commands, if it comes within seconds. Raises `SlurmError`."""
    return command.run(argv, patience=_PATIENCE, within=_PATIENCE)


def quotas_of(text: str, charge: Charge) -> list[QuotaLimit]:
    """The limits that may count for a job: those of its QOS in their order, then those of its
    association and of the accounts above."""
    lines = text.splitlines()
    qos = {line[4:].partition("(")[0]: line for line in lines if line.startswith("QOS=")}
    found = [_of_qos(f"QOS {name}", qos[name], charge) for name in charge.qos if name in qos]
    return [limit for part in (*found, _of_associations(lines, charge)) for limit in part]


def _of_qos(holder: str, line: str, charge: Charge) -> Iterator[QuotaLimit]:
    line, _, users = line.partition(" User Limits=")
    line, _, accounts = line.partition(" Account Limits=")
    yield from _limits(holder, line)
    yield from _limits(holder, _part(accounts, {charge.account}))
    yield from _limits(holder, _part(users, {charge.user, _user_id(charge.user)}))


def _part(text: str, names: set[str]) -> str:
    """The text in braces behind any of these names: `alice(1001)={MaxJobsPU=7(1) ...}`."""
    parts = re.findall(r"(\S+)=\{(.*?)\}", text)
    return next((part for name, part in parts if names & set(re.split(r"[()]", name))), "")


def _user_id(user: str) -> str:
    try:
        return str(pwd.getpwnam(user).pw_uid)
    except KeyError:
        return user


def _of_associations(lines: Iterable[str], charge: Charge) -> Iterator[QuotaLimit]:
    above = {}
    for record, line in _associations(lines):
        if not record["UserName"]:
            above[record["Account"]] = (record["ParentAccount"], line)
        mine = (record["UserName"], record["Account"]) == (charge.user, charge.account)
        if mine and record["Partition"] in ("", charge.partition):
            yield from _limits(f"account {charge.account} for {charge.user}", line)
    account = charge.account
    while account in above:
        parent, line = above.pop(account)
        found = _limits(f"account {account}", line)
        yield from (limit for limit in found if limit.scope == "group")
        account = parent


def _associations(lines: Iterable[str]) -> list[tuple[Mapping[str, str], str]]:
    """The fields of each association, such as its account, user and parent, with its line."""
    found: list[tuple[Mapping[str, str], str]] = []
    for line in lines:
        if line.startswith("ClusterName="):
            words = (word.partition("=") for word in line.split())
            fields = {key: value.partition("(")[0] for key, _, value in words}
            found.append((defaultdict(str, fields), line))
    return found


def _limits(holder: str, text: str) -> Iterator[QuotaLimit]:
    """The limits in `GrpJobs=10(1) MaxTRESPJ=cpu=16,gres/gpu=4`; N stands for none."""
    for word in text.split():
        key, _, value = word.partition("=")
        if (match := _FIELD.fullmatch(key)) is None:
            continue
        kind, thing, per = match.groups()
        scope, suffix = _PER["Grp" if kind == "Grp" else per]
        for amount in value.split(","):
            resource, _, figures = amount.rpartition("=")
            most, _, used = figures.rstrip(")").partition("(")
            if (number := parse_amount(most)) is not None:
                name = f"{kind}{thing}{suffix} {resource}".strip()
                counts = resource or _COUNTED[thing]
                yield QuotaLimit(holder, name, scope, counts, number, parse_amount(used))


def default_account(text: str, user: str) -> str:
    """The only account of a user, or the default; empty if unknown."""
    own = [fields for fields, _ in _associations(text.splitlines()) if fields["UserName"] == user]
    names = {fields["Account"] for fields in own}
    default = {fields["Account"] for fields in own if fields["DefAssoc"] == "Yes"}
    return next(iter(default if len(names) > 1 else names), "")
