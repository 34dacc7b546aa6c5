"""Environments that nodes run from their own disks, through the front door."""

from __future__ import annotations

import re
import site
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.namespaces import may_unshare
from tests.e2e.desk import Desk

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not may_unshare(), reason="nodes get disks by user namespaces"),
]

# Gives each node a disk of its own, where all nodes are one machine; or one without room.
SRUN = """\
    #!/usr/bin/python3
    import os, sys
    os.environ["PATH"] = os.environ["PATH"].partition(":")[2]
    border = sys.argv.index("--") + 1
    script = '''
    disk=$DISKS/$SLURMD_NODENAME; mkdir -p $disk
    if [ -e $DISKS/full ]; then mount -t tmpfs -o size=4m none $TMPDIR
    else mount --bind $disk $TMPDIR; fi
    exec "$@"
    '''
    space = ["unshare", "-Urm", "sh", "-ec", script, "sh"]
    os.execvp("srun", ["srun", *sys.argv[1:border], *space, *sys.argv[border:]])
    """

# All trials are there at the same time, on each of their nodes.
MEETS = """\
    import os, pathlib, sys, time
    import detslurm as det, package

    info = det.get_cluster_info()
    all_here = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "here"
    all_here.mkdir(exist_ok=True)
    (all_here / f"{info.trial.trial_id}.{info.container_rank}").touch()
    while len(list(all_here.iterdir())) < 6:
        time.sleep(0.05)
    assert package.__file__.startswith(sys.prefix), package.__file__
    print("copy", os.environ["SLURMD_NODENAME"], sys.prefix, os.stat(sys.prefix).st_ino)
    """

WAITS_FOR_PREEMPTION = """\
    import os, sys, time
    import detslurm as det

    print("prefix", sys.prefix, flush=True)
    with det.core.init() as core:
        while os.environ["DET_TRIAL_RUN_ID"] == "1":
            if core.preempt.should_preempt():
                sys.exit()
            time.sleep(0.05)
    """


@pytest.fixture
def environment(desk: Desk) -> Path:
    """A virtual environment of this user's, with a package and all that the suite's Python has."""
    assert desk.user.cwd is not None
    prefix = desk.user.cwd / "venv"
    venv.create(prefix, symlinks=True)
    (packages,) = prefix.glob("lib/python3*/site-packages")
    (packages / "package.py").write_text("VALUE = 1\n")
    lines = (f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages())
    (packages / "suite.pth").write_text("\n".join(lines))
    desk.user.own(prefix)
    return prefix


@pytest.fixture
def nodes(desk: Desk) -> Desk:
    """The same user, where every node has a disk of its own at TMPDIR."""
    assert desk.user.cwd is not None
    shim = desk.write("shim/srun", SRUN)
    shim.chmod(0o755)
    disks, tmp = (desk.user.folder_in(desk.user.cwd, name) for name in ("disks", "tmp"))
    env = {**desk.user.env, "TMPDIR": str(tmp), "DISKS": str(disks)}
    env["PATH"] = f"{shim.parent}:{desk.user.env['PATH']}"
    return Desk(replace(desk.user, env=env))


def test_every_node_runs_its_own_copy(nodes: Desk, environment: Path) -> None:
    """Three trials at once on two nodes each: one archive, one copy a node, none at the end."""
    staged = f"slurm.stage_environment={environment}"
    config = nodes.project(MEETS, "hyperparameters: {x: {type: categorical, vals: [1, 2, 3]}}")
    both = ("resources.slots_per_trial=2", "slurm.slots_per_node=1", "max_restarts=0")
    number = nodes.submit(config, staged, "searcher.name=grid", *both)
    assert nodes.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", nodes.log(number)
    logs = "".join(nodes.log(number, index) for index in range(3))
    said = set(re.findall(r"copy (\S+) (\S+) (\d+)", logs))
    assert len({node for node, _, _ in said}) == len(said) >= 2, logs
    assert len({path for _, path, _ in said}) == 1
    assert len(list((nodes.store.path / "environments").iterdir())) == 1
    described = nodes.run("experiment", "describe", str(number)).stdout
    assert "staged in 3 of 3 runs" in described, described


def test_a_preempted_run_and_a_full_disk(nodes: Desk, environment: Path) -> None:
    """A second submission packs nothing; its run goes on from a copy; without room it runs, too."""
    staged = ("--config", f"slurm.stage_environment={environment}")
    config = str(nodes.project(WAITS_FOR_PREEMPTION))
    low = ("--config", "resources.resource_pool=low")
    first = nodes.run("submit", config, *staged, *low)
    assert "Packing: " in first.stderr
    nodes.wait_for_log(1, "prefix ")
    nodes.user.run("sbatch", "-phigh", "-N4", "--exclusive", "-o/dev/null", "--wrap=sleep 1")
    assert nodes.wait_for_state(1, "COMPLETED", "ERROR") == "COMPLETED", nodes.log(1)
    assert nodes.outcomes(1) == ["preempted", "completed"]
    prefixes = re.findall(r"prefix (\S+)", nodes.log(1))
    assert len(prefixes) == 2
    assert all(prefix.startswith(nodes.user.env["TMPDIR"]) for prefix in prefixes), prefixes

    disks = Path(nodes.user.env["DISKS"])
    (disks / "full").touch()
    config = str(nodes.project("import sys; print('prefix', sys.prefix)"))
    second = nodes.run("submit", config, *staged)
    assert "Staging, packed before: " in second.stderr
    assert nodes.wait_for_state(2, "COMPLETED", "ERROR") == "COMPLETED", nodes.log(2)
    assert f"prefix {environment}" in nodes.log(2)
    assert re.search(r"not staged: .*has .* free, and it takes ", nodes.log(2))
    described = nodes.run("experiment", "describe", "2").stdout
    assert "not staged in 1 run: " in described, described
