"""Raise notices: record in the store that something has happened, until it is sent."""

from __future__ import annotations

from typing import Final

from detslurm.config.run_config import RunWebhooks
from detslurm.notices.definitions import has_user_file
from detslurm.notices.event import event_of
from detslurm.notices.log import NoticeLog
from detslurm.notices.pointers import POINTERS, is_mine
from detslurm.store import ExperimentDir, Store, StoreError, fold_experiment, fs

_ENDS: Final = ("COMPLETED", "ERROR")


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
    """Raise the notice of an experiment's end, once, if it has ended and its notices are wanted;
    whether it is new. False for the experiment of another user, and if the store can't be used."""
    try:
        webhooks = experiment.run_config().webhooks
        if not is_mine(experiment.path) or not is_wanted(experiment.store, webhooks):
            return False
        if experiment.created().task and not webhooks.webhook_name:
            return False  # the user is watching a command, shell or notebook
        view = fold_experiment(experiment)
        if view.state not in _ENDS:
            return False
        # The same for all that raise this end; after another activation there are more runs.
        key = f"{view.state.lower()}-{sum(trial.run_count for trial in view.trials)}"
        about = {"reason": view.end_reason, "names": webhooks.webhook_name}
        return NoticeLog(experiment).raise_event(event_of(view, view.state, key, **about))
    except StoreError:
        return False
