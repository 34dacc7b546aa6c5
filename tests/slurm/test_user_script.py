"""What a job's record says of the options and words that its script was submitted with."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from detslurm.slurm import command
from detslurm.slurm.job_record import options_of, parse_job_records
from detslurm.slurm.script_arguments import arguments, behind
from detslurm.slurm.user_script import keep, submit_again
from tests.cluster.waiting import wait_for
from tests.slurm.bench import Bench

RECORD = """\
JobId=7 JobName=two words
   UserId=alice(1001) Account=(null) QOS=normal
   Requeue=1 BatchFlag=1 TimeLimit=1-02:00:00
   Partition=low NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1
   NtasksPerN:B:S:C=2:0:*:* MinCPUsNode=2 MinMemoryCPU=100M Features=(null) Licenses=(null)
   WorkDir=/home/alice/my work
   Comment=--account=x
   """


def options(more: str) -> list[str]:
    (record,) = parse_job_records(RECORD + more)
    return options_of(record)


def test_what_the_job_asked_for_is_asked_for_again() -> None:
    """Values with blanks stay whole, what was not said stays unsaid."""
    assert options("TresPerNode=gres:gpu:2\n") == [
        "--job-name=two words",
        "--partition=low",
        "--qos=normal",
        "--time=1-02:00:00",
        "--nodes=2",
        "--ntasks=4",
        "--cpus-per-task=1",
        "--mem-per-cpu=100M",
        "--chdir=/home/alice/my work",
        "--ntasks-per-node=2",
        "--gres=gpu:2",
        "--requeue",
    ]


def test_memory_is_asked_for_as_sbatch_takes_it() -> None:
    """Slurm prints halves of a unit, 1536M as 1.50G, and refuses them."""
    for printed, asked in (
        ("1.50G", "1536M"),
        ("2.50T", "2560G"),
        ("16G", "16G"),
        ("500M", "500M"),
    ):
        assert options_of({"MinMemoryNode": printed}) == [f"--mem={asked}"]
    assert options_of({"MinMemoryCPU": "1.50G"}) == ["--mem-per-cpu=1536M"]
    whole = {"MinMemoryNode": "0", "MinTmpDiskNode": "1.50T"}
    assert options_of(whole) == ["--mem=0", "--tmp=1536G"]
    assert options_of({"MinMemoryCPU": "0", "MinTmpDiskNode": "0"}) == []


def test_a_job_that_may_not_be_requeued_stays_so() -> None:
    """By the site's default its successor might be; what is not known is left to the site."""
    assert options_of({"Requeue": "0"}) == ["--no-requeue"]
    assert options_of({}) == []


@pytest.mark.cluster
def test_nodes_are_asked_for_again(real: Bench) -> None:
    """Those that it wants, those that it must not have, and that nobody else is on them; by what
    Slurm shows of a job that runs, and Slurm takes it."""
    wanted = {"--exclusive", "--exclude=n1", "--nodelist=n[2-3]"}
    for asked in (wanted, set[str]()):
        job = command.run(
            ["sbatch", "--parsable", "--nodes=2", *asked, "--output=/dev/null", "--wrap=sleep 60"]
        ).strip()
        real.wait_state(job, "RUNNING")
        (record,) = parse_job_records(command.run(["scontrol", "show", "job", job]))
        again = options_of(record)
        names = ("--excl", "--node", "--over")
        assert {word for word in again if word.startswith(names)} == {"--nodes=2", *asked}
        command.run(["sbatch", "--test-only", *again, "--wrap=true"])
        real.cluster.cancel([job])


@pytest.mark.cluster
def test_a_script_is_queued_once_though_the_answer_was_lost(
    real: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job is found by the name that this one submission has, arguments or not. Nothing of that
    is left, and the file system needs no hard links."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    script, tools = real.folder / "batch.sh", real.folder / "bin"
    script.write_text("#!/bin/bash\ntrue\n")
    tools.mkdir()
    (tools / "sbatch").write_text(
        f'#!/bin/bash\n{shutil.which("sbatch")} "$@"\necho "Socket timed out" >&2; exit 1\n'
    )
    (tools / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "link", refused)
    recipe = {
        "job": "1",
        "command": "/a/batch.sh",
        "variables": [],
        "options": ["--job-name=x"],
        "arguments": ["two words", "x"],
    }
    jobs = [submit_again(script, recipe), submit_again(script, {**recipe, "arguments": []})]
    queued = command.run(["squeue", "--noheader", "--me", "--format=%F"]).split()
    assert sorted(queued) == sorted(jobs)
    assert list(real.folder.glob("batch*")) == [script]


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("TresPerNode=gres:gpu:2", "--gres=gpu:2"),
        ("TresPerNode=gres/gpu:2", "--gres=gpu:2"),
        ("TresPerNode=gres/gpu:a100:2,gres/shard:4", "--gres=gpu:a100:2,shard:4"),
        ("TresPerJob=gres:gpu:fake:4", "--gpus=fake:4"),
        ("TresPerJob=gres/gpu:4", "--gpus=4"),
        ("TresPerTask=gres:gpu:1", "--gpus-per-task=1"),
        ("TresPerTask=cpu=2,gres/gpu=1", "--gpus-per-task=1"),
        ("TresPerSocket=gres/gpu:1", "--gpus-per-socket=1"),
    ],
)
def test_gpus_as_every_slurm_says_them(said: str, option: str) -> None:
    """Up to 23.02, since 23.11, and however they were asked for."""
    assert [word for word in options(said + "\n") if "g" in word[:4]] == [option]


def test_what_is_counted_by_gpus_is_not_said_twice() -> None:
    """sbatch refuses it beside what the record tells of CPUs and memory."""
    words = options("CpusPerTres=gres:gpu:2\n   MemPerTres=gres:gpu:10\n   TresPerJob=gres:gpu:2\n")
    assert {"--cpus-per-gpu=2", "--mem-per-gpu=10", "--gpus=2"} < set(words)
    assert not {"--cpus-per-task=1", "--mem-per-cpu=100M"} & set(words)


def test_exact_arguments_from_the_batch_shell(tmp_path: Path) -> None:
    """As long as it runs, whatever the record has of them; not those of another job."""
    spool = tmp_path / "job00012"
    spool.mkdir()
    (spool / "slurm_script").write_text("read line\n")
    words = ["two words", "", "--x=$HOME", "*"]
    argv = ["/bin/bash", str(spool / "slurm_script"), *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as shell:
        wait_for(
            lambda: b"slurm_script" in Path(f"/proc/{shell.pid}/cmdline").read_bytes(), 30, "exec"
        )
        assert arguments("12", {"Command": "/a/job.sh two words"}) == words
        assert arguments("2", {"Command": "/a/job.sh two words"}) == ["two", "words"]
        assert shell.stdin is not None
        shell.stdin.close()


def test_arguments_by_the_command_line_of_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since 23.02 the record has none: its SubmitLine, else accounting's."""
    line = "sbatch --hold -p low ./jobs/job.sh 1 --x=2"
    assert behind("/a/jobs/job.sh", line) == ["1", "--x=2"]
    assert behind("/a/job.sh", "sbatch --wrap=hostname") == []
    record = {"Command": "/a/jobs/job.sh"}
    assert arguments("1200", {**record, "SubmitLine": line}) == ["1", "--x=2"]
    monkeypatch.setattr(command, "run", lambda argv, **_: line if argv[0] == "sacct" else "")
    assert arguments("1200", record) == ["1", "--x=2"]


def test_what_is_kept_of_a_command_line_has_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may read the store."""
    line = "SubmitLine=sbatch -A lab --export=ALL,WANDB_API_KEY=hush job.sh\n   Command=/a/job.sh\n"
    monkeypatch.setattr(command, "run", lambda *_, **__: f"{RECORD.rstrip()}\n   {line}")
    recipe = keep("7", tmp_path / "batch.sh")
    assert recipe is not None
    assert "hush" not in str(recipe)
