"""The shell of a batch script, run by bash with programs that say how they were called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detslurm._base import startup
from detslurm.jobs.resubmit import runner_command
from detslurm.slurm import JobRequest
from detslurm.slurm.shell_lines import command_line, failed_setups, prologue

SAYS = '#!/bin/bash\nprintf "%s\\n" "$0" "$@"\n'


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment whose path has a space, as it is while a job is submitted."""
    programs, package = tmp_path / "an env" / "bin", tmp_path / "an env" / "lib" / "python3.11"
    for folder in (programs, package):
        folder.mkdir(parents=True)
    (package / "startup.py").write_text("")
    for name in ("python3", "python3.11"):
        (programs / name).write_text(SAYS)
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python3.11"))
    monkeypatch.setattr(startup, "__file__", str(package / "startup.py"))
    return tmp_path / "an env"


def called(folder: Path, request: JobRequest, change: Path | None = None) -> list[str]:
    script = command_line(request)
    if change is not None:
        change.unlink()
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=folder)
    return done.stdout.splitlines()


@pytest.mark.parametrize("gone", [None, "lib/python3.11/startup.py", "bin/python3.11"])
def test_a_job_outlives_a_new_installation(
    environment: Path, tmp_path: Path, gone: str | None
) -> None:
    """At the same place, of another Python or version, while it waits in the queue."""
    command = runner_command(tmp_path / "experiments" / "7", 3)
    request = JobRequest(name="x", command=command, folder=tmp_path)
    words = called(tmp_path, request, environment / gone if gone else None)
    if gone is None:
        assert words == list(command)
    else:
        python = str(environment / "bin" / "python3")
        assert words == [python, "-P", "-m", "detslurm.exec.runner", *command[4:]]


def test_any_other_command_is_as_it_was_given(tmp_path: Path) -> None:
    request = JobRequest(name="x", command=("echo", "a b"), folder=tmp_path)
    assert command_line(request) == "exec echo 'a b'"


def test_an_agent_starts_without_the_file_too(environment: Path) -> None:
    """A runner may be older than the installation."""
    module = "detslurm.exec.agent"
    assert startup.command(module)[1:] == ["-PS", startup.__file__, module]
    Path(startup.__file__).unlink()
    assert startup.command(module)[1:] == ["-P", "-m", module]


def printed(request: JobRequest) -> list[str]:
    """The lines of the output that the job itself has opened."""
    (output,) = request.folder.glob("slurm-*.out")
    return output.read_text().splitlines()


def ran(tmp_path: Path, *setup: str, job: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """What a job with this setup prints, and how that says its setup has failed."""
    (tmp_path / "sourced").write_text("false\ntrue\n")
    request = JobRequest(name="x", command=("echo", "trained"), folder=tmp_path, setup=setup)
    script = tmp_path / "script"
    script.write_text("\n".join([*prologue(request), 'echo "$-"', command_line(request)]))
    env = {"PATH": "/usr/bin:/bin", "HOSTNAME": "n1", **job}
    done = subprocess.run(["bash", script], cwd="/", env=env)
    lines = printed(request)
    assert (done.returncode == 0) == ("trained" in lines)
    return lines, failed_setups(lines)


ELEMENT = {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}


@pytest.mark.parametrize(
    ("setup", "line", "status"),
    [
        (("true", "conda activate nowhere"), ", line 2,", 127),
        (("set -eu", "false"), ", line 2,", 1),
        (("if true", "then", "  true", "  false", "fi"), ", line 4,", 1),
        (("set -u", 'echo "$UNSET"'), "", 1),
        (("exit 3",), "", 3),
        (("if",), "", 2),
        (("wrong() { false; return 4; }", "wrong"), ", line 2,", 4),
    ],
)
def test_a_line_of_the_setup_that_fails_ends_the_job(
    tmp_path: Path, setup: tuple[str, ...], line: str, status: int
) -> None:
    """And names itself by its number, for it may hold a secret."""
    lines, failed = ran(tmp_path, *setup, job=ELEMENT)
    reason = failed["7_1"]
    assert reason.startswith("slurm.setup") and reason.endswith(f"exit status {status}")
    assert line in reason
    assert lines[-1] == f"detslurm: job 7_1: {reason}"


def test_what_a_setup_may_do(tmp_path: Path) -> None:
    """Conditions, handled errors and sourced files fail nothing; its options end with it."""
    setup = ("set -eu", "false || true", "[ 1 = 2 ] && echo no", "set +e", ". ./sourced")
    lines, failed = ran(tmp_path, *setup, job={"DETSLURM_LOCAL_JOB_ID": "3"})
    assert lines[-1] == "trained" and not failed
    assert not {"e", "u"} & set(lines[0])


def test_a_module_that_fails_is_named(tmp_path: Path) -> None:
    """On the local cluster, too."""
    request = JobRequest(name="x", command=("true",), folder=tmp_path, modules=("no such",))
    script = "module() { return 1; }\n" + "\n".join(prologue(request))
    env = {"PATH": "/usr/bin:/bin", "DETSLURM_LOCAL_JOB_ID": "3", "DETSLURM_LOCAL_TASK_ID": "0"}
    subprocess.run(["bash", "-c", script], env=env)
    failed = failed_setups(printed(request))
    assert failed["3_0"].startswith("slurm.modules: module load no such failed on ")
