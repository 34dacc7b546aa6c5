"""Environments on the disks of nodes: packed at the submission, unpacked once per node."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks import experiments
from benchmarks.experiments import job_environment, runner_command, submitted
from detslurm._base import node_files
from detslurm.exec import staging
from detslurm.exec.staging import NotStaged, StagedEnvironment, stage
from detslurm.exec.workdir import make_workdir
from detslurm.sdk import Client
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.environment import archive_path, find_environment, keep
from detslurm.store import ExperimentDir, Store
from detslurm.store.records import MANIFEST

SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

Packed = dict[str, Any]

PRINTS = """\
    import os, shutil, sys, package
    print("prefix", sys.prefix)
    print("package", package.__file__)
    print("tool", shutil.which("tool"), os.popen("tool").read().strip())
    print("variable", os.environ["VIRTUAL_ENV"])
    """

KILLS = """\
    import os, subprocess, sys
    print("prefix", sys.prefix)
    code = '''import sys
    from pathlib import Path
    from detslurm.store import ExperimentDir
    from detslurm.store.records import Intent
    ExperimentDir.at(Path(sys.argv[1])).append(Intent(intent="kill"))'''
    subprocess.run(["{python}", "-c", code, os.environ["DETSLURM_EXPERIMENT_DIR"]], check=True)
    """


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: the first lines of scripts name what is in it."""
    with TemporaryDirectory(prefix="stage-", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A small virtual environment with a package, a command and what this Python has."""
    prefix = tmp_path / "venv"
    venv.create(prefix, symlinks=True)
    packages = prefix / SITE
    (packages / "package.py").write_text("VALUE = 1\n")
    (packages / "ours.pth").write_text("\n".join(p for p in sys.path if "site-packages" in p))
    tool = prefix / "bin" / "tool"
    tool.write_text(f"#!{prefix}/bin/python3\nimport sys; print(sys.prefix)\n")
    tool.chmod(0o755)
    return prefix


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's own disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setattr(staging, "_place", lambda: folder)
    return folder


def packed(environment: Path, tmp_path: Path) -> Packed:
    """The environment as nodes get to know it."""
    found = find_environment(str(environment))
    assert found is not None
    kept = keep(found, Store.open(tmp_path / "store"), lambda done, whole: None)
    plain: Packed = msgspec.to_builtins(kept)
    return plain


@pytest.fixture
def one(environment: Path, tmp_path: Path) -> Packed:
    """The packed environment."""
    return packed(environment, tmp_path)


def staged(environment: Mapping[str, Any]) -> StagedEnvironment:
    return stage(environment, wait=lambda seconds: None, stopped=lambda: False)


def reason(environment: Mapping[str, Any]) -> str:
    with pytest.raises(NotStaged) as caught:
        staged(environment)
    return str(caught.value)


def archives(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "store" / "environments")  # noqa: PTH208


def copies(disk: Path) -> list[Path]:
    return [copy for home in disk.iterdir() for copy in home.iterdir()]


class TestARun:
    """Runner and agent, as a job of one node starts them."""

    def _run(self, tmp_path: Path, environment: Path, script: str, root: Path | None = None) -> str:
        tmp = tmp_path / "tmp"
        tmp.mkdir()
        slurm = f", stage_environment: {environment}"
        experiment = submitted(tmp_path, tmp_path / "store", "python3 train.py", script, slurm)
        if root is not None:
            experiment = Store(experiment.store.path.rename(root)).experiment(experiment.id)
        path = f"{environment}/bin:/usr/bin:/bin"
        own = {"TMPDIR": str(tmp), "PATH": path, "VIRTUAL_ENV": str(environment)}
        subprocess.run(
            runner_command(experiment), env=job_environment(dict(os.environ) | own), check=False
        )
        assert os.listdir(tmp) == []  # noqa: PTH208
        return _log(experiment)

    def test_a_killed_experiment_frees_the_disk(
        self, tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Trials that have not begun need the copy no more."""
        grid = experiments.CONFIG.replace("name: single", "name: grid")
        grid += "hyperparameters: {{x: {{type: categorical, vals: [1, 2]}}}}\n"
        monkeypatch.setattr(experiments, "CONFIG", grid)
        log = self._run(tmp_path, environment, KILLS.format(python=sys.executable))
        assert f"prefix {tmp_path}/tmp/" in log, log

    def test_its_code_runs_in_the_copy(self, tmp_path: Path, environment: Path) -> None:
        """Python, packages and commands are the copy's; afterwards the disk is free again."""
        log = self._run(tmp_path, environment, PRINTS)
        copy = f"{tmp_path}/tmp/detslurm-{os.geteuid()}-environments/"
        assert f"prefix {copy}" in log, log
        assert f"package {copy}" in log
        assert f"variable {copy}" in log
        tool = next(line for line in log.splitlines() if " tool " in line)
        assert tool.count(copy) == 2, tool

    def test_a_store_that_was_moved_has_its_archive(
        self, tmp_path: Path, environment: Path
    ) -> None:
        """Where the record names its old place, too."""
        log = self._run(tmp_path, environment, PRINTS, tmp_path / "moved")
        assert f"prefix {tmp_path}/tmp/" in log, log


def _log(experiment: ExperimentDir) -> str:
    (log,) = experiment.path.glob("trials/*/*/run-1.log")
    return log.read_text()


class TestPacking:
    """Submission."""

    def test_an_unchanged_environment_is_packed_once(
        self, tmp_path: Path, environment: Path
    ) -> None:
        """Imports that compile change nothing; an edited module makes another archive."""
        first = packed(environment, tmp_path)
        compiles = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        argv = [str(environment / "bin" / "python3"), "-c", "import package"]
        subprocess.run(argv, env=compiles, check=True)
        assert (environment / SITE / "__pycache__").exists()
        assert packed(environment, tmp_path) == first
        (environment / SITE / "package.py").write_text("VALUE = 2\n")
        assert packed(environment, tmp_path)["archive"] != first["archive"]
        assert len(archives(tmp_path)) == 2

    def test_an_interrupted_one_leaves_nothing(self, tmp_path: Path, environment: Path) -> None:
        """Ctrl-C in the middle."""
        found = find_environment(str(environment))
        assert found is not None

        def interrupt(done: int, whole: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            keep(found, Store.open(tmp_path / "store"), interrupt)
        assert archives(tmp_path) == []

    def test_the_faster_of_two_is_kept(self, tmp_path: Path, environment: Path) -> None:
        """It may have fewer compiled modules: its own size is what nodes will find."""
        found, store = find_environment(str(environment)), Store.open(tmp_path / "store")
        assert found is not None

        def other(done: int, whole: int) -> None:
            archive_path(found, store).write_bytes(b"another")

        kept = keep(found, store, other)
        assert (Path(kept.archive).read_bytes(), kept.size) == (b"another", 7)

    def test_what_changes_meanwhile_is_refused(self, tmp_path: Path, environment: Path) -> None:
        """Half of an installation must not be kept."""
        found = find_environment(str(environment))
        assert found is not None

        def install(done: int, whole: int) -> None:
            (environment / SITE / "late.py").touch()

        with pytest.raises(SubmitError, match="has changed while it was packed"):
            keep(found, Store.open(tmp_path / "store"), install)
        assert archives(tmp_path) == []

    def test_what_is_no_environment_is_refused(self, tmp_path: Path) -> None:
        """The system's Python, or a typing error."""
        with pytest.raises(SubmitError, match="neither a virtual environment"):
            find_environment(str(tmp_path))
        with pytest.raises(SubmitError, match="No such file"):
            find_environment(str(tmp_path / "none"))

    def test_garbage_collection_takes_what_nobody_stages(
        self, tmp_path: Path, environment: Path
    ) -> None:
        """Not what is new, nor what an experiment that may still run is going to stage."""
        slurm = f", stage_environment: {environment}"
        experiment = submitted(tmp_path, tmp_path / "store", "python3 train.py", "", slurm)
        used = experiment.created().environment
        assert used is not None
        (environment / SITE / "package.py").write_text("VALUE = 2\n")
        other = packed(environment, tmp_path)["archive"]
        (environment / SITE / "new.py").touch()
        newest = packed(environment, tmp_path)["archive"]
        for archive in (used.archive, other):
            os.utime(archive, (1e9, 1e9))
        collected = Client(tmp_path / "store").gc()
        assert [one.path for one in collected.leftovers] == [other]
        assert sorted(archives(tmp_path)) == sorted(Path(p).name for p in (used.archive, newest))

    def test_an_entrypoint_that_leads_back_is_named(
        self, tmp_path: Path, environment: Path
    ) -> None:
        """Its absolute path would be run from the shared file system, in silence."""
        slurm = f", stage_environment: {environment}"
        python = f"{environment}/bin/python3 train.py"
        with pytest.warns(UserWarning, match="is run from there, not staged"):
            submitted(tmp_path, tmp_path / "store", python, "", slurm)


class TestANode:
    """Unpacking, once per node, and when it is better left."""

    def test_many_at_once_unpack_once(self, tmp_path: Path, one: Packed, disk: Path) -> None:
        """Others wait for the first one, and find the same copy."""
        script = tmp_path / "race.py"
        script.write_text(
            "import json, sys, time\nfrom pathlib import Path\n"
            "from detslurm.exec import staging\n"
            f"staging._place = lambda: Path({str(disk)!r})\n"
            "found = staging.stage(json.loads(sys.argv[1]), wait=time.sleep, stopped=bool)\n"
            "print(found.path, Path(found.path).stat().st_ino)\n"
            "input()\n"
        )
        argv = [sys.executable, str(script), msgspec.json.encode(one).decode()]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        race = [subprocess.Popen(argv, **pipes) for _ in range(6)]
        said = set()
        for racer in race:
            assert racer.stdout is not None
            said.add(racer.stdout.readline())
        assert len(said) == 1, said
        staging.main([])
        assert len(copies(disk)) == 1  # in use
        for racer in race:
            racer.communicate("\n")
        staging.main([])
        assert list(disk.iterdir()) == []

    def test_what_a_killed_one_leaves_is_removed(
        self, one: Packed, disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernel has released its lock; half a copy has no name that anybody looks for."""

        def die(copy: Path) -> None:
            os._exit(9)

        with monkeypatch.context() as killed:
            killed.setattr(staging, "_check", die)
            if (child := os.fork()) == 0:
                try:
                    staged(one)
                finally:
                    os._exit(1)  # never a second pytest, whatever is wrong with the copy
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 9
        (half,) = copies(disk)
        copy = Path(staged(one).path)
        assert copies(disk) == [copy]
        assert half != copy

    def test_one_that_was_installed_into_is_not_used_again(self, one: Packed, disk: Path) -> None:
        """As a startup hook does it: the next run gets what was packed."""
        first = staged(one)
        (Path(first.path) / SITE / "installed.py").touch()
        assert "has changed its copy" in reason(one)
        os.close(first.lock)
        assert not (Path(staged(one).path) / SITE / "installed.py").exists()

    @pytest.mark.parametrize(
        "harm",
        [
            lambda copy: (copy / "bin" / "tool").unlink(),
            lambda copy: os.truncate(copy / SITE / "package.py", 0),
            lambda copy: (copy / SITE / "package.py").write_text("VALUE = 3\n"),
            lambda copy: (copy / MANIFEST).write_text(""),
            lambda copy: (copy / staging._STATE).unlink(),
            lambda copy: (copy / staging._STATE).write_bytes(b"\xff"),
        ],
    )
    def test_what_is_no_longer_whole_is_made_again(
        self, one: Packed, disk: Path, harm: Callable[[Path], None]
    ) -> None:
        """A cleaner of /tmp takes files one by one, a loss of power what they hold."""
        first = staged(one)
        os.close(first.lock)
        harm(Path(first.path))
        copy = Path(staged(one).path)
        assert (copy / SITE / "package.py").read_text() == "VALUE = 1\n"
        assert (copy / "bin" / "tool").exists()
        assert copies(disk) == [copy]

    def test_one_of_before_a_reboot_is_made_again(
        self, tmp_path: Path, one: Packed, disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its sizes may be right and its bytes zeros."""
        monkeypatch.setattr(staging, "_BOOT", tmp_path / "boot")
        (tmp_path / "boot").write_text("first")
        first = staged(one)
        os.close(first.lock)
        held = os.open(first.path, os.O_RDONLY)  # no other directory gets its number
        os.close(staged(one).lock)
        assert os.path.samestat(os.fstat(held), os.stat(first.path))  # noqa: PTH116
        (tmp_path / "boot").write_text("second")
        os.close(staged(one).lock)
        assert not os.path.samestat(os.fstat(held), os.stat(first.path))  # noqa: PTH116
        os.close(held)

    def test_one_that_nobody_has_used_for_a_day_is_removed(
        self, tmp_path: Path, environment: Path, disk: Path
    ) -> None:
        """By any job of the user there, which may stage nothing."""
        code = tmp_path / "code"
        code.mkdir()
        used = staged(packed(environment, tmp_path))
        (environment / SITE / "package.py").write_text("VALUE = 22\n")
        recent = staged(packed(environment, tmp_path))
        os.close(recent.lock)
        (environment / SITE / "package.py").write_text("VALUE = 333\n")
        os.utime(used.path, (1e9, 1e9))
        make_workdir(code, "1.1.1", tmp=disk)
        home = disk / f"detslurm-{os.geteuid()}-environments"
        assert {str(copy) for copy in home.iterdir()} == {used.path, recent.path}
        node_files.sweep.cache_clear()
        os.utime(recent.path, (1e9, 1e9))
        make_workdir(code, "1.1.2", tmp=disk)
        assert [str(copy) for copy in home.iterdir()] == [used.path]

    def test_another_environment_takes_the_place_of_an_unused_one(
        self, tmp_path: Path, environment: Path, one: Packed, disk: Path
    ) -> None:
        """What is in use stays."""
        first = staged(one)
        (environment / SITE / "package.py").write_text("VALUE = 22\n")
        second = staged(packed(environment, tmp_path))
        assert len(copies(disk)) == 2
        os.close(first.lock)
        (environment / SITE / "package.py").write_text("VALUE = 333\n")
        third = staged(packed(environment, tmp_path))
        assert {str(copy) for copy in copies(disk)} == {second.path, third.path}

    @pytest.mark.parametrize(
        ("harm", "why"),
        [
            (lambda archive: archive.unlink(), "No such file"),
            (lambda archive: archive.chmod(0o666), "may have been written by another user"),
            (lambda archive: os.truncate(archive, 100), "has changed since the submission"),
        ],
    )
    def test_an_archive_that_can_not_be_trusted_is_not_used(
        self, one: Packed, disk: Path, harm: Callable[[Path], None], why: str
    ) -> None:
        """The run goes on without it."""
        harm(Path(one["archive"]))
        assert why in reason(one)
        assert copies(disk) == []

    def test_a_directory_of_others_is_not_used(
        self, tmp_path: Path, environment: Path, disk: Path
    ) -> None:
        """All may write in /tmp, and might have planted one."""
        home = disk / f"detslurm-{os.geteuid()}-environments"
        home.mkdir()
        home.chmod(0o777)
        assert "is not this user's alone" in reason(packed(environment, tmp_path))

    @pytest.mark.parametrize("mode", [0o777, 0o775])
    def test_a_directory_that_others_may_exchange_is_not_used(
        self, one: Packed, disk: Path, mode: int
    ) -> None:
        """Without the sticky bit, anywhere on the path."""
        below = disk / "below"
        below.mkdir()
        disk.chmod(mode)
        assert "other users may exchange the files in" in reason(one)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging, "_place", lambda: below)
            assert "other users may exchange the files in" in reason(one)
        disk.chmod(0o1777)
        staged(one)

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("with space", "special characters"),
            (r"a\1b", "special characters"),
            ("a:b", "special characters"),
            ("x" * 200, "too long for the first line of tool"),
        ],
    )
    def test_a_place_where_programs_can_not_start_is_not_used(
        self, one: Packed, disk: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
    ) -> None:
        """The first line of a script takes no space, and not everything has room there."""
        (disk / name).mkdir()
        monkeypatch.setattr(staging, "_place", lambda: disk / name)
        assert why in reason(one)
        assert copies(disk / name) == []

    @pytest.mark.parametrize(
        ("python", "why"),
        [
            ("exec sleep 100", "takes more than 0 s to start"),
            (r"printf '\377\n'", "does not run from another place"),
            ("exit 3", "does not run from another place"),
        ],
    )
    def test_a_python_that_does_not_answer_is_not_used(
        self,
        tmp_path: Path,
        environment: Path,
        disk: Path,
        monkeypatch: pytest.MonkeyPatch,
        python: str,
        why: str,
    ) -> None:
        """The run goes on without it."""
        if "sleep" in python:
            monkeypatch.setattr(staging, "_CHECK_TIMEOUT", 0.3)
        program = environment / "bin" / "python"
        program.unlink()
        program.write_text(f"#!/bin/sh\n{python}\n")
        program.chmod(0o755)
        assert why in reason(packed(environment, tmp_path))
        assert copies(disk) == []

    def test_an_archive_without_its_content_is_not_used(self, one: Packed, disk: Path) -> None:
        """Zeros, of the size that it had."""
        Path(one["archive"]).write_bytes(bytes(one["size"]))
        assert "No such file" in reason(one)
        assert reason({**one, "size": "torn"})

    def test_a_shared_disk_is_not_used(
        self, one: Packed, disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """TMPDIR at home."""
        monkeypatch.setattr(staging, "mounted_kind", lambda place: "nfs4")
        assert "may be shared with other nodes (nfs4)" in reason(one)

    def test_a_small_memory_is_spared(
        self, one: Packed, disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where /tmp is memory, which counts as the job's."""
        free = 3 * (one["size"] + staging._SPARE)
        found = SimpleNamespace(f_bavail=free, f_frsize=1, f_flag=0)
        monkeypatch.setattr(os, "statvfs", lambda _: found)
        monkeypatch.setattr(staging, "mounted_kind", lambda place: "ext4")  # TMPDIR may be memory
        os.close(staged(one).lock)
        staging.main([])
        monkeypatch.setattr(staging, "mounted_kind", lambda place: "tmpfs")
        assert "free, and it takes" in reason(one)

    def test_what_lasts_is_given_up(
        self, tmp_path: Path, one: Packed, disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Other nodes wait, and would end the run."""
        tar = tmp_path / "slow" / "tar"
        tar.parent.mkdir()
        tar.write_text("#!/bin/sh\nexec sleep 100\n")
        tar.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")
        monkeypatch.setattr(staging, "_TIMEOUT", 0.0)
        assert "is not there after 0 s" in reason(one)
        assert copies(disk) == []

    def test_whoever_waits_for_the_lock_can_be_stopped(self, one: Packed, disk: Path) -> None:
        """A preemption comes while another job unpacks."""
        home = staging._home()
        lock = os.open(home, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        waits = iter([False, False, True])
        with pytest.raises(NotStaged, match="asked to stop"):
            stage(one, wait=lambda seconds: None, stopped=lambda: next(waits))
        os.close(lock)


@pytest.mark.parametrize(
    ("cgroups", "file"),
    [
        ("0::/slurm/job_1/step_0\n", "slurm/job_1/memory.max"),
        ("5:cpu:/x\n4:memory:/slurm/job_1\n", "memory/slurm/job_1/memory.limit_in_bytes"),
    ],
)
def test_what_lies_in_memory_counts_against_the_limit_of_the_job(
    cgroups: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node without a disk, whose /tmp is far larger than the job."""
    (tmp_path / "cgroup").write_text(cgroups)
    limit = tmp_path / file
    limit.parent.mkdir(parents=True)
    limit.write_text("4000\n")
    monkeypatch.setattr(staging, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(staging, "_LIMITS", tmp_path)
    assert staging._limit_of_memory(1 << 40) == 4000
    limit.write_text("max\n")
    assert staging._limit_of_memory(1 << 40) == 1 << 40


def test_containers_are_refused(tmp_path: Path) -> None:
    """An image has its own environment."""
    from detslurm.config import ConfigErrors

    config = tmp_path / "experiment.yaml"
    config.write_text(
        "entrypoint: 'true'\nsearcher: {name: single, metric: loss}\n"
        "slurm: {slot_type: cpu, container_prefix: [apptainer], stage_environment: true}\n"
    )
    with pytest.raises(ConfigErrors, match="environment of its image"):
        Client(tmp_path / "store").plan(config, cluster="local")
