"""Keras in trials: one callback makes `model.fit()` report, save, leave and go on.

Needs `keras` 3, with any of its backends; it is not installed with detslurm.
"""

from detslurm.keras._callback import DeterminedCallback

__all__ = ["DeterminedCallback"]
