"""The facts that a selftest judges: plain data, which tests can make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from detslurm.slurm import ClusterLimits, JobRequest, NodeInfo
from detslurm.store.selftest_facts import NodesFacts


@dataclass(frozen=True, kw_only=True)
class SiteFacts:
    """The answers of Slurm before any job.

    Attributes:
        limits: The rules of the cluster.
        pool: The partition that is tried; None if it is unknown.
        sbatch: The path of sbatch; None if it is not in PATH.
        is_script: Whether sbatch is a script, so a wrapper; None if unknown.
        listed: Whether partitions list the pool without --all; None if unknown.
        memory: The refusal of each option that asks for memory; "" where it is accepted.
        nodes: The nodes of the pool; empty where the site does not show them.
    """

    limits: ClusterLimits
    pool: str | None
    sbatch: str | None = None
    is_script: bool | None = None
    listed: bool | None = None
    memory: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[NodeInfo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodesJobFacts:
    """The course of the job that asks each node for its facts.

    Attributes:
        request: The job as it was asked for; None if it was refused.
        record: The job as `scontrol show job` prints it; empty if it does not.
        listed: Whether squeue shows the job.
        found: Its facts; None if it wrote none.
        problem: Why there are no facts.
        started: Whether it has begun.
        lacking: The lack of each node on which the job could not work.
        submitted: The clock of this machine before the submission.
        read: The clock of this machine when the facts were there.
        shown_submit: The time of the submission in that record, taken as this machine's local time;
            None if it could not be read.
        uid: The user id of this process.
        utc_offset: The seconds by which the time zone of this process is ahead of UTC.
    """

    request: JobRequest | None = None
    record: Mapping[str, str] = field(default_factory=dict)
    listed: bool = False
    found: NodesFacts | None = None
    problem: str = ""
    started: bool = False
    lacking: Mapping[str, str] = field(default_factory=dict)
    submitted: float = 0.0
    read: float = 0.0
    shown_submit: float | None = None
    uid: int = 0
    utc_offset: int = 0


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """One run of a trial: how it ended, why, and in which job."""

    outcome: str | None
    reason: str = ""
    ref: str = ""


@dataclass(frozen=True, kw_only=True)
class StoryFacts:
    """The course of one experiment.

    Attributes:
        refusal: Why it was not submitted; "" if it was.
        state: The state of the experiment at last.
        done: How many of its trials are completed.
        trials: How many it has.
        runs: The runs of its first trial that did not just complete, else of its first trial.
        figure: The figure that the trial reported; None if there is none.
        seconds: The time from the submission to the end, or to the end of the selftest.
        waits: Slurm's state and reason of its job, where it has not ended.
    """

    refusal: str = ""
    state: str = ""
    done: int = 0
    trials: int = 1
    runs: tuple[TrialRun, ...] = ()
    figure: float | None = None
    seconds: float = 0.0
    waits: str = ""

    @property
    def ended(self) -> bool:
        """Whether the experiment has come to an end."""
        return self.state in ("COMPLETED", "ERROR", "CANCELED")
