"""Slurm behind the cluster interface: every verb is one or few of Slurm's own commands.

Verbs import the modules that do their work: most processes need one verb (tests/perf).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm.slurm import command, sbatch
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.interface import ClusterLimits
from detslurm.slurm.queue import parse_squeue, squeue_command, wanted
from detslurm.slurm.queue_state import JobInfo
from detslurm.slurm.request import JobRequest
from detslurm.slurm.submit_environment import submit_environment

if TYPE_CHECKING:
    from detslurm.slurm.interface import Allowance
    from detslurm.slurm.limits import LimitsQuery
    from detslurm.slurm.node_info import NodeInfo
    from detslurm.slurm.pending_details import PendingDetails

ASK_PATIENCE = 20.0
QUERY_PATIENCE = 15.0  # people wait for it, and without an answer there is still the store's
# While an array has pending elements, Slurm answers "try again later" to a signal that it has
# delivered, and scancel tries again for minutes. Runners that a notification misses see
# the change on their own.
NOTIFY_PATIENCE = 2.0


class SlurmCluster:
    """The cluster that the machine's Slurm commands call; `Cluster` describes its methods."""

    name = "slurm"

    def __init__(self) -> None:
        self._query: LimitsQuery | None = None

    def script(self, request: JobRequest) -> str:
        """The batch script that `submit` hands to sbatch; it can be submitted by hand, too."""
        from detslurm.slurm.batch_script import BatchExecutor

        return BatchExecutor(request).script()

    def check(self, request: JobRequest) -> str | None:
        """Ask sbatch --test-only. It refuses also what nodes can't take that are out of service."""
        # One element speaks for all: the scheduler need not expand an array for a test.
        argv = ["sbatch", "--test-only", *(["--array=0"] if request.is_array else [])]
        path = _write_script(request.folder, self.script(request))
        env = {**submit_environment(request), "SLURM_TIME_FORMAT": "%s"}

        def test(*options: str) -> str:
            asked = [*argv, *options, str(path)]
            return command.run(asked, env=env, patience=ASK_PATIENCE, messages=True)

        try:
            answer = test()
            from detslurm.slurm.maintenance import maintenance_warning

            return maintenance_warning(answer, test, self._nodes_of(request))
        except SlurmError as refusal:
            lacks_nodes = "node configuration is not available" in refusal.message.lower()
            if not (lacks_nodes and (nodes := self._nodes_out_of_service(request))):
                raise _explained(refusal, request) from None
            # sbatch itself decides by all nodes, and queues the job.
            return f"nodes are out of service, and the jobs may wait for them: {nodes} (`sinfo -R`)"
        finally:
            path.unlink()

    def _nodes_of(self, request: JobRequest) -> Collection[str]:
        """The nodes of its partition; none where they are not known."""
        limits: ClusterLimits | None = self.__dict__.get("_limits")
        here = None if limits is None else limits.partition(request.partition)
        return () if here is None else here.nodes

    def _nodes_out_of_service(self, request: JobRequest) -> str:
        """Those of the request's partition, as in n[1-4]; empty if there are none."""
        states = "--states=down,drain,fail,maint"
        argv = ["sinfo", "--noheader", states, "--format=%N"]
        try:
            partition = request.partition or self._limits.default_partition
            of = [f"--partition={partition}"] if partition else []
            return ",".join(command.run([*argv, *of], patience=QUERY_PATIENCE).split())
        except SlurmError:  # then only the test's answer is known
            return ""

    def allowance(self, request: JobRequest) -> Allowance:
        from detslurm.slurm.allowance import ask_allowance

        return ask_allowance(request, self._limits)

    def allowance_now(self, charge: Mapping[str, Any]) -> Allowance:
        from detslurm.slurm.allowance import ask_again

        return ask_again(charge)

    def submit(self, request: JobRequest) -> str:
        path = _write_script(request.folder, self.script(request), request.mark)
        try:
            return sbatch.submit(path, submit_environment(request))
        except SlurmError as refusal:
            raise _explained(refusal, request) from None

    def submitted(self, folder: Path, mark: str) -> str | None:
        return sbatch.queued_from(sbatch.script_path(folder, mark), ASK_PATIENCE)

    def cancel(self, refs: Collection[str], *, pending_only: bool = False) -> None:
        states = ["--state=PENDING"] if pending_only else []
        self._each(["scancel", *states], refs)

    def notify(self, refs: Collection[str], *, steps: bool = False) -> None:
        """SIGUSR2 to the batch process of each: the runner, and nothing that it has started.

        `steps`: SIGTERM to the steps alone, as at a preemption, of jobs that have no runner.
        """
        how = ["--signal=TERM"] if steps else ["--signal=USR2", "--batch"]
        for part in _parts(list(refs)):
            argv = ["scancel", "--state=RUNNING", *how, *part]
            done = command.call(argv, within=NOTIFY_PATIENCE)
            if done is not None and done.returncode != 0:
                refusal = SlurmError(done.stderr.strip(), command.advice_for(done.stderr))
                if not _is_over(refusal):
                    raise refusal

    def requeue(self, ref: str, *, hold: bool = False, only_running: bool = False) -> None:
        verb = "requeuehold" if hold else "requeue"
        which = ["Incomplete"] if only_running else []
        command.run(["scontrol", verb, *which, ref], patience=sbatch.SUBMIT_PATIENCE)

    def hold(self, refs: Collection[str]) -> None:
        self._each(["scontrol", "hold"], refs, joined=True)

    def release(self, refs: Collection[str]) -> None:
        self._each(["scontrol", "release"], refs, joined=True)

    def update(self, ref: str, **fields: str | int) -> None:
        changes = [f"{name}={value}" for name, value in fields.items()]
        try:
            command.run(["scontrol", "update", f"JobId={ref}", *changes], patience=ASK_PATIENCE)
        except SlurmError as refusal:
            # Of an array that has begun: "no error" for waiting, "finished" for ended elements.
            if "no error" not in refusal.message.lower() or not _is_over(refusal):
                raise

    def top(self, ref: str) -> None:
        """Raise its nice above 0, and lower that of the user's others, as the site permits."""
        command.run(["scontrol", "top", ref], patience=ASK_PATIENCE)

    def query(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        if not job_ids:
            return {}
        try:
            argv = squeue_command(job_ids)
            text = command.run(argv, patience=ASK_PATIENCE, within=QUERY_PATIENCE)
        except SlurmError as refusal:
            if "invalid job id" in refusal.message.lower():  # its message when it knows none
                return {}
            raise
        return wanted(job_ids, parse_squeue(text))

    def evidence(
        self, job_ids: Collection[str], *, since: float | None = None
    ) -> dict[str, JobInfo]:
        """The queue's answer where it is clear, else what accounting or the controller remembers.

        A job that is ending is just COMPLETING to the queue; accounting knows the cause already.
        """
        from detslurm.slurm.history import ask

        seen = self.query(job_ids)
        clear = {ref: info for ref, info in seen.items() if info.state != "COMPLETING"}
        # An array's id is always asked about: the queue forgets its elements one by one.
        asked = [ref for ref in job_ids if ref not in clear]
        if not asked:
            return seen
        remembered = wanted(asked, ask(asked, since, self._limits.accounting))
        return {**seen, **remembered, **clear}

    def energy(self, job_ids: Collection[str], *, since: float | None) -> dict[str, float]:
        from detslurm.slurm.job_energy import energy_command, parse_energy

        argv = energy_command(job_ids, since)
        found = parse_energy(command.run(argv, patience=ASK_PATIENCE, within=QUERY_PATIENCE))
        return {ref: joules for ref, joules in found.items() if ref in job_ids}

    def queue(self, *, partition: str | None = None) -> list[JobInfo]:
        from detslurm.slurm.queue_listing import listing_command, new_separator, parse_listing

        separator = new_separator()
        argv = listing_command(separator, partition)
        return parse_listing(
            command.run(argv, patience=ASK_PATIENCE, within=QUERY_PATIENCE), separator
        )

    def nodes(self) -> list[NodeInfo]:
        from detslurm.slurm.nodes import NODES_COMMAND, parse_nodes

        return parse_nodes(command.run(NODES_COMMAND, patience=ASK_PATIENCE, within=QUERY_PATIENCE))

    def pending_details(self, job: JobInfo, ref: str, rival: str | None) -> PendingDetails:
        from detslurm.slurm.pending import pending_details

        return pending_details(job, ref, rival)

    def start_of(self, options: Sequence[str]) -> float:
        from detslurm.slurm.pending import start_of

        return start_of(options)

    @contextmanager
    def expecting_limits(self) -> Iterator[None]:
        """Ask for the site's rules already: that takes Slurm longer than it takes us to read."""
        if "_limits" not in self.__dict__:
            from detslurm.slurm.limits import LimitsQuery

            self._query = LimitsQuery()
        try:
            yield
        finally:
            query, self._query = self._query, None
            if query is not None:
                query.give_up()

    def limits(self) -> ClusterLimits:
        return self._limits

    @cached_property
    def _limits(self) -> ClusterLimits:
        query, self._query = self._query, None
        if query is None:
            from detslurm.slurm.limits import LimitsQuery

            return LimitsQuery().answer()
        # submitit takes long to import: as long as Slurm takes to answer.
        import_module("detslurm.slurm.batch_script")
        return query.answer()

    def _each(self, argv: Sequence[str], refs: Collection[str], *, joined: bool = False) -> None:
        """One call for many refs; a job that is over meanwhile must not stop the others."""
        for part in _parts(list(refs)):
            words = [",".join(part)] if joined else part
            try:
                command.run([*argv, *words], patience=ASK_PATIENCE)
            except SlurmError as refusal:
                if not _is_over(refusal):
                    raise


def _explained(refusal: SlurmError, request: JobRequest) -> SlurmError:
    """The same with the refused value and its origin: Slurm's message has neither."""
    from detslurm.slurm.chosen_option import refused_option

    text = refused_option(refusal.message, request)
    return SlurmError(refusal.message, f"{text} {refusal.advice}".strip()) if text else refusal


def _write_script(folder: Path, text: str, mark: str | None = None) -> Path:
    """A new script under a name of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = sbatch.script_path(folder, mark)
    path.touch(mode=0o600, exist_ok=False)  # what it sets up may hold secrets
    try:
        with path.open("w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    except OSError:  # the caller may try again
        with suppress(OSError):
            path.unlink()
        raise
    return path


def _parts(refs: list[str], size: int = 500) -> list[list[str]]:
    """Pieces that fit a command line."""
    return [refs[start : start + size] for start in range(0, len(refs), size)]


def _is_over(refusal: SlurmError) -> bool:
    """True when all that was refused concerns jobs that are over or, for now, not running."""
    return all(any(text in line.lower() for text in _OVER) for line in refusal.message.splitlines())


_OVER = (
    "invalid job id",
    "already completing or completed",
    "no error",  # elements of the same call that were not refused
    "not running",
    "job is pending execution",
    "no active jobs match all job filters",
    "job has already finished",
)
