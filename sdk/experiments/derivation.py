"""Experiments that come from another experiment: continued, forked, run again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from detslurm.sdk.experiments.base import ExperimentBase

if TYPE_CHECKING:
    from detslurm.sdk.bundle.writing import Bundled
    from detslurm.sdk.submission.planning import Plan

Config = Mapping[str, Any] | str | os.PathLike[str]


class DerivedExperiments(ExperimentBase):
    """The part of `Experiment` from which new experiments come."""

    def continue_(
        self,
        overrides: Sequence[str] = (),
        *,
        config: Config | None = None,
        trial_id: int | None = None,
        context_dir: os.PathLike[str] | str | None = None,
        includes: Iterable[os.PathLike[str] | str] = (),
        cluster: str | None = None,
        paused: bool = False,
        method_runner: str | None = None,
    ) -> Self:
        """Continue a finished, canceled or failed experiment from its latest checkpoints, and
        return a new experiment.

        Its trials go on counting: their curves begin with the reports up to the checkpoint. The
        other arguments and errors are as in `Client.submit`; its `submission` has the ids of its
        trials and jobs.

        Args:
            overrides: Changes of single keys, each as `a.b=YAML`; by default none. A COMPLETED
                experiment needs something to go on with, such as a longer `searcher.max_length`.
            config: A mapping, or the path of a YAML file, to merge over this one's configuration;
                by default none.
            trial_id: Continue this trial alone, with its hyperparameters; by default all trials,
                or, where results decided, the search: its trials train on if it promotes them.
            context_dir: The directory of the code; by default the code that this experiment ran.
            cluster: `slurm`, `local` or `auto`; by default that of this experiment.
            method_runner: For a custom search, which process runs its method; by default none.
        """
        from detslurm.sdk.submission.derived_plan import Changes, plan_continuation

        changes = Changes(config, overrides, context_dir, includes, cluster, method_runner)
        plan = plan_continuation(self._snapshot, self._queues, changes, trial_id)
        return self._submit(plan, paused)

    def fork(
        self,
        overrides: Sequence[str] = (),
        *,
        config: Config | None = None,
        from_checkpoint: str | None = None,
        context_dir: os.PathLike[str] | str | None = None,
        includes: Iterable[os.PathLike[str] | str] = (),
        cluster: str | None = None,
        paused: bool = False,
    ) -> Self:
        """Return a new experiment with this one's configuration and code, but for changes; the
        other arguments and errors are as in `continue_`.

        `from_checkpoint` is the storage id of a checkpoint, or 4 characters or more of its start:
        the trials begin with its weights, and count from 0. By default they begin as this
        experiment's did, and a single trial with a copy of its outputs.
        """
        from detslurm.sdk.submission.derived_plan import Changes, plan_copy

        changes = Changes(config, overrides, context_dir, includes, cluster)
        plan = plan_copy(self._snapshot, self._queues, changes, "fork", from_checkpoint)
        return self._submit(plan, paused)

    def rerun(
        self,
        overrides: Sequence[str] = (),
        *,
        config: Config | None = None,
        cluster: str | None = None,
        paused: bool = False,
    ) -> Self:
        """Return a new run from the beginning, with the same configuration, code and seeds, with
        arguments and errors as in `continue_`."""
        from detslurm.sdk.submission.derived_plan import Changes, plan_copy

        changes = Changes(config, overrides, cluster=cluster)
        plan = plan_copy(self._snapshot, self._queues, changes, "rerun")
        return self._submit(plan, paused)

    def bundle(
        self,
        path: os.PathLike[str] | str,
        *,
        checkpoints: Literal["all", "best", "latest", "none"] = "best",
        progress: Callable[[int, int], None] = lambda done, whole: None,
    ) -> Bundled:
        """Return a new file with the finished experiment, for `Client.import_bundle` elsewhere.

        Secrets of the configuration are left out. Code and logs are in it as they are. Raises
        `BundleError` if the experiment is not finished, belongs to another user, or can't be read,
        or if the file exists.

        Args:
            path: The file to make, `.tar.gz`, `.tgz` or `.tar`.
            checkpoints: All, by default the best of the experiment, the latest of each trial, or
                none.
            progress: Called with the bytes that were read, and all bytes; by default unused.
        """
        from detslurm.sdk.bundle.writing import bundle

        return bundle(self._snapshot, Path(path).absolute(), checkpoints, progress)

    def _submit(self, plan: Plan, paused: bool) -> Self:
        from detslurm.sdk.submission.submit import submit

        for warning in plan.warnings:
            self._queues.warn(warning)
        store = self._directory.store
        done = submit(plan, store, paused=paused)
        return type(self)(self._queues, store.experiment(done.experiment_id), done)
