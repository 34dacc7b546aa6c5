"""Nodes that fail at once while other nodes work: recorded, and avoided by the next jobs.

A node with a broken device, mount or temporary directory fails in seconds, is idle first, and gets
the next job. Only other runs of the same experiment are evidence against a node: where nothing
works, the code is to blame, and no node is excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from detslurm._states import COMPLETED, ERROR, INVALID_HP, OUT_OF_OPS, RESTART
from detslurm.exec.adoption import DIED
from detslurm.exec.intents import Intents
from detslurm.exec.text_log import print_message
from detslurm.slurm import Cluster, JobInfo, SlurmError
from detslurm.slurm.resubmit import NeverSubmitted, excluded_nodes
from detslurm.store import RunView, TrialView, fold_trial
from detslurm.store.records import Deferred, NodeFailed

# After so many failures of different trials or jobs a node is excluded for the experiment.
_FAILURES = 3
# So many jobs may be tried for a trial that never begins.
_JOBS = 4
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

    def is_to_blame(self, node: str, trial: TrialView, *, is_own_error: bool) -> bool:
        """Whether a trial's newest run failed because of its node, and record that.

        Args:
            node: Where it failed before its first report.
            trial: The trial.
            is_own_error: Whether the failure looks like an error of the code.
        """
        self._intents.refresh()
        failures = self._intents.facts.node_failures
        if any(trial.id in failed for other, failed in failures.items() if other != node):
            self._append(NodeFailed(node=node, trials=(trial.id,)))
            return False  # the trial fails everywhere
        runs = [*self._runs_of_others(trial.id), *trial.runs[:-1]]
        working = {name for run in runs if _has_worked(run) for name in _nodes(run)}
        if not working - {node} or not _is_suspect(node, runs, is_own_error):
            return False
        self._append(NodeFailed(node=node, trials=(trial.id,)))
        self._exclude_nodes(working)
        return True

    def _runs_of_others(self, trial_id: int) -> Iterator[RunView]:
        experiment, ids = self._intents.experiment, self._intents.facts.trial_ids
        others = sorted((t for t in ids if t != trial_id), key=lambda t: abs(t - trial_id))
        for trial in others[:_TRIALS]:
            yield from fold_trial(experiment.trial(trial)).runs

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
        begun = (job for ref, job in seen.items() if ref not in shares)
        self.record_jobs(died, seen, {node for job in begun for node in job.nodes})
        return self._return({ref: shares[ref] for ref in died})

    def _query(self, refs: Collection[str]) -> dict[str, JobInfo]:
        """What the queue knows of all jobs, and accounting of these if they have left the queue."""
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
        if sum(share.start in job.indices for job in facts.jobs) >= _JOBS:
            return False
        ids = [facts.trial_ids[index] for index in share]
        wanted = any(self._intents.cause_for(trial) is None for trial in ids)
        return wanted and all(experiment.trial(trial).start(1) is None for trial in ids)

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

        Args:
            died: These jobs.
            seen: What is known of all jobs of the experiment.
            working: The nodes on which other jobs began their work.
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

    def _exclude_nodes(self, working: set[str], seen: Mapping[str, JobInfo] | None = None) -> None:
        """Exclude the nodes that fail again and again; never more nodes than work."""
        facts, new = self._intents.facts, []
        for node, failures in facts.failing_nodes.items():
            full = len(facts.excluded) >= len(working - facts.excluded - {node})
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
            names = ",".join(excluded_nodes(experiment.facts(), experiment))
            folder = str(experiment.jobs)
            waiting = (r for r, j in seen.items() if j.waiting and not j.is_foreign_to(folder))
            ids = dict.fromkeys(ref.partition("_")[0] for ref in waiting)
            for job_id in ids:
                self._cluster().update(job_id, ExcNodeList=names)
        except (SlurmError, NeverSubmitted) as error:  # their runs go elsewhere once they failed
            print_message(f"waiting jobs may still start there: {error}")


def _nodes(run: RunView) -> list[str]:
    return list(run.job.get("nodes") or ())


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
