"""Facts of a cluster -> lines of the table of a selftest. Pure.

An absent fact is unknown, and never ok.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from detslurm._base.quantities import counted
from detslurm._base.states import outcome_words
from detslurm.sdk.selftest.facts import SiteFacts, StoryFacts, TrialRun
from detslurm.sdk.selftest.stories import Story
from detslurm.slurm import command

Verdict = Literal["ok", "warning", "broken", "unknown"]

_SHORT_KILL_WAIT: Final = 10  # seconds
_SLOW_ANSWER: Final = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """A line of the table: the check, the figure, the verdict and the remedy."""

    name: str
    verdict: Verdict
    figure: str
    remedy: str = ""


def site_checks(site: SiteFacts) -> Iterator[SelfCheck]:
    """The lines on Slurm's answers before any job."""
    yield _sbatch(site)
    yield _pool(site)
    yield _nodes(site)
    yield _kill_wait(site.limits.kill_wait if site.limits.cluster else None)
    for option, refusal in site.memory.items():
        yield _memory(option, refusal)


def _sbatch(site: SiteFacts) -> SelfCheck:
    if site.sbatch is None or site.is_script is None:
        return SelfCheck("sbatch", "unknown", "sbatch can't be read")
    if not site.is_script:
        return SelfCheck("sbatch", "ok", f"{site.sbatch} is Slurm's program")
    return SelfCheck(
        "sbatch", "warning", f"{site.sbatch} is a script: a wrapper of the site",
        "A wrapper must hand on all options and variables, and print what --parsable prints.",
    )  # fmt: skip


def _pool(site: SiteFacts) -> SelfCheck:
    pool = site.limits.partition(site.pool)
    if pool is None:
        name = site.pool or "the default partition"
        known = bool(site.limits.partitions)
        return SelfCheck(
            "partition", "broken" if known and site.pool else "unknown",
            f"{name} is not among the partitions that Slurm shows",
            "Name a partition with --pool; `scontrol --all show partition` lists them.",
        )  # fmt: skip
    if not pool.up:
        return SelfCheck("partition", "broken", f"{pool.name} is not up", "`sinfo -s` shows why.")
    if site.listed is None:
        return SelfCheck("partition", "unknown", f"{pool.name} is up; its listing is unknown")
    if not site.listed:
        return SelfCheck(
            "partition", "warning", f"{pool.name} is hidden (Hidden=YES)",
            "Users see its jobs only with `squeue --all` (SQUEUE_ALL=1); or set Hidden=NO.",
        )  # fmt: skip
    return SelfCheck("partition", "ok", f"{pool.name} is up")


def _nodes(site: SiteFacts) -> SelfCheck:
    if not site.nodes:
        return SelfCheck("nodes in service", "unknown", "Slurm does not show them (PrivateData)")
    out = [node for node in site.nodes if not node.available]
    figure = f"{len(site.nodes) - len(out)} of {len(site.nodes)}"
    if not out:
        return SelfCheck("nodes in service", "ok", figure)
    some = "; ".join(f"{n.name}: {n.state}" + f" {n.reason}".rstrip() for n in out[:5])
    return SelfCheck(
        "nodes in service", "broken" if len(out) == len(site.nodes) else "warning",
        f"{figure} ({some})",
        "`sinfo -R` shows reasons. On a node that does not respond, check slurmd and munged.",
    )  # fmt: skip


def _kill_wait(seconds: int | None) -> SelfCheck:
    if seconds is None:
        return SelfCheck("KillWait", "unknown", "`scontrol show config` is not shown")
    figure = f"{seconds} s between SIGTERM and SIGKILL"
    remedy = "Set KillWait to 30 or more: in that time a job that is ended saves its work."
    if seconds <= 0:
        return SelfCheck("KillWait", "broken", figure, remedy)
    if seconds < _SHORT_KILL_WAIT:
        return SelfCheck("KillWait", "warning", figure, remedy)
    return SelfCheck("KillWait", "ok", figure)


def _memory(option: str, refusal: str | None) -> SelfCheck:
    if refusal is None:
        return SelfCheck(f"sbatch {option}", "unknown", "the controller did not answer")
    if not refusal:
        return SelfCheck(f"sbatch {option}", "ok", "accepted")
    return SelfCheck(
        f"sbatch {option}", "warning", f"refused: {refusal.splitlines()[0]}",
        "Users ask for memory in the other way (slurm.sbatch_args), or not at all; write so in the"
        " site profile.",
    )  # fmt: skip


def story_check(story: Story, facts: StoryFacts) -> SelfCheck:
    """The line on one experiment."""
    if facts.refusal:
        verdict: Verdict = "unknown" if may_pass(facts.refusal) else "broken"
        return SelfCheck(story.name, verdict, f"refused: {facts.refusal}", story.remedy)
    if not facts.ended:
        text = f"not finished after {facts.seconds:.0f} s{f' ({facts.waits})' * bool(facts.waits)}"
        return SelfCheck(story.name, "unknown", text, "Try a longer --timeout, or an idle cluster.")
    done = f"in {facts.seconds:.0f} s"
    if facts.state != "COMPLETED":
        gave_way = bool(facts.runs) and facts.runs[0].outcome == story.leaves
        verdict = "broken" if gave_way or story.surely_leaves else "unknown"
        return SelfCheck(story.name, verdict, f"{_why(facts)} {done}", story.remedy)
    if story.leaves:
        return _second_run(story, facts, done)
    if story.figure is not None and facts.figure is None:
        return SelfCheck(story.name, "unknown", f"no figure was reported {done}")
    if story.figure is not None and facts.figure != story.figure:
        wrong = f"{facts.figure:g} instead of {story.figure}"
        return SelfCheck(story.name, "broken", f"{wrong} {done}", story.remedy)
    count = f"{facts.done} of {counted(facts.trials, 'trial')} {done}"
    return SelfCheck(story.name, "ok", count if story.figure is None else f"{story.shown} {done}")


def _why(facts: StoryFacts) -> str:
    last = facts.runs[-1] if facts.runs else TrialRun(outcome=None)
    texts = (last_line(last.reason) or last.outcome or facts.state, last_line(facts.output))
    return ": ".join(filter(None, texts))


def _second_run(story: Story, facts: StoryFacts, done: str) -> SelfCheck:
    """Whether the first run gave way, and a second one went on."""
    outcomes = [run.outcome for run in facts.runs]
    if len(outcomes) < 2 or outcomes[0] != story.leaves:
        text = f"its runs were {', '.join(map(str, outcomes)) or 'none'} {done}"
        return SelfCheck(story.name, "broken", text, story.remedy)
    first, second = facts.runs[0], facts.runs[-1]
    again = first.ref == second.ref
    way = "the same job ran again" if again else "a successor went on"
    text = f"{outcome_words(first.outcome)}, then {way}, {done}"
    if not again and story.slurm.get("on_preempt") == "requeue":  # which Slurm has refused
        return SelfCheck(story.name, "warning", text, story.remedy)
    return SelfCheck(story.name, "ok", text)


def others_check(count: int) -> SelfCheck:
    """The line on nodes that the job leaves out."""
    return SelfCheck(
        "other nodes", "unknown", f"{counted(count, 'node')} not asked",
        "They are full or powered down, or jobs of other users there would give way: try again when"
        " they are idle. Or the partition's MaxNodes is smaller.",
    )  # fmt: skip


def may_pass(refusal: str) -> bool:
    """Whether the same submission may be accepted later: a busy controller, or limits on jobs."""
    room = command.is_submit_limit(refusal) or "there is no room" in refusal
    return room or command.is_transient(refusal)


def controller_check(seconds: Sequence[float]) -> SelfCheck:
    """The line on the time that the controller took for each of our calls."""
    if not seconds:
        return SelfCheck("controller", "unknown", "no call was answered")
    middle, worst = sorted(seconds)[len(seconds) // 2], max(seconds)
    figure = f"{middle:.2f} s a call, {worst:.2f} s at most, of {counted(len(seconds), 'call')}"
    if middle < _SLOW_ANSWER:
        return SelfCheck("controller", "ok", figure)
    return SelfCheck("controller", "warning", figure, "`sdiag` shows what keeps it busy.")


def store_refusal(error: OSError) -> SelfCheck:
    """The line on a store that this machine can't use."""
    if error.errno in (errno.EDQUOT, errno.ENOSPC):
        text = f"{error.strerror}: {error.filename or 'here'}"
        remedy = "Free some space or files (`quota` shows them), or set DETSLURM_ROOT."
        return SelfCheck("store", "broken", text, remedy)
    return SelfCheck(
        "store", "broken", f"here: {error.filename}: {error.strerror}",
        "Set DETSLURM_ROOT to a directory that you may write to. Root has no rights on many file"
        " servers (root_squash): run the selftest as an ordinary user.",
    )  # fmt: skip


def traces_check(folder: Path | None, jobs: Sequence[str]) -> SelfCheck:
    """The line on remains: the directory if it could not be removed, and jobs."""
    if folder is None and not jobs:
        return SelfCheck("traces", "ok", "no job and no file is left")
    left = [*([str(folder)] if folder is not None else []), *(f"job {job}" for job in jobs[:5])]
    return SelfCheck("traces", "warning", f"left: {', '.join(left)}", "scancel the jobs; rm -r.")


def listed(found: Iterable[tuple[str, str]]) -> str:
    """Some nodes with their texts."""
    pairs = list(found)
    some = "; ".join(f"{node}: {last_line(text) or 'no answer'}" for node, text in pairs[:3])
    return some + (f"; and {len(pairs) - 3} more" if len(pairs) > 3 else "")


def last_line(text: str) -> str:
    """The last line of a text, not too long for a table."""
    line = text.strip().rpartition("\n")[2]
    return line if len(line) <= 160 else line[:157] + "..."
