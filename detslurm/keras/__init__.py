"""Keras in trials: one callback makes `model.fit()` report, save, leave and go on.

Needs `keras` 3, with any of its backends; it is not installed with detslurm.
"""

from detslurm.keras._callback import DeterminedCallback

__all__ = ["DeterminedCallback"]


def __getattr__(name: str) -> object:
    if name.startswith("TFKerasTrial"):
        raise ImportError(
            f"detslurm has no {name}: call model.fit() in a script, with the callback"
            " detslurm.keras.DeterminedCallback"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
