"""The part of `Client` that checks and submits experiments.

Methods import the modules that do their work: lists and the queue load few of them (tests/perf).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from detslurm.sdk import settings
from detslurm.sdk.jobs.queues import Queues
from detslurm.slurm import SlurmError
from detslurm.store import Store

if TYPE_CHECKING:
    from detslurm.config.yaml_node import YamlNode
    from detslurm.sdk.bundle.importing import Imported
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.submission.planning import Plan

Config = Mapping[str, Any] | str | os.PathLike[str]
"""A configuration, or the path of a file with one (`-`: standard input)."""


class PlanOptions(TypedDict, total=False):
    """The options of `Client.plan`, which `Client.submit` takes, too."""

    includes: Iterable[os.PathLike[str] | str]
    overrides: Sequence[str]
    template: str | os.PathLike[str] | None
    cluster: str
    method_runner: str | None
    from_checkpoint: str | None
    test_mode: bool


class Submitting:
    """A store and its queues, into which experiments are submitted."""

    store: Store
    queues: Queues
    warn: Callable[[str], None]

    def plan(
        self,
        config: Config | YamlNode,
        context_dir: os.PathLike[str] | str | None = None,
        *,
        includes: Iterable[os.PathLike[str] | str] = (),
        overrides: Sequence[str] = (),
        template: str | os.PathLike[str] | None = None,
        cluster: str = "auto",
        method_runner: str | None = None,
        from_checkpoint: str | None = None,
        test_mode: bool = False,
    ) -> Plan:
        """Return the checked plan of a submission, for `submit`; nothing is queued.

        Args:
            config: The configuration as a mapping, or the path of a YAML file (`-`: standard
                input).
            context_dir: The directory of the code, which is copied; by default that of the file,
                or the current directory.
            includes: More files and directories to copy beside the code; by default none.
            overrides: Changes of single keys, each as `a.b=YAML`; by default none.
            template: A template's name or path, merged below `config`; by default none.
            cluster: `slurm`, `local` (this machine), or by default `auto`: Slurm if it is set up.
            method_runner: The process that runs the method of a custom search, given by search
                runners; by default none, and a custom search is refused.
            from_checkpoint: A checkpoint's storage id, or its first 4 characters or more: trials
                begin with its weights, and count from 0. By default none.
            test_mode: Whether one trial trains one batch (a script one unit of the searcher's
                length), validates and saves; off by default.

        Raises:
            ConfigErrors: If the configuration is wrong; it names every problem with file and line.
            SubmitError: If something else is wrong, or the cluster would refuse the job.
            StoreError: If the store can't be used.
        """
        with contextlib.ExitStack() as asked:
            # It answers while all that follows is read; faults there are reported first.
            with contextlib.suppress(SlurmError):
                asked.enter_context(self.queues.cluster(cluster).expecting_limits())
            from detslurm.config import load_experiment, load_site
            from detslurm.config.yaml_node import YamlNode
            from detslurm.sdk.submission.first_points import with_named_trials
            from detslurm.sdk.submission.planning import make_plan
            from detslurm.sdk.submission.sources import checkpoint_id
            from detslurm.sdk.submission.submit import check

            site = load_site()
            overrides = settings.as_list("overrides", overrides)
            source: Mapping[str, Any] | YamlNode | str
            source = config if isinstance(config, Mapping | YamlNode) else os.fspath(config)
            named = None if template is None else os.fspath(template)
            root = self.store.path
            if from_checkpoint is not None:
                uuid = checkpoint_id(self.store, from_checkpoint)
                overrides = [*overrides, f"searcher.source_checkpoint_uuid={uuid}"]
            loaded = load_experiment(
                source, overrides=overrides, template=named, site=site, root=root
            )
            store = Store.open(root)
            loaded = with_named_trials(loaded, store)
            if test_mode:
                from detslurm.config.test_mode import in_test_mode

                loaded = in_test_mode(loaded)
            if context_dir is None:
                in_file = isinstance(source, str) and source != "-"
                context_dir = Path(str(source)).parent if in_file else Path.cwd()
            made = make_plan(
                loaded,
                Path(context_dir),
                [Path(path) for path in settings.as_list("includes", includes)],
                cluster=self.queues.cluster(cluster),
                site=site,
                store=store,
                method_runner=method_runner,
            )
            for warning in made.warnings:
                self.warn(warning)
            for warning in check(made, store):
                self.warn(warning)
            if test_mode:
                from detslurm.sdk.submission.argument_checks import refuse_flags

                refuse_flags(made.config, made.context, Path(context_dir))
        return made

    def submit(
        self,
        config: Config | Plan,
        context_dir: os.PathLike[str] | str | None = None,
        *,
        paused: bool = False,
        progress: Callable[[int, int], None] = lambda done, whole: None,
        **options: Unpack[PlanOptions],
    ) -> Experiment:
        """Create an experiment and queue its jobs, all of them or none, and return the experiment,
        whose `submission` has the ids of its trials and jobs. Other arguments and errors are as in
        `plan`; an unknown argument is a `TypeError`, also beside a plan.

        Args:
            config: As for `plan`, or its result: then all arguments but `paused` are ignored.
            paused: Whether the jobs are held until `Experiment.activate`; off by default.
            progress: Called with the packed and all bytes of a new environment that nodes stage;
                by default unused.
            **options: The options of `plan`.

        Example:
            from pathlib import Path

            from detslurm.sdk import Client

            Path("train.py").write_text("print('training')")
            searcher = {"name": "single", "metric": "loss"}
            config = {"name": "first", "entrypoint": "python3 train.py", "searcher": searcher}
            experiment = Client().submit(config, ".", overrides=["description=an example"])
            print(experiment.state)
        """
        from detslurm.sdk.experiments.experiment import Experiment
        from detslurm.sdk.submission.planning import Plan
        from detslurm.sdk.submission.submit import submit

        if unknown := options.keys() - PlanOptions.__optional_keys__:  # also beside a plan
            raise TypeError(f"submit() got unexpected arguments: {', '.join(sorted(unknown))}")
        plan = config if isinstance(config, Plan) else self.plan(config, context_dir, **options)
        done = submit(plan, self.store, paused=paused, progress=progress)
        return Experiment(self.queues, self.store.experiment(done.experiment_id), done)

    def import_bundle(
        self,
        path: os.PathLike[str] | str,
        *,
        progress: Callable[[int, int], None] = lambda done, whole: None,
    ) -> Imported:
        """Return the new ids of an experiment from a file (`path`) of `Experiment.bundle`.

        Its checkpoints go to the storage of this store, all of it or nothing, with every byte
        checked: else it is a `BundleError`. Nothing is executed or unpickled; to load its
        checkpoints or run its code later is to trust its maker. `progress` is called with the
        unpacked and all bytes; by default unused.
        """
        from detslurm.config import load_site
        from detslurm.sdk.bundle.importing import import_bundle

        store = Store.open(self.store.path)
        return import_bundle(Path(path), store, load_site(), progress)
