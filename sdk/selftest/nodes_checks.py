"""Facts of a cluster's nodes -> lines of the table of a selftest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from detslurm._base.quantities import counted, human_size
from detslurm.sdk.selftest.checks import SelfCheck, Verdict, last_line, listed, may_pass
from detslurm.sdk.selftest.facts import NodesJobFacts
from detslurm.store import NodeAnswer, NodeFacts

_SMALL_DISK: Final = 1 << 30  # bytes
_CLOCK_WARNING, _CLOCK_BROKEN = 5.0, 240.0  # seconds; munge refuses 300
_ZONE: Final = 900.0  # seconds: time zones differ by quarters of an hour


def nodes_checks(job: NodesJobFacts) -> Iterator[SelfCheck]:
    """The lines on the job that asks each node."""
    yield from _request(job)
    yield from _submit_time(job)
    if job.found is None:
        refused = job.request is None and not may_pass(job.problem)
        verdict: Verdict = "broken" if job.started or refused else "unknown"
        remedy = "`squeue` and `sinfo -R` show why; try another partition with --pool."
        yield SelfCheck("nodes", verdict, job.problem, remedy)
        if job.lacking:
            yield _store(job, {})
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
        "Partition": request.partition if "," not in (request.partition or "") else None,
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
    figure = f"{worst}: {_signed(offsets[worst])}" if size >= 1 else "no difference is seen"
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
        "srun steps", "broken", f"{figure}; {listed((a.node, a.error) for a in silent)}",
        "Check slurmd, munged (`munge -n | ssh NODE unmunge`) and this Python on that node.",
    )  # fmt: skip


def _prolog(answers: Sequence[NodeAnswer]) -> SelfCheck:
    printed = [(answer.node, answer.printed) for answer in answers if answer.printed]
    if printed:
        return SelfCheck(
            "output of steps", "warning", f"also printed: {listed(printed)}",
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
    return SelfCheck("PMIx", "broken", f"{figure}: {last_line(found.pmix_error)}", remedy)


def _each(job: NodesJobFacts, answers: Sequence[NodeAnswer]) -> Iterator[SelfCheck]:
    """The lines on the facts of all nodes that have answered."""
    found = {answer.node: answer.facts for answer in answers if answer.facts is not None}
    if not found:
        return
    assert job.found is not None
    yield _store(job, found)
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


def _store(job: NodesJobFacts, found: dict[str, NodeFacts]) -> SelfCheck:
    """The line on the store, with the nodes on which the job could not even begin."""
    problems = {**job.lacking, **{n: facts.store for n, facts in found.items() if facts.store}}
    if not problems:
        return SelfCheck("store", "ok", f"seen and writable on {counted(len(found), 'node')}")
    return SelfCheck(
        "store", "broken", listed(problems.items()),
        "Mount the store's file system on all nodes, under the same path; the experiments below ran"
        " on other nodes.",
    )  # fmt: skip


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
        return SelfCheck(name, "broken", listed(problems), remedy)
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
            "owner of files", "broken", f"files of user {uid} belong to others: {listed(others)}",
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
        "time zone", "warning", f"{_zone(here)} here, but {listed(others)}",
        "Times in logs of the cluster are of another zone than here; detslurm itself is right in"
        " all zones.",
    )  # fmt: skip


def _zone(offset: int) -> str:
    sign, minutes = "-" if offset < 0 else "+", abs(offset) // 60
    return f"UTC{sign}{minutes // 60:02d}:{minutes % 60:02d}"
