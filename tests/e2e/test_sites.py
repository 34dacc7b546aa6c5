"""Sites of other kinds: preempted jobs are cancelled, no accounting, no Slurm at all."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import User
from tests.cluster.processes import alive
from tests.cluster.waiting import wait_for
from tests.e2e.conftest import copy_example
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.digits import SEED
from tests.e2e.exact import HELD_AT, assert_undisturbed, project
from tests.e2e.exact_train import LAST
from tests.e2e.test_failures import CRASHES_TWICE, WAITS, let_go, pid_of_code
from tests.e2e.test_orphans import assert_no_orphan_lives_beside_the_next_run


@pytest.mark.strange_site
class TestWhereThePreemptedAreCancelled:
    """PreemptMode=CANCEL, no accounting, jobs get their own signal."""

    def test_a_successor_goes_on(self, desk: Desk) -> None:
        """The preempted trial saves, queues a successor, and loses nothing."""
        number = desk.submit(project(desk, HELD_AT), "resources.resource_pool=low")
        desk.wait_for_steps(number, HELD_AT)
        desk.user.run(
            "sbatch", "-p", "high", "-N4", "--exclusive", "-o", "/dev/null", "--wrap=sleep 1"
        )
        desk.wait_for_state(number, "COMPLETED")
        trial = desk.trial(number)
        assert desk.outcomes(number) == ["preempted", "completed"]
        first, second = (run.job.job_id for run in trial.runs)
        assert first != second
        assert [job.job_id for job in desk.view(number).jobs] == [first, second]
        assert_undisturbed(desk, number)

    def test_arrays_are_split_at_the_sites_limit(self, desk: Desk) -> None:
        """24 trials with MaxArraySize=21 are two arrays; every trial runs once."""
        config = desk.project("import os; print(os.environ['DET_HPARAMS'])")
        number = desk.submit(
            config,
            "searcher.name=grid",
            "searcher.max_concurrent_trials=0",
            "hyperparameters.x={type: int, minval: 0, maxval: 23, count: 24}",
        )
        desk.wait_for_state(number, "COMPLETED")
        view = desk.view(number)
        assert [job.count for job in view.jobs] == [12, 12]
        assert sorted(t.hparams["x"] for t in view.trials if t.hparams) == list(range(24))

    def test_the_state_is_known_without_accounting(self, desk: Desk) -> None:
        """A killed runner is found out although there is no sacct."""
        number = desk.submit(desk.project(WAITS))
        pid_of_code(desk, number)
        desk.user.run("scancel", desk.job(number))
        desk.wait_for_state(number, "CANCELED")
        assert "CANCELED" in desk.run("experiment", "describe", str(number)).stdout


class LocalDesk(Desk):
    """A user who trains on the machine itself."""

    def submit(self, config: Path, *args: str) -> int:
        # Slurm's daemons run on this machine, and nobody trains behind their back unasked.
        return super().submit(config, "--cluster", "local", *args)


@pytest.fixture
def local(tmp_path_factory: pytest.TempPathFactory, alice: User) -> Desk:
    """The same user where Slurm's commands are not in PATH."""
    path = ":".join(p for p in alice.env["PATH"].split(":") if not (Path(p) / "sbatch").exists())
    tools = alice.own(_tools(alice))
    env = {k: v for k, v in alice.env.items() if k != "SLURM_CONF"}
    return LocalDesk(replace(alice, env={**env, "PATH": f"{path}:{tools}"}))


def _tools(user: User) -> Path:
    """Everything of the system's programs but Slurm's."""
    assert user.cwd is not None
    tools = user.cwd.parent / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin", "/usr/sbin"):
        for program in Path(folder).iterdir():
            target = tools / program.name
            if not os.path.lexists(target) and program.name not in SLURM_PROGRAMS:
                target.symlink_to(program)
    return tools


SLURM_PROGRAMS = {"sbatch", "srun", "squeue", "scancel", "scontrol", "sacct", "sinfo", "salloc"}


class TestWithoutSlurm:
    """The embedded local cluster gives the same experience."""

    def test_digits(self, local: Desk) -> None:
        """The example trains to over 95 % and is listed, but not on a login node unasked."""
        digits = copy_example(local, "digits") / "experiment.yaml"
        refused = local.run("submit", str(digits), check=False)
        assert refused.returncode == 1 and "--cluster local" in refused.stderr
        number = local.submit(digits, SEED)
        local.run("experiment", "wait", str(number))
        best = local.trial(number).best_validation
        assert best is not None and best.value is not None and best.value > 0.95
        assert local.view(number).cluster == "local"
        assert "COMPLETED" in local.run("experiment", "list").stdout
        assert "epoch 10" in local.run("experiment", "logs", str(number)).stdout

    def test_pause_and_activate(self, local: Desk) -> None:
        """The same bits come out of a training that was paused in between."""
        number = local.submit(project(local, HELD_AT), f"searcher.max_length={LAST}")
        local.wait_for_steps(number, HELD_AT)
        assert f"{100 * HELD_AT / LAST:.0f}%" in local.run("experiment", "list").stdout
        local.run("experiment", "pause", str(number))
        local.wait_for_state(number, "PAUSED")
        wait_for(lambda: local.outcomes(number) == ["paused"], PATIENCE, "the end of the run")
        local.run("experiment", "activate", str(number))
        local.wait_for_state(number, "COMPLETED")
        assert_undisturbed(local, number)

    def test_restarts(self, local: Desk) -> None:
        """Crashing code is restarted from its checkpoint."""
        number = local.submit(local.project(CRASHES_TWICE))
        local.wait_for_state(number, "COMPLETED")
        assert local.outcomes(number) == ["restart", "restart", "completed"]

    def test_kill_leaves_no_process(self, local: Desk) -> None:
        """kill ends the code, the agent and the runner."""
        number = local.submit(local.project(WAITS))
        pid = pid_of_code(local, number)
        local.run("experiment", "kill", str(number))
        local.wait_for_state(number, "CANCELED")
        wait_for(lambda: not alive(pid), PATIENCE, "the code to be gone")

    def test_a_killed_runner(self, local: Desk) -> None:
        """kill -9 of the runner takes the code with it; activate goes on."""
        from tests.e2e.processes import find_process

        number = local.submit(local.project(WAITS))
        pid = pid_of_code(local, number)
        runner = find_process(f"detslurm.exec.runner {local.experiment(number).path} ")
        os.kill(runner, signal.SIGKILL)
        wait_for(lambda: not alive(pid), PATIENCE, "the code to be gone")
        wait_for(
            lambda: "ERROR" in local.run("experiment", "describe", str(number)).stdout,
            PATIENCE,
            "describe to tell",
        )
        local.run("experiment", "activate", str(number))
        let_go(local, number)
        local.wait_for_state(number, "COMPLETED")
        assert local.outcomes(number) == ["lost", "completed"]

    def test_a_killed_agent(self, local: Desk) -> None:
        """The supervisor adopts what it leaves behind, and would let it be until the job's end."""
        assert_no_orphan_lives_beside_the_next_run(local)
