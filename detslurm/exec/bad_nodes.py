"""Nodes that fail at once while other nodes work: recorded, and avoided by the next jobs.

A node with a broken device, mount or temporary directory fails in seconds, is idle first, and gets
the next job. Only other runs of the same experiment are evidence against a node: where nothing
works, the code is to blame, and no node is excluded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from msgspec import structs

from detslurm._base.states import COMPLETED, ERROR, INVALID_HP, OUT_OF_OPS, RESTART
from detslurm.exec.adoption import DIED
from detslurm.exec.intents import Intents
from detslurm.exec.text_log import print_message
from detslurm.jobs.resubmit import NeverSubmitted, excluded_nodes
from detslurm.slurm import Cluster, JobInfo, SlurmError
from detslurm.store import RunView, TrialView, fold_trial, fs
from detslurm.store.records import Deferred, NodeFailed

# After so many failed runs or jobs a node is excluded for the experiment.
_FAILURES = 3
# So many jobs may be tried for a trial that never begins.
_JOBS = 4
# So long other runs are waited for, to show whether they fail, too; and so often they are read.
_PATIENCE, _PAUSE = 10.0, 2.0
# So much longer than twice the time of a failed run another one lasts that works.
_MARGIN = 3.0
# So many other trials are read as evidence, the nearest first.
_TRIALS = 64


class _Share(NamedTuple):
    """Trials (indices) that one job works for, and how many its kind works for at most."""

    trials: range
    each: int


class BadNodes:
    """One runner's view of the nodes of its experiment."""

    def __init__(self, intents: Intents, cluster: Callable[[], Cluster]) -> None:
        self._intents, self._cluster = intents, cluster

    # -- runs that failed before their first report ----------------------------------------------

    def is_to_blame(
        self,
        node: str,
        trial: TrialView,
        seconds: float,
        *,
        is_own_error: bool,
        wait: Callable[[float], object] = time.sleep,
    ) -> bool:
        """Whether a trial's newest run failed because of its node, and record that.

        `seconds`: how long the run lasted. `wait` passes so many seconds, or less if something else
        has to be done.
        """
        self._intents.refresh()
        failed = NodeFailed(node=node, runs=((trial.id, trial.runs[-1].number),))
        if self._intents.facts.nodes_failed_by(trial.id) - {node}:
            self._append(failed)
            return False  # the trial fails everywhere
        if sum(run.outcome == RESTART and node in _nodes(run) for run in trial.runs) > _FAILURES:
            return False  # it comes back, whatever is excluded
        runs, working = self._evidence(failed, seconds, wait)
        size = len(_nodes(trial.runs[-1]))
        if len(working - {node}) < size:
            return False  # without it there may not be enough
        if not _is_suspect(node, [*runs, *trial.runs[:-1]], is_own_error):
            return False
        self._append(failed)
        self._exclude_nodes(working, size=size)
        return True

    def _evidence(
        self, failed: NodeFailed, seconds: float, wait: Callable[[float], object]
    ) -> tuple[list[RunView], set[str]]:
        """The runs of other trials, and the nodes that work; waits until those runs show it."""
        node, ((trial_id, number),) = failed.node, failed.runs
        until = time.monotonic() + _PATIENCE
        while True:
            others = list(self._runs_of_others(trial_id))
            at_work = [run for _, run in others if run.outcome is None]
            # By the clock of the file server: those of nodes may differ by hours.
            then = fs.time_there(self._intents.experiment.store.path) if at_work else None
            works = (run for t, run in others if self._works(t, run, seconds, then))
            working = {name for run in works for name in _nodes(run)}
            failed_runs = self._intents.facts.failed_runs
            undecided = any(
                node not in _nodes(run) and (t, run.number) not in failed_runs
                for t, run in others
                if run.outcome is None
            )
            now = time.monotonic()
            # Where so many have failed and nothing works, no run waits, and no log has a line.
            waits = undecided and now < until and len(failed_runs) < _TRIALS
            if working - {node} or not waits:
                return [run for _, run in others], working
            if (trial_id, number) not in failed_runs:
                # Runs that failed elsewhere wait as this one does: they must not seem to last.
                self._append(structs.replace(failed, suspected=True))
            wait(_PAUSE)
            self._intents.refresh()
            if time.monotonic() - now < _PAUSE / 2:  # a signal has come
                until = now

    def _runs_of_others(self, trial_id: int) -> Iterator[tuple[int, RunView]]:
        experiment, facts = self._intents.experiment, self._intents.facts
        ids = (t for t in facts.trial_ids if t != trial_id and t not in facts.lost)
        for trial in sorted(ids, key=lambda t: abs(t - trial_id))[:_TRIALS]:
            yield from ((trial, run) for run in fold_trial(experiment.trial(trial)).runs)

    def _works(self, trial_id: int, run: RunView, seconds: float, now: float | None) -> bool:
        """Whether a run has done something, or lasts for longer than a run that failed at once."""
        if _has_worked(run) or run.outcome is not None:
            return _has_worked(run)
        if (trial_id, run.number) in self._intents.facts.failed_runs:
            return False
        begun = fs.modified(self._intents.experiment.trial(trial_id).start_path(run.number))
        return begun is not None and now is not None and now - begun > 2 * seconds + _MARGIN

    # -- jobs that died before their first run ---------------------------------------------------

    def return_unbegun(self) -> bool:
        """Let trials wait for another job where theirs died before a run; whether any do."""
        shares = {ref: share for ref, share in self._shares() if self._may_return(share.trials)}
        try:
            seen = self._query(shares) if shares else {}
        except SlurmError as error:
            print_message(f"can't look for jobs that died: {error}")
            return False
        died = {ref: job for ref, job in seen.items() if ref in shares and job.state in DIED}
        if not died:
            return False
        # The nodes first: who submits these trials has to know which to avoid.
        begun = (job for r, job in seen.items() if r not in shares and job.state not in DIED)
        self.record_jobs(died, seen, {node for job in begun for node in job.nodes})
        return self._return({ref: shares[ref] for ref in died})

    def _query(self, refs: Collection[str]) -> dict[str, JobInfo]:
        """Ask the queue for all jobs, and accounting for these if they have left the queue."""
        facts, cluster = self._intents.facts, self._cluster()
        seen = cluster.query([job.job_id for job in facts.jobs])
        gone = [ref for ref in refs if ref not in seen]
        if gone:
            seen = {**cluster.evidence(gone, since=facts.created.time), **seen}
        folder = str(self._intents.experiment.jobs)
        return {ref: job for ref, job in seen.items() if not job.is_foreign_to(folder)}

    def _shares(self) -> Iterator[tuple[str, _Share]]:
        """The newest job of each trial, by its ref, with the trials that it works for."""
        newest: dict[int, tuple[str, int]] = {}
        for job in self._intents.facts.jobs:
            refs = job.refs
            for offset in range(job.count):
                newest[job.first_index + offset] = refs[offset // job.each], job.each
        for (ref, each), indices in groupby(sorted(newest), newest.__getitem__):
            first, *more = indices
            yield ref, _Share(range(first, first + 1 + len(more)), each)

    def _may_return(self, share: range) -> bool:
        facts, experiment = self._intents.facts, self._intents.experiment
        if not facts.unsubmitted.isdisjoint(share) or not facts.adopted.keys().isdisjoint(share):
            return False
        ids = [facts.trial_ids[index] for index in share]
        if all(self._intents.cause_for(trial) is not None for trial in ids):
            return False
        if any(fs.exists(experiment.trial(trial).start_path(1)) for trial in ids):
            return False
        return sum(share.start in job.indices for job in facts.jobs) < _JOBS

    def _return(self, shares: Mapping[str, _Share]) -> bool:
        """Record it, where no other runner has done so meanwhile; whether anything was recorded."""
        done = False
        for ref, share in shares.items():
            trials = share.trials
            if dict(self._shares()).get(ref) != share or not self._may_return(trials):
                continue
            fact = Deferred(first_index=trials.start, count=len(trials), each=share.each)
            done |= self._intents.experiment.append_next(fact, self._intents.facts.count)
            self._intents.refresh()
        return done

    def record_jobs(
        self, died: Mapping[str, JobInfo], seen: Mapping[str, JobInfo], working: set[str]
    ) -> None:
        """Record jobs that died before their first run, by node.

        `seen` has all jobs of the experiment, `working` the nodes where others began their work.
        """
        by_node: dict[str, list[str]] = {}
        for ref, job in died.items():
            if len(job.nodes) == 1:  # of several nodes any may be to blame
                by_node.setdefault(job.nodes[0], []).append(ref)
        for node, refs in by_node.items():
            if working - {node}:
                self._append(NodeFailed(node=node, jobs=tuple(refs)))
        self._exclude_nodes(working, seen)

    # -- what follows ----------------------------------------------------------------------------

    def _append(self, fact: NodeFailed) -> None:
        self._intents.experiment.append(fact, self._intents.facts.count)
        self._intents.refresh()

    def _exclude_nodes(
        self, working: set[str], seen: Mapping[str, JobInfo] | None = None, *, size: int = 1
    ) -> None:
        """Exclude the nodes that fail again and again; never more nodes than work, and never so
        many that fewer than `size` are left of these."""
        facts, new = self._intents.facts, []
        for node, failures in facts.failing_nodes.items():
            left = len(working - facts.excluded - {node})
            full = len(facts.excluded) >= left or left < size
            if node in facts.excluded or failures < _FAILURES or full:
                continue
            print_message(f"{node} fails while other nodes work: new jobs avoid it")
            self._append(NodeFailed(node=node, excluded=True))
            new.append(node)
        if new:
            self._keep_waiting_jobs_away(seen)

    def _keep_waiting_jobs_away(self, seen: Mapping[str, JobInfo] | None) -> None:
        """Let jobs that wait in the queue avoid the excluded nodes, too."""
        experiment, facts = self._intents.experiment, self._intents.facts
        try:
            if seen is None:
                seen = self._cluster().query([job.job_id for job in facts.jobs])
            names = excluded_nodes(experiment.facts(), experiment)
            folder = str(experiment.jobs)
            waiting = (r for r, j in seen.items() if j.waiting and not j.is_foreign_to(folder))
            ids = dict.fromkeys(ref.partition("_")[0] for ref in waiting)
            for job_id in ids if names else ():
                self._update(job_id, names)
        except (SlurmError, NeverSubmitted) as error:  # their runs go elsewhere once they failed
            print_message(f"waiting jobs may still start there: {error}")

    def _update(self, job_id: str, nodes: str) -> None:
        try:
            self._cluster().update(job_id, ExcNodeList=nodes)
        except SlurmError as refusal:
            if "no error" not in refusal.message.lower():  # for those elements that wait
                raise


def _nodes(run: RunView) -> list[str]:
    return list(run.job.nodes)


def _has_worked(run: RunView) -> bool:
    advanced = run.reported_steps > 0 or run.steps > run.resumed_steps
    return advanced or run.outcome in (COMPLETED, INVALID_HP, OUT_OF_OPS)


def _is_suspect(node: str, runs: list[RunView], is_own_error: bool) -> bool:
    """Whether nothing works on a node, or nothing any more.

    A run that fails where others worked is tried there once more; an error of the code there is
    the code's.
    """
    here = [run for run in runs if node in _nodes(run)]
    judged = [run for run in here if _has_worked(run) or run.outcome in (RESTART, ERROR)]
    if not any(map(_has_worked, judged)):
        return True
    newest = max(judged, key=lambda run: run.started or 0.0)
    return not _has_worked(newest) and not is_own_error
