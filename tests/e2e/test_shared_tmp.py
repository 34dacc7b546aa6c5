"""A site where TMPDIR lies at home, on the file system that all nodes share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.e2e.desk import Desk

pytestmark = pytest.mark.cluster

# Gives each agent process ids of its own, as nodes have them, and not the same ones on all.
SRUN = """\
    #!/usr/bin/python3
    import os, sys
    os.environ["PATH"] = os.environ["PATH"].partition(":")[2]
    border = sys.argv.index("--") + 1
    pids = int(os.environ["SLURM_ARRAY_TASK_ID"]) * 20
    script = f'for i in $(seq $(({pids} + 10 * SLURM_NODEID))); do /bin/true; done; "$@"'
    space = ["unshare", "-Ucpf", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"]
    os.execvp("srun", ["srun", *sys.argv[1:border], *space, *sys.argv[border:]])
    """

# Every node's code waits for all others, whose agents have cleaned up by then.
LOOKS_AROUND = """\
    import os, pathlib, time
    import detslurm as det

    info = det.get_cluster_info()
    pathlib.Path("own").write_text(f"{info.trial.trial_id}.{info.container_rank}")
    all_here = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "here"
    all_here.mkdir(exist_ok=True)
    (all_here / pathlib.Path("own").read_text()).touch()
    while len(list(all_here.iterdir())) < 4:
        time.sleep(0.05)
    assert os.getcwd().startswith(os.environ["TMPDIR"]), os.getcwd()
    assert sorted(os.listdir()) == ["experiment.yaml", "own", "train.py"], os.listdir()
    assert pathlib.Path("own").read_text() == f"{info.trial.trial_id}.{info.container_rank}"
    """


def test_nodes_leave_each_others_directories_alone(desk: Desk) -> None:
    """Two trials on two nodes each work in one TMPDIR; nothing of theirs is left at the end."""
    tmp = desk.user.own(desk.write("tmp/kept", "").parent)
    shim = desk.write("shim/srun", SRUN)
    shim.chmod(0o755)
    env = {**desk.user.env, "TMPDIR": str(tmp), "PATH": f"{shim.parent}:{desk.user.env['PATH']}"}
    desk = Desk(replace(desk.user, env=env))
    number = desk.submit(
        desk.project(LOOKS_AROUND, "hyperparameters: {x: {type: categorical, vals: [1, 2]}}"),
        "searcher.name=grid",
        "resources.slots_per_trial=2",
        "slurm.slots_per_node=1",
        "max_restarts=0",
    )
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED"
    assert [path.name for path in tmp.iterdir()] == ["kept"]
