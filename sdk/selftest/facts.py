"""The facts that a selftest judges: plain data, which tests can make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from detslurm.slurm import ClusterLimits, JobRequest, NodeInfo
from detslurm.store import NodesFacts


@dataclass(frozen=True, kw_only=True)
class SiteFacts:
    """The answers of Slurm before any job. None means unknown."""

    limits: ClusterLimits
    pool: str | None
    sbatch: str | None = None  # its path
    is_script: bool | None = None  # whether that is a script, so a wrapper
    listed: bool | None = None  # whether the pool is listed without --all
    # The refusal of each option that asks for memory; "" where it is accepted.
    memory: Mapping[str, str | None] = field(default_factory=dict)
    nodes: tuple[NodeInfo, ...] = ()  # of the pool; empty where the site does not show them


@dataclass(frozen=True, kw_only=True)
class NodesJobFacts:
    """The course of the job that asks each node for its facts."""

    request: JobRequest | None = None  # as it was asked for; None if it was refused
    job_id: str = ""
    record: Mapping[str, str] = field(default_factory=dict)  # as scontrol shows it; may be empty
    listed: bool = False  # whether squeue shows it
    found: NodesFacts | None = None
    problem: str = ""  # why nothing was found
    started: bool = False
    lacking: Mapping[str, str] = field(default_factory=dict)  # node -> what kept the job from work
    submitted: float = 0.0  # this machine's clock before the submission
    read: float = 0.0  # the same when the facts were there
    # The time of the submission as Slurm prints it, taken as this machine's local time.
    shown_submit: float | None = None
    uid: int = 0
    utc_offset: int = 0  # seconds by which this process's time zone is ahead


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """One run of a trial: how it ended, why, and in which job."""

    outcome: str | None
    reason: str = ""
    ref: str = ""


@dataclass(frozen=True, kw_only=True)
class StoryFacts:
    """The course of one experiment."""

    refusal: str = ""  # why it was not submitted
    state: str = ""
    done: int = 0  # completed trials
    trials: int = 1
    runs: tuple[TrialRun, ...] = ()  # of the first trial that is not completed, else of the first
    figure: float | None = None  # what that trial has reported
    output: str = ""  # the last line that the code of that trial printed, if it failed
    seconds: float = 0.0  # from the submission to the end, or until now
    waits: str = ""  # Slurm's state and reason of its job

    @property
    def ended(self) -> bool:
        """Whether the experiment has come to an end."""
        return self.state in ("COMPLETED", "ERROR", "CANCELED")
