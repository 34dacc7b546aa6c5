"""The Python client: experiments and trials as objects over the store and the queue.

from detslurm.sdk import Client
experiment = Client().experiment(7)
experiment.pause()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detslurm._lazy import lazy_names

if TYPE_CHECKING:
    from detslurm.config.errors import ConfigErrors
    from detslurm.sdk.client import Client
    from detslurm.sdk.errors import LifecycleError, SubmitError
    from detslurm.sdk.experiment import Experiment
    from detslurm.sdk.trial import Trial
    from detslurm.slurm.interface import SlurmError

__all__ = [
    "Client",
    "ConfigErrors",
    "Experiment",
    "LifecycleError",
    "SlurmError",
    "SubmitError",
    "Trial",
]

_LAZY = {
    "Client": "detslurm.sdk.client",
    "ConfigErrors": "detslurm.config.errors",
    "Experiment": "detslurm.sdk.experiment",
    "LifecycleError": "detslurm.sdk.errors",
    "SlurmError": "detslurm.slurm.interface",
    "SubmitError": "detslurm.sdk.errors",
    "Trial": "detslurm.sdk.trial",
}


# The command line needs one of these at a time.
__getattr__ = lazy_names(__name__, _LAZY)
