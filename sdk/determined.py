"""`Client` as Determined's users know it: the same objects by the names of their scripts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detslurm.sdk import users
from detslurm.sdk.client import Client, warn_user
from detslurm.sdk.deprecation import deprecated
from detslurm.sdk.users import User
from detslurm.sdk.workspaces import Workspace, project_overrides, refuse_used
from detslurm.store import NotFound

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.trials.metrics import TrialMetrics
    from detslurm.sdk.trials.trial import Trial


class Determined(Client):
    """A `Client` with the methods of Determined's class of this name.

    There is no master to log in to: `master`, `user`, `password`, `cert_path`, `cert_name` and
    `noverify` have no effect, and are not given by default. `root` and `warn` are as for `Client`.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
        *,
        root: os.PathLike[str] | str | None = None,
        warn: Callable[[str], None] = warn_user,
    ) -> None:
        super().__init__(root, warn=warn)

    def create_experiment(
        self,
        config: str | os.PathLike[str] | Mapping[str, Any],
        model_dir: str | os.PathLike[str] | None = None,
        includes: Iterable[str | os.PathLike[str]] | None = None,
        project_id: str | None = None,
        template: str | None = None,
    ) -> Experiment:
        """Submit an experiment and return it, with the other arguments and errors as in `submit`.

        Args:
            model_dir: The directory of the code, which is copied; by default none.
            project_id: The `id` of a `Project`, else a `ValueError`; by default that of the
                configuration.

        Example:
            from pathlib import Path

            from detslurm.experimental import client

            Path("code").mkdir()
            Path("code/train.py").write_text("print('training')")
            searcher = {"name": "single", "metric": "loss"}
            config = {"name": "first", "entrypoint": "python3 train.py", "searcher": searcher}
            experiment = client.create_experiment(config, "code")
            assert experiment.name == "first"
        """
        overrides = project_overrides(project_id) if project_id is not None else ()
        with tempfile.TemporaryDirectory() as empty:
            return self.submit(
                config,
                model_dir or empty,
                includes=includes or (),
                template=template,
                overrides=overrides,
            )

    def get_experiment(self, experiment_id: int) -> Experiment:
        """Return an experiment as it is now, with arguments as in `experiment`."""
        return self.experiment(experiment_id)

    def get_trial(self, trial_id: int) -> Trial:
        """Return a trial as it is now, with arguments as in `trial`."""
        return self.trial(trial_id)

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Return the checkpoint `uuid`, of which 4 characters of the beginning are enough."""
        return self.checkpoint(uuid)

    def iter_trials_metrics(self, trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
        """Return the reports of the trials `trial_ids`, one trial after the other, in a `group`,
        such as "training". It is a `ValueError` if they have metrics of other groups alone."""
        from detslurm.sdk.trials.metrics import metrics_of

        return metrics_of((self.stored_trial(number).directory for number in trial_ids), group)

    def stream_trials_metrics(self, trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
        """Return reports by an older name; arguments are as in `iter_trials_metrics`."""
        deprecated("stream_trials_metrics", "iter_trials_metrics")
        return self.iter_trials_metrics(trial_ids, group)

    def stream_trials_training_metrics(self, trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
        """Return the "training" metrics of `trial_ids`, by an older name."""
        deprecated("stream_trials_training_metrics", "iter_trials_metrics")
        return self.iter_trials_metrics(trial_ids, "training")

    def stream_trials_validation_metrics(self, trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
        """Return the "validation" metrics of `trial_ids`, by an older name."""
        deprecated("stream_trials_validation_metrics", "iter_trials_metrics")
        return self.iter_trials_metrics(trial_ids, "validation")

    def whoami(self) -> User:
        """Return the user who runs this: text, with `username` and `user_id`."""
        return users.current()

    def list_users(self, active: bool | None = None) -> list[User]:
        """Return the users who have experiments in this store, and the user who runs this; `active`
        has no effect (None by default)."""
        return sorted({users.current(), *(User(row.owner) for row in self.rows(archived=True))})

    def get_user_by_name(self, user_name: str) -> User:
        """Return the cluster's user `user_name`; `NotFound` if machine and store don't know it."""
        user = User(user_name)
        if user.user_id is None and user not in self.list_users():
            raise NotFound(f"there is no user {user_name!r} on this cluster")
        return user

    def list_workspaces(self) -> list[Workspace]:
        """Return the workspaces that have experiments, by name."""
        names = {row.workspace for row in self.rows(archived=True)}
        return [Workspace(self, name) for name in sorted(names)]

    def get_workspace(self, name: str) -> Workspace:
        """Return the workspace `name`. Raises `NotFound` if it has no experiments."""
        for workspace in self.list_workspaces():
            if workspace.name == name:
                return workspace
        raise NotFound(f"no experiment is in a workspace {name!r}")

    def create_workspace(self, name: str) -> Workspace:
        """Return the workspace `name`, a printable line without a slash, to put projects into."""
        return Workspace(self, name)

    def delete_workspace(self, name: str) -> None:
        """Do nothing for the empty workspace `name`; with experiments it is a `LifecycleError`."""
        refuse_used(name, [row for row in self.rows(archived=True) if row.workspace == name])

    def login(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
    ) -> None:
        """Do nothing: there is no master to log in to. The arguments are as in `Determined`."""

    def logout(self) -> None:
        """Do nothing: there is no master to log out of."""
