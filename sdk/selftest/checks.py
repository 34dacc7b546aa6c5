"""Facts of a cluster -> lines of the table of a selftest. Pure.

An absent fact is unknown, and never ok.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from detslurm._base.quantities import counted, human_size
from detslurm._base.states import outcome_words
from detslurm.sdk.selftest.facts import NodesJobFacts, SiteFacts, StoryFacts, TrialRun
from detslurm.sdk.selftest.stories import Story
from detslurm.store.selftest_facts import NodeAnswer, NodeFacts

Verdict = Literal["ok", "warning", "broken", "unknown"]

_SHORT_KILL_WAIT: Final = 10  # seconds
_SMALL_DISK: Final = 1 << 30  # bytes
_CLOCK_WARNING, _CLOCK_BROKEN = 5.0, 240.0  # seconds; munge refuses 300
_SLOW_ANSWER: Final = 5.0  # seconds
_ZONE: Final = 900.0  # seconds: time zones differ by quarters of an hour
_LEAVES: Final = ("preempted", "time_limit")


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
    yield _kill_wait(site.limits.kill_wait)
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


def _kill_wait(seconds: int) -> SelfCheck:
    figure = f"{seconds} s between SIGTERM and SIGKILL"
    remedy = "Set KillWait to 30 or more: in that time a job that is ended saves its work."
    if seconds <= 0:
        return SelfCheck("KillWait", "broken", figure, remedy)
    if seconds < _SHORT_KILL_WAIT:
        return SelfCheck("KillWait", "warning", figure, remedy)
    return SelfCheck("KillWait", "ok", figure)


def _memory(option: str, refusal: str) -> SelfCheck:
    if not refusal:
        return SelfCheck(f"sbatch {option}", "ok", "accepted")
    return SelfCheck(
        f"sbatch {option}", "warning", f"refused: {refusal.splitlines()[0]}",
        "Users ask for memory in the other way (slurm.sbatch_args), or not at all; say so in the"
        " site profile.",
    )  # fmt: skip


def nodes_checks(job: NodesJobFacts) -> Iterator[SelfCheck]:
    """The lines on the job that asks each node."""
    yield from _request(job)
    yield from _lacking(job)
    yield from _submit_time(job)
    if job.found is None:
        verdict: Verdict = "broken" if job.started or job.request is None else "unknown"
        remedy = "`squeue` and `sinfo -R` show why; try another partition with --pool."
        yield SelfCheck("nodes", verdict, job.problem, remedy)
        return
    answers = job.found.answers
    yield _steps(answers)
    yield _prolog(answers)
    yield _pmix(job)
    yield from _each(job, answers)


def _request(job: NodesJobFacts) -> Iterator[SelfCheck]:
    """Whether the queue has the job as it was asked for."""
    request, record = job.request, job.record
    if request is None:
        return
    if not record or not job.listed:
        program = "squeue" if record else "scontrol"
        yield SelfCheck(
            "job as asked", "unknown" if not record else "warning",
            f"{program} does not show the job",
            "Users must see their own jobs: check PrivateData and hidden partitions.",
        )  # fmt: skip
        return
    wanted = {
        "JobName": request.name,
        "Partition": request.partition,
        "Account": request.account,
        "QOS": request.qos,
        "NumNodes": str(request.nodes),
        "TimeLimit": f"00:{request.time_minutes or 0:02d}:00",
        "Requeue": str(int(request.requeue)),
        "Comment": request.comment,
    }
    changed = [
        f"{name}: {record[name]} instead of {given}" for name, given in wanted.items()
        if given is not None and record.get(name, given) not in (given, f"{given}-{given}")
    ]  # fmt: skip
    if not changed:
        text = f"job {record.get('JobId', '?')} is as it was submitted"
        yield SelfCheck("job as asked", "ok", text)
        return
    yield SelfCheck(
        "job as asked", "warning", "; ".join(changed),
        "A plugin of the site (JobSubmitPlugins, cli_filter) rewrites jobs: check that it leaves"
        " limits, signals and --requeue as they are asked for.",
    )  # fmt: skip


def _lacking(job: NodesJobFacts) -> Iterator[SelfCheck]:
    for node, what in job.lacking.items():
        yield SelfCheck(
            "store", "broken", f"{node}: {what}",
            "Mount the store's file system on all nodes of the partition; here the selftest went on"
            f" without {node}.",
        )  # fmt: skip


def _submit_time(job: NodesJobFacts) -> Iterator[SelfCheck]:
    """The controller's clock and time zone, by the time of the submission."""
    name = "controller's time"
    if job.shown_submit is None:
        if job.request is not None:
            yield SelfCheck(name, "unknown", "scontrol shows no time of submission")
        return
    early, late = job.submitted - 1, job.read + 1
    offset = outside(job.shown_submit, early, late)
    if offset and abs(offset - _ZONE * round(offset / _ZONE)) < 60 and abs(offset) > _ZONE / 2:
        yield SelfCheck(
            name, "broken", f"Slurm prints times {_signed(offset)} from this machine's",
            "Slurm's programs answer in another time zone: set the same TZ on this machine and on"
            " the one where they run, or let a wrapper hand on TZ and SLURM_TIME_FORMAT.",
        )  # fmt: skip
        return
    yield _clock(name, {"the controller": offset}, "chronyd or ntpd keeps clocks together.")


def outside(time: float, early: float, late: float) -> float:
    """The seconds by which a clock's time lies before (less than 0) or after an interval; 0.0
    inside."""
    return min(time - early, 0.0) or max(time - late, 0.0)


def _signed(seconds: float) -> str:
    if abs(seconds) < 120:
        return f"{seconds:+.0f} s"
    return f"{seconds / 60:+.0f} min" if abs(seconds) < 7200 else f"{seconds / 3600:+.1f} h"


def _clock(name: str, offsets: dict[str, float], remedy: str) -> SelfCheck:
    worst = max(offsets, key=lambda where: abs(offsets[where]))
    size = abs(offsets[worst])
    figure = f"{worst}: {_signed(offsets[worst])}" if size >= 1 else "all within a second or two"
    if size < _CLOCK_WARNING:
        return SelfCheck(name, "ok", figure)
    return SelfCheck(name, "warning" if size < _CLOCK_BROKEN else "broken", figure, remedy)


def _steps(answers: Sequence[NodeAnswer]) -> SelfCheck:
    silent = [answer for answer in answers if answer.facts is None]
    figure = f"{len(answers) - len(silent)} of {counted(len(answers), 'node')} ran a step"
    if not silent:
        slowest = max(answer.answered - answer.asked for answer in answers)
        return SelfCheck("srun steps", "ok", f"{figure}, in {slowest:.1f} s at most")
    return SelfCheck(
        "srun steps", "broken", f"{figure}; {_listed((a.node, a.error) for a in silent)}",
        "Check slurmd, munged (`munge -n | ssh NODE unmunge`) and this Python on that node.",
    )  # fmt: skip


def _prolog(answers: Sequence[NodeAnswer]) -> SelfCheck:
    printed = [(answer.node, answer.printed) for answer in answers if answer.printed]
    if printed:
        return SelfCheck(
            "output of steps", "warning", f"also printed: {_listed(printed)}",
            "A TaskProlog or a shell's start-up file prints into the output of all steps: let it"
            " print to stderr, or nothing.",
        )  # fmt: skip
    if not any(answer.facts for answer in answers):
        return SelfCheck("output of steps", "unknown", "no step has run")
    return SelfCheck("output of steps", "ok", "nothing but the step's own")


def _pmix(job: NodesJobFacts) -> SelfCheck:
    assert job.found is not None
    found, remedy = job.found, "Check that mpi_pmix.so and its libpmix are on all nodes."
    if not found.pmix_wanted:
        return SelfCheck(
            "PMIx", "unknown", "`srun --mpi=list` has no pmix",
            "Install Slurm's PMIx plugin, or set slurm.mpi (pmi2) in the site profile.",
        )  # fmt: skip
    figure = f"{found.pmix_ranks} of {counted(found.pmix_wanted, 'rank')}"
    if found.pmix_ranks == found.pmix_wanted:
        return SelfCheck("PMIx", "ok", figure)
    return SelfCheck("PMIx", "broken", f"{figure}: {_last(found.pmix_error)}", remedy)


def _each(job: NodesJobFacts, answers: Sequence[NodeAnswer]) -> Iterator[SelfCheck]:
    """The lines on the facts of all nodes that have answered."""
    found = {answer.node: answer.facts for answer in answers if answer.facts is not None}
    if not found:
        return
    assert job.found is not None
    yield _over(
        "store", found, lambda facts: facts.store, "seen and writable",
        "Mount the store's file system there, under the same path.",
    )  # fmt: skip
    yield _owner(job.uid, found)
    yield _over(
        "Slurm on nodes", found, lambda facts: facts.controller, "the controller answers",
        "Jobs call scontrol, sbatch and srun on their nodes: check munge and slurm.conf there.",
    )  # fmt: skip
    yield _disk(found)
    yield _over(
        "programs in TMPDIR", found,
        lambda facts: f"{facts.tmp} is mounted with noexec" if facts.tmp_exec is False else None,
        "can be started",
        "Mount it without noexec, or set TMPDIR to a directory where programs can be started:"
        " compilers and staged environments need one.",
        unknown=lambda facts: facts.tmp_exec is None,
    )  # fmt: skip
    yield _clocks(job, answers)
    yield _zones(job.utc_offset, found)


def _over(
    name: str,
    found: dict[str, NodeFacts],
    problem_of: Callable[[NodeFacts], str | None],
    good: str,
    remedy: str,
    *,
    unknown: Callable[[NodeFacts], bool] = lambda facts: False,
) -> SelfCheck:
    """One line for all nodes: broken where any has a problem."""
    problems = [(node, text) for node, facts in found.items() if (text := problem_of(facts))]
    if problems:
        return SelfCheck(name, "broken", _listed(problems), remedy)
    missing = [node for node, facts in found.items() if unknown(facts)]
    if missing:
        return SelfCheck(name, "unknown", f"not tried on {', '.join(missing[:5])}")
    return SelfCheck(name, "ok", f"{good} on {counted(len(found), 'node')}")


def _owner(uid: int, found: dict[str, NodeFacts]) -> SelfCheck:
    others = [
        (node, f"user {facts.owner}") for node, facts in found.items()
        if facts.owner is not None and facts.owner != uid
    ]  # fmt: skip
    if others:
        return SelfCheck(
            "owner of files", "broken", f"files of user {uid} belong to others: {_listed(others)}",
            "The file server maps users (root_squash, or names without ids): run the selftest as an"
            " ordinary user, and check idmapd.",
        )  # fmt: skip
    if any(facts.owner is None for facts in found.values()):
        return SelfCheck("owner of files", "unknown", "some nodes could not write")
    return SelfCheck("owner of files", "ok", f"user {uid} on {counted(len(found), 'node')}")


def _disk(found: dict[str, NodeFacts]) -> SelfCheck:
    line = _over(
        "disk of nodes", found, lambda facts: facts.tmp_problem, "writable",
        "Free space there, or set TMPDIR to another directory of the node.",
        unknown=lambda facts: facts.tmp_free is None,
    )  # fmt: skip
    if line.verdict != "ok":
        return line
    node = min(found, key=lambda name: found[name].tmp_free or 0)
    free = found[node].tmp_free or 0
    figure = f"{found[node].tmp}: {human_size(free)} free at least ({node})"
    if free < _SMALL_DISK:
        return SelfCheck("disk of nodes", "warning", figure, "Code and caches need some room.")
    return SelfCheck("disk of nodes", "ok", figure)


def _clocks(job: NodesJobFacts, answers: Sequence[NodeAnswer]) -> SelfCheck:
    """Each clock beside that of the job's first node, and the first beside this machine's."""
    known = [answer for answer in answers if answer.facts is not None]
    first = known[0].asked
    base = outside(first, job.submitted, job.read)
    offsets = {
        a.node: outside(a.facts.time, a.asked, a.answered) + base
        for a in known if a.facts is not None
    }  # fmt: skip
    return _clock(
        "clocks of nodes", offsets,
        "Let chronyd or ntpd set the clock: munge refuses differences of five minutes.",
    )  # fmt: skip


def _zones(here: int, found: dict[str, NodeFacts]) -> SelfCheck:
    others = [
        (node, _zone(facts.utc_offset)) for node, facts in found.items() if facts.utc_offset != here
    ]
    if not others:
        return SelfCheck("time zone", "ok", f"{_zone(here)} here and on the nodes")
    return SelfCheck(
        "time zone", "warning", f"{_zone(here)} here, but {_listed(others)}",
        "Times in logs of the cluster are of another zone than here; detslurm itself is right in"
        " all zones.",
    )  # fmt: skip


def _zone(offset: int) -> str:
    sign, minutes = "-" if offset < 0 else "+", abs(offset) // 60
    return f"UTC{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def story_check(story: Story, facts: StoryFacts) -> SelfCheck:
    """The line on one experiment."""
    if facts.refusal:
        return SelfCheck(story.name, "broken", f"refused: {facts.refusal}", story.remedy)
    if not facts.ended:
        text = f"not finished after {facts.seconds:.0f} s{f' ({facts.waits})' * bool(facts.waits)}"
        return SelfCheck(story.name, "unknown", text, "Try again when the cluster is idle.")
    done = f"in {facts.seconds:.0f} s"
    if facts.state != "COMPLETED":
        return SelfCheck(story.name, "broken", f"{_why(facts)} {done}", story.remedy)
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
    return _last(last.reason) or last.outcome or facts.state


def _second_run(story: Story, facts: StoryFacts, done: str) -> SelfCheck:
    """Whether the first run gave way, and a second one went on."""
    outcomes = [run.outcome for run in facts.runs]
    if len(outcomes) < 2 or outcomes[0] not in _LEAVES:
        text = f"its runs were {', '.join(str(one) for one in outcomes) or 'none'} {done}"
        return SelfCheck(story.name, "broken", text, story.remedy)
    first, second = facts.runs[0], facts.runs[-1]
    again = first.ref == second.ref
    way = "the same job ran again" if again else "a successor went on"
    text = f"{outcome_words(first.outcome)}, then {way}, {done}"
    if not again and story.slurm.get("on_preempt") == "requeue":  # which Slurm has refused
        return SelfCheck(story.name, "warning", text, story.remedy)
    return SelfCheck(story.name, "ok", text)


def controller_check(seconds: Sequence[float]) -> SelfCheck:
    """The line on the time that the controller took for each of our calls."""
    if not seconds:
        return SelfCheck("controller", "unknown", "no call was answered")
    middle, worst = sorted(seconds)[len(seconds) // 2], max(seconds)
    figure = f"{middle:.2f} s a call, {worst:.2f} s at most, of {counted(len(seconds), 'call')}"
    if middle < _SLOW_ANSWER:
        return SelfCheck("controller", "ok", figure)
    return SelfCheck("controller", "warning", figure, "`sdiag` shows what keeps it busy.")


def traces_check(folder: Path | None, jobs: Sequence[str]) -> SelfCheck:
    """The line on remains: the directory if it could not be removed, and jobs."""
    if folder is None and not jobs:
        return SelfCheck("traces", "ok", "no job and no file is left")
    left = [*([str(folder)] if folder is not None else []), *(f"job {job}" for job in jobs[:5])]
    return SelfCheck("traces", "warning", f"left: {', '.join(left)}", "scancel the jobs; rm -r.")


def _listed(found: Iterable[tuple[str, str]]) -> str:
    """Some nodes with their texts."""
    pairs = list(found)
    some = "; ".join(f"{node}: {_last(text) or 'no answer'}" for node, text in pairs[:3])
    return some + (f"; and {len(pairs) - 3} more" if len(pairs) > 3 else "")


def _last(text: str) -> str:
    """The last line of a text, not too long for a table."""
    line = text.strip().rpartition("\n")[2]
    return line if len(line) <= 160 else line[:157] + "..."
