"""What a job takes from the shell that submitted it, its setup and its site; what it does not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.cluster import Cluster
from tests.cluster.namespaces import may_unshare
from tests.e2e.desk import Desk

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("search", [None, "async_halving, max_trials: 2, num_rungs: 2"])
def test_a_failing_line_of_the_setup_is_the_end_and_shown(
    desk: Desk, site: Cluster, search: str | None
) -> None:
    """By every command that shows why nothing came; none advises what would fail again."""
    conda = desk.write("bin/conda", "#!/bin/sh\necho CondaError: run conda init >&2\nexit 1\n")
    conda.chmod(0o755)
    setup = f"slurm.setup=[set -eu, export PATH={conda.parent}:$PATH, conda activate gone]"
    more = [f"searcher={{name: {search}, metric: loss, max_length: 16}}"] if search else []
    number = desk.submit(desk.project("print('trained')"), setup, *more)
    for ref in [ref for job in desk.view(number).jobs for ref in job.refs]:
        site.wait_state(ref, "FAILED")
    for command in ("wait", "logs", "logs -f", *([] if search else ["describe"])):
        done = desk.run("e", *command.split(), str(number), check=False)
        shown = done.stdout + done.stderr
        assert "CondaError: run conda init" in shown, command
        assert "slurm.setup, line 3, failed on n" in shown, command
        assert "activate`" not in shown and "e activate" not in shown, command
    assert desk.outcomes(number) == []


SHELL = {
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "NODE_RANK"), "8"),
    "MASTER_PORT": "12355",
    "PET_NNODES": "4",
    "TORCHELASTIC_RUN_ID": "none",
    "CUDA_VISIBLE_DEVICES": "5",
    "GROUP_RANK": "3",
    "OWN_SETTING": "kept",
    "SLURM_JOB_ID": "1",
    "TRITON_CACHE_DIR": "/tmp/1",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/1",
}
PRINTS = """\
    import ctypes, json, os, socket

    here = dict(os.environ)
    if os.path.exists("/usr/bin/mpirun"):
        assert not ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL).MPI_Init(None, None)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", int(here["MASTER_PORT"])))
        server.listen()
    print("ENVIRONMENT", json.dumps(here), flush=True)
    """


def test_the_code_is_no_rank_of_the_shell_or_of_the_sites_prolog(desk: Desk) -> None:
    """Nor of the step of its agent, so that Open MPI begins without srun's help. It has a port of
    its own, and what the configuration names. A PYTHONPATH with another msgspec is for the code
    alone."""
    prolog = desk.write("prolog", "#!/bin/sh\necho export RANK=7\necho export OWN_PROLOG=kept\n")
    prolog.chmod(0o755)
    lines = [f"export SLURM_TASK_PROLOG={prolog}", "export SRUN_CONTAINER=/none WORLD_SIZE=7"]
    lines.append("export SLURM_HOSTFILE=/none")
    config = desk.project(PRINTS, "environment: {environment_variables: [NODE_RANK=2]}\n")
    tree = desk.write("tree/msgspec.py", "raise ImportError('made for another Python')\n").parent
    env = {**desk.user.env, **SHELL, "PYTHONPATH": str(tree)}
    shell = Desk(replace(desk.user, env=env))
    number = shell.submit(config, f"slurm.setup={json.dumps(lines)}")
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    log = desk.log(number)
    has = json.loads(log.partition("ENVIRONMENT ")[2].partition("\n")[0])
    assert {has.get(name) for name in ("OWN_SETTING", "OWN_PROLOG")} == {"kept"}
    assert has["NODE_RANK"] == "2" and has["PYTHONPATH"].startswith(str(tree))
    assert has["MASTER_ADDR"] == "127.0.0.1" and has["MASTER_PORT"] != "12355"
    mine = {"NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "OWN_SETTING", "SLURM_JOB_ID"}
    step = {
        "SLURM_NTASKS",
        "SLURM_NPROCS",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_STEP_ID",
        "SLURM_STEPID",
    }
    assert not (SHELL.keys() - mine | step | {"SRUN_CONTAINER", "SLURM_HOSTFILE"}) & has.keys()
    assert "not passed on: RANK, WORLD_SIZE, which the job has from its setup or its site" in log


_NOEXEC = """\
for place in "$@"; do
  mount --rbind "$place" "$place" && mount -o remount,bind,noexec "$place" || exit 1
done
mount --bind "$0" "$0" && mount -o remount,bind,exec "$0"
"""


@contextmanager
def noexec(site: Cluster, *places: str) -> Iterator[None]:
    """No program of the nodes can be started in these directories, except in the cluster's own."""
    if not may_unshare():
        pytest.skip("a noexec file system: only root can mount one, and not in every container")
    root = str(site.layout.root)
    views = [
        ["nsenter", "--mount", f"--target={site.daemons.pid(f'slurmd.{node}')}"]
        for node in site.command("sinfo", "-hNo%N").split()
    ]
    try:
        for view in views:
            subprocess.run([*view, "sh", "-c", _NOEXEC, root, *places], check=True)
        yield
    finally:
        for view in views:
            for place in (root, *places):
                subprocess.run([*view, "umount", "--lazy", place], check=False)


def test_programs_run_where_the_directory_for_temporary_files_is_noexec(
    desk: Desk, site: Cluster
) -> None:
    """In another directory; where there is none, the second run says so and is the last."""
    config = desk.project("print('unused')")
    desk.write("project/run", "#!/bin/sh\necho trained in $PWD\n").chmod(0o755)
    arguments = (config, "entrypoint=./run", "slurm.setup=[export TMPDIR=/tmp]")
    with noexec(site, "/tmp"):
        number = desk.submit(*arguments)
        desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert "/tmp is mounted noexec: the working directory is in /var/tmp" in desk.log(number)
    assert "trained in /var/tmp/" in desk.log(number) and desk.outcomes(number) == ["completed"]
    with noexec(site, "/tmp", "/var/tmp"):
        number = desk.submit(*arguments)
        desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["restart", "error"]
    reason = desk.trial(number).runs[-1].reason
    assert reason and "no program can be started in /tmp, which is mounted noexec" in reason
