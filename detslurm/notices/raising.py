"""Raise notices: keep in the store that something has happened, for those who want to be told."""

from __future__ import annotations

from typing import Final

from detslurm.config.run_config import RunWebhooks
from detslurm.config.site import config_folder
from detslurm.notices.definitions import FILE
from detslurm.notices.event import event_of
from detslurm.notices.log import POINTERS, NoticeLog
from detslurm.store import ExperimentDir, Store, StoreError, fold_experiment, fs

_ENDS: Final = ("COMPLETED", "ERROR")


def has_user_file() -> bool:
    """Whether this node sees definitions of the user's."""
    folder = config_folder()
    return folder is not None and fs.exists(folder / FILE)


def is_wanted(store: Store, webhooks: RunWebhooks) -> bool:
    """Whether an experiment's notices are worth keeping: nodes may not see the user's home, but
    they see that a submission, or another notice, has made the place for pointers."""
    if webhooks.exclude:
        return False
    return bool(webhooks.webhook_name) or has_user_file() or fs.exists(store.own(POINTERS))


def expect_notices(store: Store) -> None:
    """Let jobs see that this user has definitions. Raises `StoreError`."""
    if has_user_file():
        fs.ensure_directory(store.own(POINTERS), secret=True)


def raise_end(experiment: ExperimentDir) -> bool:
    """Raise the notice of an experiment's end, once, if it has ended and notices of it are wanted;
    whether it is new. A store that can't be used is the same as no."""
    try:
        webhooks = experiment.run_config().webhooks
        if not is_wanted(experiment.store, webhooks):
            return False
        if experiment.created().task and not webhooks.webhook_name:
            return False  # a command, shell or notebook, at which its user sits
        view = fold_experiment(experiment)
        if view.state not in _ENDS:
            return False
        # The same for all who see this end; after another activation there are more runs.
        key = f"{view.state.lower()}-{sum(trial.run_count for trial in view.trials)}"
        about = {"reason": view.end_reason, "names": webhooks.webhook_name}
        return NoticeLog(experiment).raise_event(event_of(view, view.state, key, **about))
    except StoreError:
        return False
