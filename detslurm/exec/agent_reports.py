"""The reports of node agents as a runner reads them; `agent_protocol` has their way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detslurm._base.states import FailureKind


class AgentReport(msgspec.Struct, frozen=True, tag_field="event", tag="up"):
    """Any report, from the agent of one node: it is there."""

    node: int = 0


class Arrived(AgentReport, frozen=True, tag="arrived"):
    """The node waits for the others."""

    addr: str = ""
    slots: int = 1
    port: int | None = None
    environment: str | None = None


class Preempted(AgentReport, frozen=True, tag="preempted"):
    """The agent got Slurm's SIGTERM."""


class Stopped(AgentReport, frozen=True, tag="stop"):
    """The search wants no more of this trial; code that does not watch for it gets a grace."""

    grace: float | None = None


class HyperparametersRefused(AgentReport, frozen=True, tag="invalid_hp"):
    """A rank has refused the hyperparameters."""


class PolicyMatched(AgentReport, frozen=True, tag="policy", kw_only=True):
    """A line of the log matched a log policy."""

    name: str
    action: str | None = None


class StagingFailed(AgentReport, frozen=True, tag="not_staged", kw_only=True):
    """The node runs the code with the environment as it is now."""

    why: str


class CodeEnded(AgentReport, frozen=True, tag="ended", kw_only=True):
    """The code of the node has ended."""

    exit_code: int
    by_itself: int
    preempted: bool
    acknowledged: bool
    why: str | None = None
    kind: FailureKind | None = None
    unprepared: bool = False
    sigint: bool = False
    oom_kills: int = 0
    deleted: str | None = None


class Free(AgentReport, frozen=True, tag="free"):
    """The agent has left its run in order, and waits for the next one of its job."""


AnyReport = (
    AgentReport
    | Arrived
    | Preempted
    | Stopped
    | HyperparametersRefused
    | PolicyMatched
    | StagingFailed
    | CodeEnded
    | Free
)


def typed_report(report: Mapping[str, Any]) -> AgentReport:
    """A report as a struct; a report of an unknown kind shows only that its agent is there."""
    try:
        return msgspec.convert(report, AnyReport)  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        return AgentReport(int(report.get("node") or 0))
