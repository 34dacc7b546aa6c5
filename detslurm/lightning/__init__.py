"""Lightning's Trainer in trials: `TrialCallback`.

It needs the package `lightning` (or `pytorch_lightning`), which detslurm does not install.
"""

from detslurm.lightning._callback import TrialCallback

__all__ = ["TrialCallback"]
