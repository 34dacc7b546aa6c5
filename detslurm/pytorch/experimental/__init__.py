"""Batch inference: process a dataset in parallel, and go on after a preemption."""

from __future__ import annotations

from detslurm.pytorch.experimental._batch_process import torch_batch_process
from detslurm.pytorch.experimental._batch_processor import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
)

__all__ = ["TorchBatchProcessor", "TorchBatchProcessorContext", "torch_batch_process"]
