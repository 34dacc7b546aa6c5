"""The part of `Client` that checks and submits experiments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        """Return the checked plan of a submission, for `submit`; nothing is queued. The arguments
        and errors are as in `submit`.

        Example:
            from pathlib import Path

            from detslurm.sdk import Client

            Path("train.py").write_text("print('trained')")
            config = {
                "name": "grid",
                "entrypoint": "python3 train.py",
                "hyperparameters": {"lr": {"type": "categorical", "vals": [0.1, 0.2]}},
                "searcher": {"name": "grid", "metric": "loss"},
                "slurm": {"slot_type": "cpu"},
            }
            plan = Client().plan(config, cluster="local")
            assert plan.trials == 2
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
        includes: Iterable[os.PathLike[str] | str] = (),
        overrides: Sequence[str] = (),
        template: str | os.PathLike[str] | None = None,
        cluster: str = "auto",
        paused: bool = False,
        method_runner: str | None = None,
        from_checkpoint: str | None = None,
        test_mode: bool = False,
        progress: Callable[[int, int], None] = lambda done, whole: None,
    ) -> Experiment:
        """Create an experiment and queue its jobs, all of them or none, and return the experiment,
        whose `submission` has the ids of its trials and jobs.

        `Client().submit("experiment.yaml", overrides=["searcher.max_trials=8"])` does the same as
        `detslurm submit`.

        Args:
            config: The configuration as a mapping, or the path of a YAML file (`-` is standard
                input), or the result of `plan`: then all arguments but `paused` are ignored.
            context_dir: The directory of the code, which is copied. By default that of the
                configuration file, and the current directory where there is no such file.
            includes: More files and directories to copy beside the code; by default none.
            overrides: Changes of single keys, each as `a.b=YAML`; by default none.
            template: The name or path of a template to merge below the configuration; by default
                none.
            cluster: `slurm`, `local` (this machine), or by default `auto`: Slurm if it is set up.
            paused: Whether the jobs are held until `Experiment.activate`; by default they are not.
            method_runner: For a custom search, the identity of the process that runs its method:
                the search runners pass it. By default none, and a custom search is refused.
            from_checkpoint: The storage id of a checkpoint, or 4 characters or more of its start:
                the trials begin with its weights, and count from 0. By default none.
            test_mode: Whether to try it first: one trial trains one batch (a script one unit of the
                searcher's length), validates and saves. Off by default.
            progress: Called with the packed bytes of the environment and with their whole number,
                where nodes stage it and it was not packed before; by default unused.

        Raises:
            ConfigErrors: If the configuration is wrong; it names every problem with file and line.
            SubmitError: If something else is wrong, or the cluster refuses the job.
            StoreError: If the store can't be used.

        Example:
            from pathlib import Path

            from detslurm.sdk import Client

            Path("train.py").write_text("print('training')")
            config = {
                "name": "first",
                "entrypoint": "python3 train.py",
                "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 10}},
                "slurm": {"slot_type": "cpu"},
            }
            experiment = Client().submit(config, ".", overrides=["description=an example"])
            print(experiment.state)
        """
        from detslurm.sdk.experiments.experiment import Experiment
        from detslurm.sdk.submission.planning import Plan
        from detslurm.sdk.submission.submit import submit

        plan = config
        if not isinstance(plan, Plan):
            plan = self.plan(
                plan,
                context_dir,
                includes=includes,
                overrides=overrides,
                template=template,
                cluster=cluster,
                method_runner=method_runner,
                from_checkpoint=from_checkpoint,
                test_mode=test_mode,
            )
        done = submit(plan, self.store, paused=paused, progress=progress)
        return Experiment(self.queues, self.store.experiment(done.experiment_id), done)

    def import_bundle(
        self,
        path: os.PathLike[str] | str,
        *,
        progress: Callable[[int, int], None] = lambda done, whole: None,
    ) -> Imported:
        """Return the new ids of an experiment from a file (`path`) that `Experiment.bundle` has
        made.

        Its checkpoints go to the storage of this store. Every byte is checked, and it is there as a
        whole or not at all. Nothing in it is executed or unpickled; to load its checkpoints or run
        its code later is to trust its maker. It is a `BundleError` if it is no bundle, or is
        damaged, or does not fit. `progress` is called with the unpacked and stored bytes and with
        their whole number; by default unused.
        """
        from detslurm.config import load_site
        from detslurm.sdk.bundle.importing import import_bundle

        store = Store.open(self.store.path)
        return import_bundle(Path(path), store, load_site(), progress)
