"""The record of code and packages, with real repositories and real directories."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

import detslurm as det
from detslurm.exec.hardware import hardware
from detslurm.sdk import Client
from detslurm.sdk.provenance import git, software
from detslurm.sdk.provenance.collecting import CodeSource, ProvenanceCollector
from detslurm.sdk.provenance.differences import software_warning
from detslurm.sdk.provenance.git import code_version, without_credentials
from detslurm.sdk.provenance.software import software_of_python
from detslurm.sdk.submission.entrypoint import other_python
from detslurm.store import Store, StoreFull, fs
from detslurm.store.provenance import (
    CodeVersion,
    Software,
    digests_of_runs,
    keep,
    note_software,
    read_kept,
)
from detslurm.store.records import RecordedProvenance
from detslurm.store.run_records import Hardware, misfit
from detslurm.store.software import installed_packages
from tests.cluster.waiting import wait_for
from tests.sdk.scenes import Scene

Git = Callable[..., str]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of users, who wait, are short for a machine that runs other tests."""
    monkeypatch.setattr(git, "LIMIT", 120.0)
    monkeypatch.setattr(software, "LIMIT", 120.0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def run_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Git in a new repository, with an identity and without settings of this machine's user."""
    settings = repository.parent / "gitconfig"
    settings.write_text(
        "[user]\n name = A\n email = a@example.org\n[init]\n defaultBranch = main\n"
        '[protocol "file"]\n allow = always\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")

    def run(*words: str, cwd: Path = repository) -> str:
        done = subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    run("init", "-q")
    return run


@pytest.fixture
def commit(repository: Path, run_git: Git) -> str:
    """The only commit, of two files."""
    (repository / "train.py").write_text("lr = 0.1\nprint(lr)\n")
    (repository / "data.bin").write_bytes(bytes(range(256)))
    run_git("add", ".")
    run_git("commit", "-q", "-m", "first")
    return run_git("rev-parse", "HEAD")


# -- git -------------------------------------------------------------------------------------------


def test_commit_and_changes_of_a_subdirectory_of_the_repository(
    repository: Path, run_git: Git, commit: str
) -> None:
    """The commit, the branch, the patch, the untracked file; and nothing that is ignored."""
    run_git("remote", "add", "origin", "https://user:token@example.org/a/b.git")
    (repository / ".gitignore").write_text("*.log\n")
    run_git("add", ".gitignore")
    (repository / "train.py").write_text("lr = 0.2\nprint(lr)\n")
    inner = repository / "inner"
    inner.mkdir()
    (inner / "new.py").write_text("")
    (inner / "out.log").write_text("")
    found = code_version(inner)
    assert (found.repository, found.commit, found.branch) == (str(repository), commit, "main")
    assert found.remotes == {"origin": "https://example.org/a/b.git"}
    assert found.changed == (".gitignore", "train.py") and found.changed_count == 2
    assert found.untracked_count == 1 and found.problem is None
    assert "-lr = 0.1\n+lr = 0.2\n" in found.diff and not found.diff_is_cut


def test_a_clean_and_a_detached_repository(repository: Path, run_git: Git, commit: str) -> None:
    """No patch; without a branch none is named."""
    run_git("checkout", "-q", "--detach")
    os.utime(repository / "train.py", (1, 1))  # the index is stale, and stays so
    index = (repository / ".git" / "index").read_bytes()
    found = code_version(repository)
    assert found == CodeVersion(
        repository=str(repository), commit=commit, changed_count=0, untracked_count=0
    )
    assert (repository / ".git" / "index").read_bytes() == index


def test_a_repository_without_a_commit(repository: Path, run_git: Git) -> None:
    """There is nothing that could differ from it."""
    found = code_version(repository)
    assert found.commit is None and found.problem == "the repository has no commit yet"


def test_no_repository_and_no_git(
    repository: Path, tmp_path: Path, run_git: Git, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence each."""
    assert code_version(tmp_path).problem == "the code is in no git repository"
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = code_version(repository).problem
    assert problem == "the commit is unknown: there is no git command"


def test_git_variables_of_another_repository(
    repository: Path, run_git: Git, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that submits has them set: the directory of the code decides."""
    other = tmp_path / "other"
    other.mkdir()
    run_git("init", "-q", cwd=other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert code_version(repository).commit == commit


def test_nothing_that_the_repository_asks_for_is_run(
    repository: Path, run_git: Git, commit: str, tmp_path: Path
) -> None:
    """Neither a file monitor nor hooks nor programs that show differences."""
    trap, mark = tmp_path / "trap", tmp_path / "was-run"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\nexit 0\n")
    trap.chmod(0o755)
    for hook in ("post-index-change", "post-checkout"):
        (repository / ".git" / "hooks" / hook).symlink_to(trap)
    (repository / ".gitattributes").write_text("*.py diff=own\n")
    for name in ("core.fsmonitor", "diff.external", "diff.own.command", "diff.own.textconv",
                 "core.pager", "core.askPass"):  # fmt: skip
        run_git("config", name, str(trap))
    mark.unlink(missing_ok=True)
    (repository / "train.py").write_text("lr = 0.3\n")
    assert "+lr = 0.3" in code_version(repository).diff
    assert not mark.exists()


def test_changes_inside_of_a_submodule(
    repository: Path, run_git: Git, commit: str, tmp_path: Path
) -> None:
    """Their lines are in the patch."""
    library = tmp_path / "library"
    library.mkdir()
    run_git("init", "-q", cwd=library)
    (library / "model.py").write_text("depth = 1\n")
    run_git("add", ".", cwd=library)
    run_git("commit", "-q", "-m", "x", cwd=library)
    run_git("submodule", "--quiet", "add", str(library), "lib")
    run_git("commit", "-q", "-m", "with a library")
    (repository / "lib" / "model.py").write_text("depth = 2\n")
    found = code_version(repository)
    assert found.changed == ("lib",) and "+depth = 2" in found.diff


def test_a_slow_repository_is_given_up(
    repository: Path, run_git: Git, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers by the limit stay, a message has the rest; git and its children are ended."""
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True)
    pid = tmp_path / "pid"
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *" status "*) sleep 600 & echo $! > {pid}; wait;; esac\n'
        f'exec {real.stdout.strip()} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git, "LIMIT", 3.0)
    begun = time.monotonic()
    found = code_version(repository)
    assert time.monotonic() - begun < 60
    assert found.commit == commit and found.changed_count is None
    assert "git did not answer within" in (found.problem or "")
    child = Path(f"/proc/{pid.read_text().strip()}/stat")

    def has_ended() -> bool:
        try:
            return child.read_text().split()[2] in "ZX"
        except OSError:
            return True

    wait_for(has_ended, timeout=120)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_another_user(repository: Path, run_git: Git, commit: str) -> None:
    """Git does not read it, and the message has the remedy."""
    for path in (repository, repository / ".git"):
        os.chown(path, 12345, 12345)
    problem = code_version(repository, {**os.environ, "SUDO_UID": ""}).problem
    assert "belongs to another user" in (problem or "") and "safe.directory" in (problem or "")


def test_secrets_of_a_patch_are_masked(repository: Path, run_git: Git, commit: str) -> None:
    """In programs literals, elsewhere values without quotes; a long patch is cut at a line."""
    (repository / "train.py").write_text('api_key = "hush-hush"\nurl = "https://me:pw@host/x"\n')
    (repository / ".env").write_text("DB_PASSWORD=hush-hush\n")
    run_git("add", ".env")
    found = code_version(repository)
    assert "hush" not in found.diff and ":pw@" not in found.diff
    assert '+api_key = "********"' in found.diff and "+DB_PASSWORD=********" in found.diff
    (repository / "train.py").write_text("".join(f"x = {n}\n" for n in range(50_000)))
    found = code_version(repository)
    assert found.diff_is_cut and found.diff.endswith("\n") and len(found.diff) <= git.LONGEST_DIFF


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:t0ken@example.org/a.git", "https://example.org/a.git"),
        ("https://t0ken@example.org/a.git", "https://example.org/a.git"),
        ("https://user:p@ss@example.org/a.git", "https://example.org/a.git"),
        ("ssh://git:t0ken@example.org:22/a.git", "ssh://git@example.org:22/a.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("https://example.org/a.git?private_token=t0ken", "https://example.org/a.git?private_token=********"),
        ("/home/me/a.git", "/home/me/a.git"),
    ],
)  # fmt: skip
def test_addresses_of_remotes_have_no_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


# -- software --------------------------------------------------------------------------------------


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_packages_are_those_of_importlib_metadata() -> None:
    """Found by the names of their directories alone."""
    expected: dict[str, str] = {}
    for one in metadata.distributions():  # the first directory counts
        expected.setdefault(normal(one.metadata["Name"]), one.version)
    found = software_of_python(None, env={}).packages
    known = {name: version for name, version in expected.items() if name in found}
    assert found == known and len(expected.keys() - found.keys()) <= 1


def test_names_of_packages(tmp_path: Path) -> None:
    """The first directory counts; old forms are understood, and what has no version."""
    first, second = tmp_path / "first", tmp_path / "second"
    for name in ("Py_Yaml.X-6.0.dist-info", "old_one-1.2.3-py3.11-linux-x86_64.egg-info",
                 "mine.egg-info", "numpy", "foo_bar-2!1.0+cu121.dist-info"):  # fmt: skip
        (first / name).mkdir(parents=True)
    (second / "py_yaml_x-5.0.dist-info").mkdir(parents=True)
    found = installed_packages([str(first), str(second), str(tmp_path / "missing.zip")])
    assert found == {
        "foo-bar": "2!1.0+cu121", "mine": "", "old-one": "1.2.3", "py-yaml-x": "6.0",
    }  # fmt: skip


def test_modules_conda_and_pythonpath(tmp_path: Path) -> None:
    """By the variables of the shell; modules that the jobs load come after those that are."""
    (tmp_path / "lib-1.0.dist-info").mkdir()
    env = {"PYTHONPATH": str(tmp_path), "LOADEDMODULES": "gcc/12:cuda/12.4",
           "CONDA_PREFIX": sys.prefix, "CONDA_DEFAULT_ENV": "train"}  # fmt: skip
    found = software_of_python(None, ["nccl/2", "gcc/12"], env)
    assert found.packages["lib"] == "1.0" and found.conda == "train"
    assert found.modules == ("gcc/12", "cuda/12.4", "nccl/2")


def test_another_python_is_asked(tmp_path: Path) -> None:
    """A virtual environment that an entrypoint or the first line of its script names."""
    other = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    python = other / "bin" / "python"
    place = next((other / "lib").glob("python3*/site-packages"))
    (place / "special-7.0.dist-info").mkdir()
    script = tmp_path / "run.py"
    script.write_text(f"#!{python} -u\n")
    files = {"run.py": script}
    assert other_python(f"{python} train.py", files) == str(python)
    assert other_python(["./run.py", "--lr", "1"], files) == str(python)
    assert other_python("python3 train.py", files) is None
    assert other_python("cd x && python3 train.py", files) is None
    found = software_of_python(str(python))
    assert found.prefix == str(other) and found.packages == {"special": "7.0"}
    python.unlink()
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    assert "its packages are unknown" in (software_of_python(str(python)).problem or "")


def test_a_warning_names_packages() -> None:
    """What was changed, added and removed; unknown software warns of nothing."""
    before = Software(python="3.11.2", prefix="/venv", packages={"a": "1", "b": "1", "c": "1"})
    now = Software(python="3.12.0", prefix="/venv", packages={"a": "2", "c": "1", "d": "3"})
    warning = software_warning(7, before, now) or ""
    assert "python 3.11.2 -> 3.12.0, a 1 -> 2, b 1 -> none, d none -> 3." in warning
    assert software_warning(7, before, before) is None
    assert software_warning(7, before, Software(problem="unknown")) is None
    assert software_warning(7, None, now) is None


# -- the store -------------------------------------------------------------------------------------


def test_equal_records_are_one_file(tmp_path: Path) -> None:
    """Its owner's alone where it has code; a file with another content is not believed."""
    store = Store.open(tmp_path / "store")
    code, python = CodeVersion(commit="abc", diff="+x"), Software(python="3.11.2")
    digests = {keep(store, record) for record in (code, python, code, python)}
    files = sorted((store.path / "provenance").iterdir())
    assert len(digests) == len(files) == 2
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    kept = keep(store, code)
    assert read_kept(store, kept, CodeVersion) == code
    path = store.path / "provenance" / f"{kept}.json"
    path.write_bytes(path.read_bytes().replace(b"abc", b"abd"))
    assert read_kept(store, kept, CodeVersion) is None
    assert read_kept(store, "../../secret", CodeVersion) is None


def test_a_shared_store_shows_packages_and_not_code(tmp_path: Path) -> None:
    """Two users with equal code have a file each, for each can read only their own."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o3770)
    store = Store.open(tmp_path / "store")
    code = keep(store, CodeVersion(commit="abc"))
    packages = keep(store, Software(python="3.11.2"))
    modes = {
        digest: (store.path / "provenance" / f"{digest}.json").stat().st_mode & 0o777
        for digest in (code, packages)
    }
    assert modes == {code: 0o600, packages: 0o640}
    kept = read_kept(store, code, CodeVersion)
    assert kept is not None and kept.owner == os.geteuid()


def test_a_record_that_can_not_be_kept_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "store")

    def refuse(*args: object, **options: object) -> None:
        raise StoreFull("No space left on device", 28, "x")

    monkeypatch.setattr(fs, "put_if_absent", refuse)
    kept = ProvenanceCollector(CodeSource(tmp_path)).kept(store)
    assert kept.code is None and kept.software is None and kept.host == os.uname().nodename


def test_a_run_records_other_software(scene: Scene) -> None:
    """Once, however many runs have the same; the first one's is the experiment's."""
    store = scene.store
    recorded = RecordedProvenance(software=keep(store, Software(python="3.11.2")), unsure="x")
    experiment = scene.experiment(3, job=None, about={"provenance": recorded})
    assert scene.client.experiment(1).provenance().unsure == "x"
    note_software(experiment, Software(python="3.11.2"), 1, 1)
    assert digests_of_runs(experiment) == []
    for trial, version in ((2, "3.13"), (1, "3.12"), (3, "3.13"), (1, "3.12")):
        note_software(experiment, Software(python=version), trial, 1)
    record = scene.client.experiment(1).provenance()
    assert record.software == Software(python="3.12") and record.unsure is None
    assert record.other_software == (Software(python="3.13"),)


def test_scripts_by_hand_record_packages_and_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    with det.core.init():
        pass
    record = Client(tmp_path / "store").experiment(1).provenance()
    assert record.software is not None and "detslurm" in record.software.packages
    (node,) = record.hardware.values()
    assert node.kernel == os.uname().release and record.code is None


# -- hardware --------------------------------------------------------------------------------------


def test_the_hardware_of_a_node_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the drivers' files in /proc have it; the record has the type that readers expect."""
    nvidia = tmp_path / "nvidia"
    for number, model in enumerate(["NVIDIA H200", "NVIDIA H200", "NVIDIA T4"]):
        place = nvidia / "gpus" / f"0000:0{number}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t\t {model}\nIRQ:   1\n")
    (nvidia / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9554 64-Core Processor\n" * 3)
    monkeypatch.setattr("detslurm.exec.hardware._NVIDIA", str(nvidia))
    monkeypatch.setattr("detslurm.exec.hardware._CPU", str(cpu))
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/train.sif")
    found = hardware()
    assert found["cpu"] == "AMD EPYC 9554 64-Core Processor" and found["driver"] == "570.86.15"
    assert found["gpus"] == {"NVIDIA H200": 2, "NVIDIA T4": 1}
    assert found["image"] == "/images/train.sif" and misfit(found, Hardware) is None
