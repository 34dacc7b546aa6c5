"""A DeepSpeed script of one's own through the launcher: two nodes, a process on each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.conftest import copy_example
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room
from tests.launchers.workers import needs_deepspeed
from tests.light import LIGHT_JOBS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.xdist_group("deepspeed on a cluster"),  # one after the other: they compute most
    needs_deepspeed,
]

RANKS, PER_EPOCH, EPOCHS = 2, 46, 2
# The launcher's own tests have two processes on a node.
OPTIONS = (
    f"resources.slots_per_trial={RANKS}",
    "slurm.slots_per_node=1",
    "searcher.max_length.epochs=2",
    f"environment.environment_variables={LIGHT_JOBS}",
    "entrypoint=python3 -m determined.launch.deepspeed --quiet -- train.py",
)
# The first run waits until it is to leave.
ASKS = "            if core_context.preempt.should_preempt():\n"
HELD = """\
            while info.trial._trial_run_id == 1 and step == 10:
                if core_context.preempt.should_preempt():
                    break
                time.sleep(0.05)
"""


def disturbed(example: Path) -> Path:
    """The example with a place to wait at."""
    script = example / "train.py"
    text = script.read_text()
    assert text.count(ASKS) == 1
    text = text.replace(ASKS, HELD + ASKS)
    script.write_text(text.replace("import json\n", "import json\nimport time\n", 1))
    return example / "distributed.yaml"


def weights(desk: Desk, number: int) -> dict[str, bytes]:
    """The model of the last checkpoint, and the optimizer's state of every rank beside it."""
    import torch

    latest = desk.trial(number).latest_checkpoint
    assert latest is not None and latest.steps == PER_EPOCH * EPOCHS
    folder = desk.store.path / "checkpoints" / latest.uuid / "state"
    assert len(list(folder.glob("*zero_pp_rank_*_optim_states.pt"))) == RANKS
    state = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)
    return {name: tensor.numpy().tobytes() for name, tensor in state["module"].items()}


@pytest.mark.nightly
def test_a_deepspeed_script_of_ones_own(desk: Desk, site: Cluster) -> None:
    """ZeRO-1 on two ranks of two nodes, preempted: the next run goes on from its checkpoint, and
    the last weights are those of an undisturbed training, to the bit. test_deepspeed_trial.py has
    a rank that is killed."""
    config = copy_example(desk, "deepspeed_core") / "distributed.yaml"
    whole = desk.submit(config, *OPTIONS)
    number = desk.submit(disturbed(config.parent), *OPTIONS, "resources.resource_pool=low")
    desk.wait_for_steps(number, 10)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    for each in (whole, number):
        assert desk.wait_for_state(each, "COMPLETED", "ERROR") == "COMPLETED", desk.log(each)
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert desk.trial(number).runs[1].resumed_steps == 10
    assert weights(desk, number) == weights(desk, whole)
    first, last = (row.metrics["accuracy"] for row in desk.metrics(number, "validation"))
    assert [row.metrics["accuracy"] for row in desk.metrics(whole, "validation")] == [first, last]
    assert first < last and last > 0.75
    for rank in range(RANKS):
        assert f"[rank={rank}] || going on after batch 10\n" in desk.log(number)
