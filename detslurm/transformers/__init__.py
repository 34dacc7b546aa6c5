"""Hugging Face's Trainer in trials: `DetCallback`.

It needs the package `transformers`, which detslurm does not install.
"""

from detslurm.transformers._callback import DetCallback

__all__ = ["DetCallback"]
