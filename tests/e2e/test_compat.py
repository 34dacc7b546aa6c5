"""Project directories written for Determined run with no edit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

# As the documentation of Determined's Core API teaches it.
TRAIN = """\
    import json
    import time

    import determined as det
    from determined import core
    from determined.core import PreemptMode


    def main(core_context, info):
        step = 0
        if info.latest_checkpoint is not None:
            with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = json.loads((path / "state.json").read_text())["step"]
        for op in core_context.searcher.operations():
            while step < op.length:
                step += 1
                core_context.train.report_training_metrics(
                    steps_completed=step, metrics={"loss": 1.0 / step}
                )
                while step == info.trial.hparams["hold"] and not info.latest_checkpoint:
                    time.sleep(0.01)
                    if core_context.preempt.should_preempt():
                        break
                if step % 10 == 0 or core_context.preempt.should_preempt():
                    metadata = {"steps_completed": step}
                    with core_context.checkpoint.store_path(metadata) as (path, _):
                        (path / "state.json").write_text(json.dumps({"step": step}))
                if core_context.preempt.should_preempt():
                    return
            core_context.train.report_validation_metrics(step, {"loss": 1.0 / step})
            op.report_completed(1.0 / step)


    if __name__ == "__main__":
        info = det.get_cluster_info()
        assert info is not None and info.task_type == "TRIAL"
        print("determined is", det.__name__)
        with det.core.init(preempt_mode=PreemptMode.WorkersAskChief) as core_context:
            assert isinstance(core_context, core.Context)
            main(core_context, info)
    """
CONFIG = """\
    name: written-for-determined
    entrypoint: {entrypoint}
    hyperparameters:
      hold: 0
    searcher:
      name: single
      metric: loss
      max_length: 40
    max_restarts: 0
    {more}
    """
PLAIN = "python3 train.py"
CPU = "slurm.slot_type=cpu"


def project(desk: Desk, script: str, entrypoint: str, more: str = "") -> Path:
    """A directory as its author left it."""
    desk.write("project/train.py", script)
    text = CONFIG.replace("{entrypoint}", entrypoint).replace("{more}", more)
    return desk.write("project/const.yaml", text)


def assert_trained(desk: Desk, number: int, saved: list[int]) -> None:
    """Metrics, checkpoints and the search's operations have worked under Determined's names."""
    desk.wait_for_state(number, "COMPLETED")
    assert "determined is detslurm" in desk.log(number)
    assert [row.steps for row in desk.metrics(number, "training")] == list(range(1, 41))
    assert [c.steps for c in desk.trial(number).checkpoints] == saved
    assert [row.metrics for row in desk.metrics(number, "validation")] == [{"loss": 1 / 40}]


def test_without_slurm(desk: Desk) -> None:
    """It trains and reports where there is none."""
    number = desk.submit(project(desk, TRAIN, PLAIN), CPU, "--cluster", "local")
    assert_trained(desk, number, [10, 20, 30, 40])


def test_preempted_it_goes_on(desk: Desk) -> None:
    """On Slurm, where a real preemption makes it save and leave, it goes on where it was.

    test_transformers.py has the same under Determined's launcher."""
    config = project(desk, TRAIN, PLAIN)
    number = desk.submit(config, CPU, "hyperparameters.hold=5", "resources.resource_pool=low")
    desk.wait_for_steps(number, 5)
    make_room(desk)
    assert_trained(desk, number, [5, 10, 20, 30, 40])
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert desk.trial(number).runs[1].resumed_steps == 5


WHO = """\
    import determined
    print("determined is", getattr(determined, "who", determined.__name__))
    """


def beside_the_script(desk: Desk) -> list[str]:
    desk.write("project/determined/__init__.py", 'who = "the real one"\n')
    return []


def in_pythonpath(desk: Desk) -> list[str]:
    path = desk.write("lib/determined/__init__.py", 'who = "the real one"\n').parents[1]
    return [f"environment.environment_variables=[PYTHONPATH={path}]"]


@pytest.mark.parametrize("place", [beside_the_script, in_pythonpath])
def test_a_real_determined_is_not_shadowed(desk: Desk, place: Callable[[Desk], list[str]]) -> None:
    """Wherever the user's environment has Determined itself, that is what the code gets."""
    config = project(desk, WHO, PLAIN)
    number = desk.submit(config, CPU, *place(desk))
    desk.wait_for_state(number, "COMPLETED")
    assert "determined is the real one" in desk.log(number)


def test_unless_asked(desk: Desk) -> None:
    """DETSLURM_COMPAT=force in the configuration prefers detslurm."""
    path = desk.write("lib/determined/__init__.py", 'who = "the real one"\n').parents[1]
    variables = f"[PYTHONPATH={path}, DETSLURM_COMPAT=force]"
    config = project(desk, WHO, PLAIN)
    number = desk.submit(config, CPU, f"environment.environment_variables={variables}")
    desk.wait_for_state(number, "COMPLETED")
    assert "determined is detslurm" in desk.log(number)


def test_a_slip_in_the_mode_is_said(desk: Desk) -> None:
    """An unknown DETSLURM_COMPAT ends the run with a line in its log."""
    config = project(desk, WHO, PLAIN)
    number = desk.submit(config, CPU, "environment.environment_variables=[DETSLURM_COMPAT=yes]")
    desk.wait_for_state(number, "ERROR")
    assert "DETSLURM_COMPAT='yes' is none of auto, force, off" in desk.log(number)


def test_a_module_that_detslurm_has_not(desk: Desk) -> None:
    """The submission reads the entrypoint's file; the trial's log names what other files lack."""
    desk.write("project/helper.py", "from determined.cli import main\n")
    number = desk.submit(project(desk, "import helper\n", PLAIN), CPU)
    desk.wait_for_state(number, "ERROR")
    assert "no module 'determined.cli': here detslurm stands in" in desk.log(number)
