"""Search methods of the user's own, on a login node and inside a job, killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detslurm.searcher import Search, State
from detslurm.store import EventLog, NotFound
from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_main_job import make_room
from tests.store.listing import rows_of

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

METHOD = """\
    import json, uuid
    from determined import searcher

    class Halves(searcher.SearchMethod):
        '''Six random samples, two at a time; those below a half train twice as long.

        Whatever is asked for last comes together with the end.'''

        def __init__(self):
            self.begun, self.judged = 0, []

        def begin(self):
            if self.begun == 6:
                return []
            trial = uuid.uuid4()
            self.begun += 1
            sample = {"x": self.begun / 10}
            operations = [searcher.Create(trial, sample), searcher.ValidateAfter(trial, 2)]
            return operations + [searcher.Close(trial)] * (self.begun > 3)

        def initial_operations(self, state):
            return self.begin() + self.begin()

        def on_trial_created(self, state, request_id):
            return []

        def on_validation_completed(self, state, request_id, metric, train_length):
            if train_length == 2 and metric < 0.35:
                return [searcher.ValidateAfter(request_id, 4), searcher.Close(request_id)]
            self.judged.append(str(request_id))
            return []

        def on_trial_closed(self, state, request_id):
            if str(request_id) not in self.judged:
                raise RuntimeError(f"{request_id} was closed before its last validation")
            if len(state.trials_closed) == 6:
                return [searcher.Shutdown()]
            return self.begin()

        def on_trial_exited_early(self, state, request_id, exited_reason):
            raise RuntimeError(f"{request_id} left: {exited_reason}")

        def progress(self, state):
            return len(state.trials_closed) / 6

        def save_method_state(self, path):
            (path / "begun.json").write_text(json.dumps([self.begun, self.judged]))

        def load_method_state(self, path):
            self.begun, self.judged = json.loads((path / "begun.json").read_text())
"""

TRAIN = """\
    import os, pathlib, time
    import detslurm as det

    info = det.get_cluster_info()
    root = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"])
    with det.core.init() as core:
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
        # The method must be at work still when the test kills it.
        gate = root / ("go" if info.trial.hparams["x"] < 0.45 else "finish")
        for op in core.searcher.operations():
            while not gate.exists():
                if core.preempt.should_preempt():
                    raise SystemExit
                time.sleep(0.05)
            step = op.length
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "step").write_text(str(step))
            op.report_completed(info.trial.hparams["x"])
"""

CONFIG = """\
    name: halves
    entrypoint: python3 train.py
    searcher: {name: custom, metric: loss, unit: batches}
    resources: {resource_pool: low}
    slurm: {slot_type: cpu}
    """

LOCAL = """\
    import logging
    from detslurm import compat
    compat.install()
    from detslurm.searcher import LocalSearchRunner
    from method import Halves

    logging.basicConfig(level=logging.INFO)
    runner = LocalSearchRunner(Halves(), "kept")
    print(runner.run("experiment.yaml", "trained"))
    assert runner.state.experiment_completed and len(runner.state.trials_created) == 6
"""

REMOTE = """\
    import os
    import detslurm as det
    from detslurm.searcher import RemoteSearchRunner
    from method import Halves

    with det.core.init() as core:
        print("pid", os.getpid(), flush=True)
        print("searched in", RemoteSearchRunner(Halves(), core).run("inner.yaml", "trained"))
"""

OUTER = """\
    name: outer
    entrypoint: python3 remote.py
    searcher: {name: single, metric: loss}
    resources: {resource_pool: low}
    slurm: {slot_type: cpu}
    """


def search_state(desk: Desk, number: int) -> State:
    """The search as its log tells; an empty one before it begins."""
    try:
        experiment = desk.experiment(number)
    except NotFound:
        return State()
    log = EventLog(experiment.search, Search(experiment.config()))
    return log.catch_up()


def assert_done_once(desk: Desk, number: int) -> None:
    """Six trials, each trained exactly as far as the method asked, and closed."""
    desk.wait_for_state(number, "COMPLETED")
    state = search_state(desk, number)
    assert [trial.reached for trial in state.trials] == [4, 4, 4, 2, 2, 2]
    assert [trial.outcome for trial in state.trials] == ["completed"] * 6
    view = desk.view(number)
    assert [row.hparams for row in view.trials] == [{"x": n / 10} for n in range(1, 7)]
    assert {row.state for row in view.trials} == {"COMPLETED"}


@contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process at the end, at which it must still be running."""
    try:
        yield
    finally:
        process.kill()
        said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said


def test_a_method_on_the_users_machine(desk: Desk, site: Cluster) -> None:
    """Killed as soon as it has submitted, and again in the middle: nothing happens twice."""
    desk.write("method.py", METHOD)
    desk.write("local.py", LOCAL)
    desk.write("experiment.yaml", CONFIG)
    desk.write("trained/train.py", TRAIN)
    argv = ["python3", "local.py"]
    with killed(desk.user.popen(argv)):
        wait_for(lambda: search_state(desk, 1).created, PATIENCE, "the first operations")
    with killed(desk.user.popen(argv)):
        wait_for(lambda: search_state(desk, 1).workers, PATIENCE, "a worker")
        (desk.experiment(1).path / "go").touch()
        wait_for(lambda: _closed(search_state(desk, 1)) >= 2, PATIENCE, "trials that are over")
    (desk.experiment(1).path / "finish").touch()
    done = desk.user.run(*argv)
    assert done.stdout.split()[-1] == "1"
    assert_done_once(desk, 1)
    assert len(rows_of(desk.store)) == 1
    assert {path.name for path in Path(desk.user.cwd or "", "kept").iterdir()} == {
        "submission", "exp_1",
    }  # fmt: skip
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")


@pytest.mark.nightly
def test_a_method_inside_an_experiment(desk: Desk) -> None:
    """Preempted, then killed: it goes on from its checkpoint with the same search."""
    desk.write("outer/method.py", METHOD)
    desk.write("outer/remote.py", REMOTE)
    desk.write("outer/inner.yaml", CONFIG)
    desk.write("outer/trained/train.py", TRAIN)
    outer = desk.submit(desk.write("outer/experiment.yaml", OUTER))
    inner = outer + 1
    desk._wait(outer, lambda: search_state(desk, inner).created, PATIENCE, "the first operations")
    make_room(desk)
    desk._wait(
        outer, lambda: desk.outcomes(outer) == ["preempted", None], PATIENCE, "the second run"
    )
    (desk.experiment(inner).path / "go").touch()
    wait_for(lambda: _closed(search_state(desk, inner)) >= 2, PATIENCE, "trials that are over")
    os.kill(int(desk.log(outer).rsplit("pid ", 1)[1].split()[0]), signal.SIGKILL)
    (desk.experiment(inner).path / "finish").touch()
    assert_done_once(desk, inner)
    desk.wait_for_state(outer, "COMPLETED")
    assert desk.outcomes(outer) == ["preempted", "restart", "completed"]
    assert len(rows_of(desk.store)) == 2
    assert desk.view(outer).progress == 1.0
    assert len(desk.trial(outer).checkpoints) > 2
    # The method keeps two of its own, and garbage collection the latest of them.
    assert sum(c.state == "COMPLETED" for c in desk.trial(outer).checkpoints) in (1, 2)


MORE = """\
    import sys, uuid
    from detslurm.searcher import Close, Create, LocalSearchRunner, Shutdown, ValidateAfter
    from method import Halves

    class More(Halves):
        def initial_operations(self, state):
            return self.begin()

        def on_search_extended(self, state):
            assert len(state.trials_closed) == 1
            return self.begin()

        def on_trial_closed(self, state, request_id):
            return [Shutdown()]

    runner = LocalSearchRunner((More if "consents" in sys.argv else Halves)(), "kept")
    if "first" in sys.argv:
        print(runner.run("experiment.yaml", "trained"))
    else:
        print(runner.continue_(["description=more"]))
        assert runner.state.experiment_completed and len(runner.state.trials_created) == 2
"""


def test_a_method_goes_on_after_its_end(desk: Desk) -> None:
    """In a new experiment, with what it was and knew; only if it consents."""
    desk.write("method.py", METHOD.replace("from determined import", "from detslurm import"))
    desk.write("more.py", MORE)
    desk.write("experiment.yaml", CONFIG)
    gate = '        gate = root / ("go" if info.trial.hparams["x"] < 0.45 else "finish")'
    desk.write("trained/train.py", TRAIN.replace(gate, "        gate = root"))
    assert desk.user.run("python3", "more.py", "consents", "first").stdout.split()[-1] == "1"
    refused = desk.run("e", "continue", "1", "--config", "description=more", check=False)
    assert "LocalSearchRunner.continue_()" in refused.stderr
    refused = desk.user.run("python3", "more.py", check=False)
    assert "Halves has no on_search_extended()" in refused.stderr
    assert desk.user.run("python3", "more.py", "consents").stdout.split()[-1] == "2"
    desk.wait_for_state(2, "COMPLETED")
    assert [row.hparams for row in desk.view(2).trials] == [{"x": 0.1}, {"x": 0.2}]
    assert [trial.reached for trial in search_state(desk, 2).trials] == [4, 4]
    assert (desk.view(2).parent, desk.trial(2).run_count, desk.trial(2).continues) == (1, 1, 1)


def _closed(state: State) -> int:
    return sum(trial.status == "closed" for trial in state.trials)
