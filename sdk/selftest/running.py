"""Runs a selftest: asks the site, submits the jobs, waits, and removes all traces."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from detslurm import __version__
from detslurm._base.access import user_name
from detslurm.config import load_experiment, load_site
from detslurm.config.templates import packaged
from detslurm.sdk.client import Client
from detslurm.sdk.container_check import examine_container
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.probe_job import scratch_folder
from detslurm.sdk.selftest.checks import (
    SelfCheck,
    controller_check,
    others_check,
    site_checks,
    store_refusal,
    story_check,
    traces_check,
)
from detslurm.sdk.selftest.facts import NodesJobFacts, SiteFacts
from detslurm.sdk.selftest.nodes_checks import nodes_checks
from detslurm.sdk.selftest.nodes_job import ask_nodes
from detslurm.sdk.selftest.stories import displaces, stories
from detslurm.sdk.selftest.story_runs import StoryRuns
from detslurm.sdk.submission.planning import jobs_within
from detslurm.slurm import Cluster, JobRequest, NodeInfo, SlurmError, command
from detslurm.slurm.selftest_queries import is_script, lists_partitions, slurm_version

_FEW_NODES: Final = 4  # are asked unless all are
_START_SECONDS: Final = 300.0
_END_SECONDS: Final = 90.0
Notify = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class SelfTestReport:
    """The table of a selftest, and where and when it was made."""

    cluster: str
    slurm: str  # its version; "" if unknown
    detslurm: str  # its version
    date: str  # local time of the end, with its time zone
    user: str
    host: str
    pool: str  # "" if unknown
    seconds: float
    checks: tuple[SelfCheck, ...]
    calls: Mapping[str, int] = field(default_factory=dict)  # of each program of Slurm, from here
    job_calls: int = 0  # of them from jobs, at least
    jobs: int = 0  # and elements of arrays
    files: int = 0  # and directories, all of which were removed

    @property
    def broken(self) -> bool:
        """Whether anything is broken."""
        return any(check.verdict == "broken" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"healthy": not self.broken, **asdict(self)}


def selftest(
    connect: Callable[[], Cluster],
    root: Path,
    *,
    pool: str | None = None,
    full: bool = False,
    image: str | None = None,
    timeout: float = 900.0,
    notify: Notify = lambda message: None,
) -> SelfTestReport:
    """Try a cluster with a dozen short jobs, and return what they found.

    All files lie for a while in the store (`root`). Only some nodes of the partition are asked, by
    default that of experiments, all with `full`. An `image`, as in `environment.image`, is tried as
    a container. Jobs that have not ended after `timeout` seconds are cancelled.

    Raises `LifecycleError` without Slurm, `SlurmError` if Slurm does not answer at all,
    `ConfigErrors` if the site profile is wrong.
    """
    cluster = connect()
    if cluster.name != "slurm":
        raise LifecycleError("a selftest tries a Slurm cluster, and here is none")
    test = _SelfTest(cluster, root, time.monotonic() + timeout, notify)
    return test.run(pool, full=full, image=image)


class _SelfTest:
    """One selftest: its cluster, its deadline, and what it has counted."""

    def __init__(self, cluster: Cluster, root: Path, deadline: float, notify: Notify) -> None:
        self.cluster, self.root, self.notify = cluster, root, notify
        self.begun, self.deadline = time.monotonic(), deadline
        self.answers: list[float] = []
        self.checks: list[SelfCheck] = []
        self.left: Sequence[str] = ()
        self.jobs = self.job_calls = self.files = 0

    def run(self, pool: str | None, *, full: bool, image: str | None) -> SelfTestReport:
        before = dict(command.calls)
        template = self._template(pool)
        limits = self.cluster.limits()
        pool = template.partition or limits.default_partition
        site = self._site(pool, template)
        self._add(site_checks(site))
        folder = None
        try:
            with scratch_folder(self.root, "selftest-") as folder:
                self._in_folder(folder, site, template, full=full)
        except OSError as error:
            self._add([store_refusal(error)])
        self._add([*self._container(image, pool), controller_check(self.answers)])
        self._add([traces_check(folder if folder and folder.exists() else None, self.left)])
        after = command.calls
        return SelfTestReport(
            cluster=limits.cluster or "?",
            slurm=slurm_version() or "",
            detslurm=__version__,
            date=datetime.now().astimezone().isoformat(" ", "seconds"),
            user=user_name(),
            host=os.uname().nodename,
            pool=pool or "",
            seconds=round(time.monotonic() - self.begun, 1),
            checks=tuple(self.checks),
            calls={name: n - before.get(name, 0) for name, n in after.items()},
            job_calls=self.job_calls,
            jobs=self.jobs,
            files=self.files,
        )

    def _add(self, checks: Sequence[SelfCheck] | Iterator[SelfCheck]) -> None:
        for check in checks:
            self.checks.append(check)
            self.notify(f"{check.name}: {check.verdict} ({check.figure})")

    def _template(self, pool: str | None, nodes: int = 1) -> JobRequest:
        """A job as experiments here have it, with one slot on each node: a GPU where there are."""
        config = {
            "name": "selftest",
            "entrypoint": "true",
            "searcher": {"name": "single", "metric": "none", "max_length": 1},
            "resources": {
                "slots_per_trial": nodes,
                **({"resource_pool": pool} if pool else {}),
            },
            "slurm": {"slots_per_node": 1},
        }
        site = load_site()
        loaded = load_experiment(config, site=site, root=self.root)
        with self._timed():
            return jobs_within(loaded.config, site, self.cluster, 1)[1].template

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self.answers.append(time.monotonic() - begun)

    def _site(self, pool: str | None, template: JobRequest) -> SiteFacts:
        nodes: Sequence[NodeInfo] = ()
        with suppress(SlurmError), self._timed():
            nodes = self.cluster.nodes()
        memory = {}
        for option in ("--mem", "--mem-per-cpu"):
            memory[option] = self._refusal(template, f"{option}=100M")
        with self._timed():
            listed = lists_partitions(pool.split(",")) if pool else None
        return SiteFacts(
            limits=self.cluster.limits(),
            pool=pool,
            sbatch=shutil.which("sbatch"),
            is_script=is_script("sbatch"),
            listed=listed,
            memory=memory,
            nodes=tuple(n for n in nodes if {*(pool or "").split(",")} & {*n.partitions}),
        )

    def _refusal(self, template: JobRequest, option: str) -> str | None:
        request = template.with_changes(
            name="detslurm-selftest",
            command=("true",),
            folder=Path("/dev/shm"),
            sbatch_args=(*template.sbatch_args, option),
        )
        try:
            with self._timed():
                self.cluster.check(request)
        except SlurmError as refusal:
            return None if command.is_transient(refusal.message) else refusal.message
        return ""

    def _in_folder(
        self, folder: Path, site: SiteFacts, template: JobRequest, *, full: bool
    ) -> None:
        count, others = nodes_to_ask(site, full=full)
        if others:
            self._add([others_check(others)])
        patience = min(_START_SECONDS, (self.deadline - self.begun) / 3)
        whole = self._template(site.pool, count)
        job = ask_nodes(self.cluster, whole, folder, patience=patience, notify=self.notify)
        self.jobs += 1 + len(job.lacking)
        self.job_calls += job.found.calls if job.found is not None else 0
        self._add(nodes_checks(job))
        self._stories(folder, site, template, job)
        self.files = sum(len(names) + len(files) for _, names, files in os.walk(folder))

    def _stories(
        self, folder: Path, site: SiteFacts, template: JobRequest, job: NodesJobFacts
    ) -> None:
        """Submit all experiments, wait for them, and end what goes on."""
        code = folder / "code"
        code.mkdir()
        (code / "train.py").write_text(packaged("", ".py")["selftest"])
        client = Client(folder / "store", warn=lambda text: None, connect=lambda name: self.cluster)
        given = {"account": template.account, "qos": template.qos}
        wanted = stories(
            site.limits, site.pool, site.nodes, folder,
            mpi=importlib.util.find_spec("mpi4py") is not None,
            options="".join(f" --{name}={value}" for name, value in given.items() if value),
        )  # fmt: skip
        runs = StoryRuns(client, code, folder / "checkpoints", template.sbatch_args)
        try:
            for story in wanted:
                runs.submit(story, site.pool, _unfit(job))
            self.notify(f"{len(runs.open)} experiments run. Ctrl-C cancels them.")
            for story, facts in runs.wait(self.deadline):
                self._add([story_check(story, facts)])
        finally:
            self._end(runs, folder / "preemptor", job.job_id)

    def _end(self, runs: StoryRuns, preemptor: Path, asking: str) -> None:
        """Cancel what goes on, and wait until no job is left that could write."""
        lines = preemptor.read_text().split() if preemptor.exists() else []
        raised = [line.partition(";")[0] for line in lines]
        with suppress(SlurmError):  # before the trial leaves its node to others
            self.cluster.cancel(raised)
        ids = [*filter(None, [asking]), *runs.end(), *raised]
        self.jobs += runs.job_count + len(raised)
        self.job_calls += runs.job_calls
        self.left = ids
        for wait in command.backoff(_END_SECONDS):
            with suppress(SlurmError):
                found = self.cluster.query(ids)
                self.left = [ref for ref, job in found.items() if not job.final]
            if not self.left:
                return
            time.sleep(wait)

    def _container(self, image: str | None, pool: str | None) -> Iterator[SelfCheck]:
        if image is None:
            text = "not tried: no image was given"
            yield SelfCheck("container", "unknown", text, "--container IMAGE tries one.")
            return
        self.jobs += 1
        for found in examine_container(
            image, lambda: self.cluster, self.root, pool=pool, notify=self.notify
        ):
            verdict = found.level if found.level != "note" else "unknown"
            yield SelfCheck(f"container: {found.area}", verdict, found.text, found.advice)


def nodes_to_ask(site: SiteFacts, *, full: bool) -> tuple[int, int]:
    """How many nodes the job asks; how many it must leave out though all are to be asked.

    It waits for no node that is full, starts none that is powered down, and no job of another user
    gives way to it.
    """
    pool = site.limits.partition(site.pool)
    up = [node for node in site.nodes if node.available]
    fit = [node for node in up if node.slots_free and "POWERED_DOWN" not in node.state]
    if displaces(site.limits, pool):
        fit = [node for node in fit if node.state.split("+")[0] == "IDLE"]
    count = len(up) or (len(pool.nodes) if pool is not None else 1) or 1
    limit = pool.max_nodes if pool is not None else None
    most = min(count, limit or count, max(len(fit), 1) if up else _FEW_NODES)
    return (most, count - most) if full else (min(most, _FEW_NODES), 0)


def _unfit(job: NodesJobFacts) -> list[str]:
    """Nodes on which no experiment could run."""
    if job.found is None:
        return list(job.lacking)
    bad = [a.node for a in job.found.answers if a.facts is None or a.facts.store is not None]
    return [*job.lacking, *bad]
