"""Turns calls of TensorBoard's writer into artifacts of the trial."""

from __future__ import annotations

import logging
from typing import Any

from detslurm.core._artifacts import ArtifactKind
from detslurm.core._train import TrainContext

logger = logging.getLogger("detslurm.pytorch")


def report_what_is_added(writer: Any, train: TrainContext) -> None:
    """Report images and histograms that are added to a `SummaryWriter`; its figures are images."""
    add_image, add_histogram = writer.add_image, writer.add_histogram

    def image(
        tag: str, img_tensor: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        add_image(tag, img_tensor, global_step, *args, **kwargs)
        _report(train, tag, img_tensor, global_step, "image")

    def histogram(
        tag: str, values: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        add_histogram(tag, values, global_step, *args, **kwargs)
        _report(train, tag, values, global_step, "histogram")

    writer.add_image, writer.add_histogram = image, histogram


def _report(train: TrainContext, tag: str, value: Any, step: Any, kind: ArtifactKind) -> None:
    if step is None:
        return
    try:
        train.report_artifact(tag, step, value, kind=kind)
    except (TypeError, ValueError, OverflowError) as error:  # TensorBoard has taken it
        logger.debug("%r is no artifact: %s", tag, error)
