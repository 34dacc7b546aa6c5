"""DeepSpeed's examples train on the cluster: ZeRO, two engines, and a pipeline on two nodes."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import copy_example
from tests.e2e.desk import Desk
from tests.launchers.workers import needs_deepspeed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, needs_deepspeed]

SHORT = ("searcher.max_length.batches=24", "min_validation_period.batches=12")
RUNS = (
    ("deepspeed_gpt", "zero1.yaml", "validation_loss", SHORT),
    ("deepspeed_gan", "const.yaml", "distance", ()),
    ("deepspeed_pipeline", "distributed.yaml", "validation_loss", SHORT),
)


def test_examples_learn(desk: Desk) -> None:
    """ZeRO-1 on two slots, two engines on one, two stages on four slots of two nodes."""
    submitted = [
        (desk.submit(copy_example(desk, name) / config, *options), metric)
        for name, config, metric, options in RUNS
    ]
    for number, metric in submitted:
        assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
        values = [row.metrics[metric] for row in desk.metrics(number, "validation")]
        assert len(values) > 1 and values[-1] < values[0]
