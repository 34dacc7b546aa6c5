"""Scripts that know nothing of detslurm: what they log is recorded, and a search decides by it."""

from __future__ import annotations

import pytest

from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room
from tests.e2e.test_search import all_runs, assert_sound, hold_back, let_go, project

pytestmark = pytest.mark.cluster

# Its own files let it go on where it was. Of the samples of this seed the first one is the best:
# the others wait without end for what only the search can do.
SCRIPT = """\
    import argparse, os, pathlib, signal, time
    from torch.utils.tensorboard import SummaryWriter

    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float)
    x = parser.parse_args().x
    folder = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"])
    state = folder / f"state-{x}"
    first = int(state.read_text()) + 1 if state.exists() else 1
    writer = SummaryWriter("runs")
    for epoch in range(first, 10):
        while epoch == 4 and (folder / "wait").exists():
            time.sleep(0.05)
        if epoch == 4 and len([*folder.glob("state-*")]) > 1:
            signal.pause()
        writer.add_scalar("train/loss", x + 2 / epoch, epoch)
        writer.add_scalar("val/loss", x + 1 / epoch, epoch)
        print(f"epoch {epoch}: val_acc={epoch / 10}", flush=True)
        state.write_text(str(epoch))
"""
CONFIG = """\
    arguments: flags
    record: [tensorboard]
    metrics_from_log: [{pattern: 'epoch (?P<step>\\d+): val_acc=(?P<acc>\\S+)'}]
    searcher:
      name: async_halving
      metric: val/loss
      time_metric: epochs
      max_time: 9
      num_rungs: 2
      max_trials: 3
      divisor: 3
      max_concurrent_trials: 1
    hyperparameters:
      x: {type: double, minval: 0, maxval: 1}
    reproducibility: {experiment_seed: 21}
    """


def test_a_search_over_an_unmodified_script(desk: Desk) -> None:
    """The first trial is preempted, goes on by its own files, and has one curve from all its runs;
    it ends by itself. The others are stopped at the first rung, by SIGTERM."""
    config = project(desk, SCRIPT, CONFIG)
    refused = desk.run(
        "submit", str(config), "--config", "searcher={name: pbt, metric: val/loss,"
        " population_size: 2, num_rounds: 2, length_per_round: {batches: 2}}", check=False,
    )  # fmt: skip
    assert "searcher.name: pbt pauses trials" in refused.stderr
    number = desk.submit(config, "resources.resource_pool=low", "--paused")
    hold_back(desk, number)
    desk.run("experiment", "activate", str(number))
    desk.wait_for_steps(number, 3)
    make_room(desk)
    desk.wait_for_log(number, "asking the code to stop")
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED")
    assert_sound(desk, number)
    runs = all_runs(desk, number)
    assert [run.outcome for run in runs] == ["preempted", *["completed"] * 3]
    assert [run.exit_code for run in runs] == [143, 0, 143, 143]
    assert {run.reason for run in runs[1:]} == {"stopped by the search"}
    assert desk.log(number).count("asking the code to stop") == 1
    training, validation = desk.metrics(number, "training"), desk.metrics(number, "validation")
    assert [row.steps for row in training] == [*range(1, 10)]
    assert [row.metrics["acc"] for row in validation] == [step / 10 for step in range(1, 10)]
    assert {*training[0].metrics} == {"train/loss"}
    assert "the script logs no 'epochs'" in desk.log(number)
    assert desk.view(number).best_trial == desk.trial_dir(number).id
