"""The way into a store from Python: experiments and trials by id, and lists of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm import _env
from detslurm.sdk.queues import Connect, Queues, connector
from detslurm.sdk.snapshot import ExperimentSnapshot, attach_job_status, read
from detslurm.store import ExperimentDir, ExperimentRow, NotFound, Store, StoreError, TrialDir, fs

if TYPE_CHECKING:
    from detslurm.sdk.experiment import Experiment
    from detslurm.sdk.submission.planning import Plan
    from detslurm.sdk.submission.submit import Submission
    from detslurm.sdk.trial import Trial

Config = Mapping[str, Any] | str | os.PathLike[str]
"""A configuration, or the path of a file with one (`-`: standard input)."""


def warn_user(text: str) -> None:
    """Issue a Python warning; how a `Client` reports what is not an error, by default.

    Args:
        text: What the user should know.
    """
    warnings.warn(text, stacklevel=2)


def default_root() -> Path:
    """Return the directory of the store that commands and clients use by default.

    That is DETSLURM_ROOT, else `root` of the site profile, else `~/detslurm`.
    """
    named = os.environ.get(_env.ROOT)
    if named and not named.startswith("~") and "$" not in named:
        return Path(named).absolute()
    from detslurm.config import store_root

    return store_root()


DEFAULT_ORIGIN = "the default"


def root_origin() -> str:
    """Return who decided where `default_root` is, as a phrase for messages."""
    if os.environ.get(_env.ROOT):
        return "by DETSLURM_ROOT"
    from detslurm.config import load_site

    site = load_site()
    return f"by root in {site.source}" if site.root else DEFAULT_ORIGIN


class Client:
    """A store, and the clusters whose queues know its jobs.

    Args:
        root: The directory of the store; by default the one that the commands use. It need not
            exist: the first submission makes it.
        warn: Gets a sentence for everything that the user should know and that is not an error,
            such as a queue that does not answer. By default it becomes a Python warning.
        connect: Gets the name of a cluster and returns it; by default Slurm's commands, or the
            scheduler of this machine.
    """

    def __init__(
        self,
        root: os.PathLike[str] | str | None = None,
        *,
        warn: Callable[[str], None] = warn_user,
        connect: Connect | None = None,
    ) -> None:
        path = Path(root).expanduser().absolute() if root is not None else default_root()
        self._given = root is not None
        # Reading never creates anything: the first submission creates the store.
        self.store = Store(path)
        self.warn = warn
        self.queues = Queues(connect or connector(path), warn)

    def missing(self) -> str | None:
        """Return why there is no store, in a sentence that names the directory and who chose it.

        None if there is a store.
        """
        path = self.store.path
        if fs.exists(path / "experiments", expected=True):
            return None
        origin = "as given" if self._given else root_origin()
        if fs.exists(path) and not path.is_dir():
            return f"{path} ({origin}) is a file, not a store"
        return f"there is no store at {path} ({origin}); the first submission makes one"

    def directory(self, experiment_id: int) -> ExperimentDir:
        """Return the directory of an experiment in the store; a deleted one still has it.

        Args:
            experiment_id: The experiment's id.

        Raises:
            NotFound: If there is no such experiment, or no store.
        """
        if text := self.missing():
            raise NotFound(text)
        return self.store.experiment(experiment_id)

    def experiment(self, experiment_id: int) -> Experiment:
        """Return an experiment as it is now, by the store and the queue.

        Args:
            experiment_id: The experiment's id.

        Raises:
            NotFound: If there is no such experiment, or it was deleted.
            StoreError: If it can't be read.

        Example:
            import detslurm as det
            from detslurm.sdk import Client

            with det.core.init() as core:  # by hand: recorded as experiment 1
                core.train.report_validation_metrics(1, {"loss": 0.5})
            experiment = Client().experiment(1)
            trial = experiment.first_trial()
            assert trial.metrics("validation").metrics == {"loss": [0.5]}
        """
        return self.experiments([experiment_id])[0]

    def experiments(
        self, ids: Iterable[int], *, skip: Callable[[StoreError], None] | None = None
    ) -> list[Experiment]:
        """Return several experiments as they are now, with one query of the queue for all of them.

        Args:
            ids: The experiments' ids.
            skip: Gets the error for each experiment that does not exist or can't be read, which is
                then left out. By default such an error is raised.

        Raises:
            NotFound: If one does not exist or was deleted, and `skip` is not given.
            StoreError: If one can't be read, and `skip` is not given.
        """
        from detslurm.sdk.experiment import Experiment

        found = []
        for number in ids:
            try:
                found.append(self._read(number))
            except StoreError as error:
                if skip is None:
                    raise
                skip(error)
        attach_job_status(found, self.queues)
        return [Experiment(self.queues, one) for one in found]

    def _read(self, number: int) -> ExperimentSnapshot:
        one = read(self.directory(number))
        if one.facts.desired.deleted:
            raise NotFound(f"experiment {number} was deleted")
        return one

    def stored(self, experiment_id: int, *, deleted: bool = False) -> Experiment:
        """Return an experiment as the store alone knows it, without a query of the queue.

        That is enough to change it, and much faster.

        Args:
            experiment_id: The experiment's id.
            deleted: Whether to return a deleted experiment, too; off by default.

        Raises:
            NotFound: If there is no such experiment, or it was deleted.
            StoreError: If it can't be read.
        """
        from detslurm.sdk.experiment import Experiment

        one = read(self.directory(experiment_id))
        if one.facts.desired.deleted and not deleted:
            raise NotFound(f"experiment {experiment_id} was deleted")
        return Experiment(self.queues, one)

    def list_experiments(self, *, archived: bool = False) -> list[ExperimentRow]:
        """Return a row for each experiment, by id; deleted ones are left out.

        Experiments that can't be read are left out, with a warning.

        Args:
            archived: Whether to include archived experiments; off by default.

        Raises:
            NotFound: If there is no store where the user said it is.
        """
        if text := self.missing():
            if self._given or root_origin() != DEFAULT_ORIGIN:
                raise NotFound(text)
            self.warn(text)  # the user never named this store
        found = _rows(self.store, self.queues, self.warn)
        return [row for row in found if row.state != "DELETED" and (archived or not row.archived)]

    def trial(self, trial_id: int) -> Trial:
        """Return a trial as it is now, by the store and the queue.

        Args:
            trial_id: The trial's id.

        Raises:
            NotFound: If there is no such trial.
            StoreError: If its experiment can't be read.
        """
        from detslurm.sdk.trial import Trial

        directory = self._trial(trial_id)
        return Trial(self.experiment(directory.experiment_id), trial_id)

    def stored_trial(self, trial_id: int) -> Trial:
        """Return a trial as the store alone knows it, without a query of the queue.

        Args:
            trial_id: The trial's id.

        Raises:
            NotFound: If there is no such trial.
            StoreError: If its experiment can't be read.
        """
        from detslurm.sdk.trial import Trial

        directory = self._trial(trial_id)
        return Trial(self.stored(directory.experiment_id), trial_id)

    def plan(
        self,
        config: Config,
        context_dir: os.PathLike[str] | str | None = None,
        *,
        includes: Iterable[os.PathLike[str] | str] = (),
        overrides: Sequence[str] = (),
        template: str | os.PathLike[str] | None = None,
        cluster: str = "auto",
        method_runner: str | None = None,
    ) -> Plan:
        """Check a submission as far as it can be checked now; nothing is queued.

        Args:
            config: As for `submit`.
            context_dir: As for `submit`, with the same default.
            includes: As for `submit`; by default nothing.
            overrides: As for `submit`; by default nothing.
            template: As for `submit`; by default none.
            cluster: As for `submit`; by default `auto`.
            method_runner: As for `submit`; by default nobody.

        Returns:
            What would be submitted, for `submit`.

        Raises:
            ConfigErrors: If the configuration is wrong.
            SubmitError: If something else is wrong, or the cluster would refuse the job.
            SlurmError: If the cluster does not answer.
            StoreError: If the store can't be used.

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
        from detslurm.config import load_experiment, load_site
        from detslurm.sdk.submission.planning import make_plan
        from detslurm.sdk.submission.submit import check

        site = load_site()
        source = config if isinstance(config, Mapping) else os.fspath(config)
        named = None if template is None else os.fspath(template)
        root = self.store.path
        loaded = load_experiment(source, overrides=overrides, template=named, site=site, root=root)
        if context_dir is None:
            in_file = isinstance(source, str) and source != "-"
            context_dir = Path(str(source)).parent if in_file else Path.cwd()
        store = Store.open(root)
        made = make_plan(
            loaded,
            Path(context_dir),
            [Path(path) for path in includes],
            cluster=self.queues.cluster(cluster),
            site=site,
            store=store,
            method_runner=method_runner,
        )
        for warning in made.warnings:
            self.warn(warning)
        check(made, store)
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
    ) -> Submission:
        """Create an experiment and queue its jobs: all of them, or nothing at all.

        `Client().submit("experiment.yaml", overrides=["searcher.max_trials=8"])` does what
        `detslurm submit` does.

        Args:
            config: The configuration as a mapping, or the path of a YAML file (`-` is standard
                input), or what `plan` made: then all other arguments but `paused` are ignored.
            context_dir: The directory of the code, which is copied. By default that of the
                configuration file, and the current directory where there is no such file.
            includes: More files and directories to copy beside the code; by default none.
            overrides: Changes of single keys, each as `a.b=YAML`; by default none.
            template: The name or path of a template to merge below the configuration; by default
                none.
            cluster: `slurm`, `local` (this machine), or by default `auto`: Slurm if it is set up.
            paused: Whether the jobs are held until `Experiment.activate`; by default they are not.
            method_runner: For a custom search, what identifies the process that runs its method:
                the search runners pass it. By default nobody, and a custom search is refused.

        Returns:
            The ids of the experiment, of its trials and of its jobs.

        Raises:
            ConfigErrors: If the configuration is wrong; it names every problem with file and line.
            SubmitError: If something else is wrong, or the cluster refuses the job.
            SlurmError: If the cluster does not answer.
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
            client = Client()
            submitted = client.submit(config, ".", overrides=["description=an example"])
            print(client.experiment(submitted.experiment_id).state)
        """
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
            )
        return submit(plan, self.store, paused=paused)

    def _trial(self, trial_id: int) -> TrialDir:
        if text := self.missing():
            raise NotFound(text)
        return self.store.find_trial(trial_id)


def _rows(store: Store, queues: Queues, warn: Callable[[str], None]) -> list[ExperimentRow]:
    """The rows of all experiments by id, with one query of the queue for all unfinished ones.

    What can't be read is left out, with a warning.
    """
    catalog = store.catalog()
    for problem in catalog.problems:
        warn(f"left out: {problem}")
    open_ones = list(_readable(store, catalog.unfinished, warn))
    attach_job_status(open_ones, queues)
    fresh = [one.view.row() for one in open_ones]
    catalog.settle(fresh)
    return sorted({**catalog.finished, **{r.id: r for r in fresh}}.values(), key=lambda r: r.id)


def _readable(
    store: Store, ids: Iterable[int], warn: Callable[[str], None]
) -> Iterator[ExperimentSnapshot]:
    """The experiments that can be read; an id whose submission was interrupted has none."""
    unreadable: dict[int, StoreError] = {}
    for number in ids:
        try:
            yield read(store.experiment(number))
        except NotFound:
            continue
        except StoreError as error:
            unreadable[number] = error
    if unreadable:
        more = ", ..." if len(unreadable) > 10 else ""
        names = ", ".join(map(str, list(unreadable)[:10])) + more
        first = next(iter(unreadable.values()))
        warn(f"left out because they can't be read: experiment {names} ({first})")
