"""Determined's client as functions: each is a method of `Determined` on the default store.

from detslurm.experimental import client

experiment = client.create_experiment("experiment.yaml", "code")
if experiment.wait() == client.ExperimentState.COMPLETED:
    print(experiment.list_trials()[0].summary_metrics)

Classes and enums are those of `detslurm.sdk`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detslurm import sdk
from detslurm.sdk.deprecation import sdk_attribute
from detslurm.sdk.determined import Determined as Determined
from detslurm.sdk.store_root import default_root

if TYPE_CHECKING:
    from detslurm.sdk import *  # noqa: F403

_FUNCTIONS = (
    "create_experiment",
    "create_model",
    "create_workspace",
    "delete_workspace",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_trial",
    "get_user_by_name",
    "get_workspace",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "list_users",
    "list_workspaces",
    "login",
    "logout",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
    "whoami",
)

__all__ = [*sdk.__all__, *_FUNCTIONS]

_shared: Determined | None = None


def _default() -> Determined:
    """The client of the default store; another one once that is elsewhere."""
    global _shared
    if _shared is None or _shared.store.path != default_root():
        _shared = Determined()
    return _shared


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(_default(), name)
    return sdk_attribute(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
