"""What is said of an entrypoint before it is queued."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from detslurm.compat import standing_in
from detslurm.sdk.submission import modules
from detslurm.sdk.submission.entrypoint import (
    Findings,
    check_entrypoint,
    launchers,
    one_node_problem,
)
from detslurm.sdk.tasks.document import experiment_config, read_document
from detslurm.sdk.tasks.programs import notebook_entrypoint

CODE = {
    "train.py": "print('training')",
    "tool/steps/fit.py": "",
    "pkg/__init__.py": "",
    "pkg/run.py": "",
    "pkg/main/__main__.py": "",
    "model_def.py": "class MyTrial: pass\nfrom x import Other\nif 1:\n    Third = MyTrial\n",
    "anything.py": "from x import *\n",
    "lazy.py": "def __getattr__(name): return 1\n",
    "broken.py": "def f(:\n    pass\n",
    "nulls.py": "a = 1\0",
    "warned.py": "print('\\d')",
    "run.sh": "",
    "__main__.py": "",
    "data.csv": "",
}


@pytest.fixture(autouse=True)
def _not_activated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who calls the environment's `detslurm` by its path, with nothing else in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The code of an experiment by its names."""
    for name, text in CODE.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {name: tmp_path / "code" / name for name in CODE}


def check(
    entrypoint: str | list[str], files: Mapping[str, Path], *, prepared: bool = False
) -> Findings:
    return check_entrypoint(entrypoint, files, prepared=prepared)


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 train.py --lr=0.1 --name 'two words'\n",
        "exec python3 -u -W ignore -X dev train.py",
        "python3 -m pkg.run",
        "python3 -um pkg.main --now",
        "python3 -m tool.steps.fit",
        "python3 -m json.tool data.csv",
        "python3 -c 'import nosuch'",
        "python3 pkg/../train.py",
        "python3 pkg/main",
        "python3 .",
        "python3 warned.py",
        "python3 /nodes/own/disk.py",
        "python -m determined.launch.torch_distributed python train.py --epochs 5",
        ["python3", "-m", "determined.launch.torch_distributed", "train.py"],
        "python3 -m detslurm.launch.torch_distributed --nproc-per-node 2 -- train.py",
        "python3 -m detslurm.launch.torch_distributed -m pkg.run",
        "python3 -m determined.launch.torch_distributed --trial model_def:MyTrial",
        "python3 -m determined.launch.deepspeed --trial model_def:MyTrial",
        "python3 -m detslurm.launch.deepspeed --module -- pkg.run --epochs 5",
        "python3 -m detslurm.launch.deepspeed --bind_cores_to_rank -- train.py --epochs 5",
        "python3 -m detslurm.launch.wrap_rank RANK -- python3 train.py",
        "model_def:MyTrial",
        "model_def:Other",
        "model_def:Third",
        "anything:NoSuch",
        "lazy:NoSuch",
        "detslurm.pytorch:PyTorchTrial",
        "LR=3 nosuch",
        "cd pkg && nosuch",
        "test -e nosuch",
        "python3 $SCRIPT",
    ],
)
def test_what_may_run_passes(entrypoint: str | list[str], files: dict[str, Path]) -> None:
    """The submitting Python is in the job's PATH; what only a shell understands is left to it."""
    found = check(entrypoint, files)
    assert (found.problems, found.warnings) == ([], [])


WRONG = {
    "pyhton train.py": "no command 'pyhton' in PATH",
    "python3 trian.py": "did you mean 'train.py'?",
    "python3 broken.py": "broken.py, line 1: SyntaxError",
    "python3 nulls.py": "nulls.py",
    "python3 -m broken": "broken.py, line 1: SyntaxError",
    "python3 -m pkg.nosuch": "the code has no module 'pkg.nosuch'",
    "python3 -m pkg": "the code has no module 'pkg'",
    "python3 -m nosuch": "can't run a module 'nosuch'",
    "python3 -m detslurm.nosuch": "can't run a module 'detslurm.nosuch'",
    "python3 -m determined.launch.ray train.py": "detslurm has autohorovod, deepspeed, h",
    "python3 -m detslurm.launch.deepspeed_options": "there is no launcher",
    "python3 -m detslurm.launch.deepspeed --module -- pkg.nosuch": "the code has no module",
    "python3 -m detslurm.launch.arguments train.py": "there is no launcher",
    "python3 -m detslurm.launch.torch_distributed": "nothing for the launcher",
    "python3 -m detslurm.launch.torch_distributed trian.py": "did you mean 'train.py'?",
    "python3 -m detslurm.launch.torch_distributed python3 broken.py": "SyntaxError",
    "python3 -m detslurm.launch.torch_distributed --nnodes 2 train.py": "`--` must follow",
    "python3 -m detslurm.launch.mpi --trial model_def:MyTrail": "did you mean 'MyTrial'?",
    "python3 -m detslurm.launch.mpi --trial=model_def": "MODULE:CLASS",
    "python3 -m detslurm.launch.wrap_rank RANK nosuch": "no command 'nosuch'",
    "model_def:NoSuch": "there is no class 'NoSuch' in model_def.py",
    "model_deaf:MyTrial": "no file 'model_deaf.py' in the context directory; did you mean",
    "broken:MyTrial": "SyntaxError",
    "./run.sh": "not executable",
    "venv/bin/python train.py": "no file 'venv/bin/python'",
    "bin/nosuch": "no file 'bin/nosuch'",
    "./nosuch.sh": "no file 'nosuch.sh'",
    "bash rum.sh": "did you mean 'run.sh'?",
    " ": "empty",
}


@pytest.mark.parametrize("entrypoint", WRONG)
def test_what_no_job_could_run_is_refused(
    entrypoint: str, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with what would be right."""
    monkeypatch.setattr(sys, "prefix", "/home/alice/env")
    found = check(entrypoint, files)
    assert len(found.problems) == 1 and WRONG[entrypoint] in found.problems[0]
    assert found.warnings == []


def test_how_a_script_begins(files: dict[str, Path]) -> None:
    """Linux starts none whose first line ends as on Windows; without `#!` some ways fail."""
    script = files["run.sh"]
    script.chmod(0o755)
    for start in (b"#!/bin/bash\necho\r\n", b"\x7fELF\x02\x01\x01\x00"):
        script.write_bytes(start)
        found = check("./run.sh", files)
        assert (found.problems, found.warnings) == ([], [])
    script.write_bytes(b"#!/bin/bash\r\necho\r\n")
    (problem,) = check("./run.sh", files).problems
    assert "line ends of Windows" in problem and r"sed -i 's/\r$//' run.sh" in problem
    script.write_bytes(b"echo trained\n")
    found = check("./run.sh", files)
    assert found.problems == [] and "begin it with one, such as #!/bin/bash" in found.warnings[0]


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_what_the_shell_cannot_parse_is_refused(
    shell: str, files: dict[str, Path], tmp_path: Path
) -> None:
    """It would end each run, and be retried; a shell of the job's own may understand it."""
    (tmp_path / "sh").symlink_to(f"/bin/{shell}")
    for wrong in ("echo 'it", "if true; then\n  python3 train.py\n", "(python3 train.py &&", "é)"):
        (problem,) = check(wrong, files).problems
        assert problem.startswith("entrypoint: the shell can't parse it: ")
        assert "yntax error" in problem or "matching `''" in problem
        found = check(wrong, files, prepared=True)
        assert found.problems == [] and "as far as can be seen" in found.warnings[0]
    for right in ("python3 train.py && echo 'it is'", "nosuch | cat; (cd ~)", "cat <<A\nA\n"):
        assert check(right, files).problems == []
    assert bool(check("a=(1 2); python3 train.py", files).problems) == (shell == "dash")


def test_source_is_no_command_of_every_shell(files: dict[str, Path], tmp_path: Path) -> None:
    """Where `sh` is bash it is one; dash has the dot alone."""
    sh = tmp_path / "sh"
    for shell, problems in {"bash": 0, "dash": 1}.items():
        sh.unlink(missing_ok=True)
        sh.symlink_to(f"/bin/{shell}")
        for entrypoint in ("source env.sh && python3 train.py", "cd pkg; source env.sh"):
            found = check(entrypoint, files)
            assert len(found.problems) == problems and found.warnings == []
            assert all("write `. ./FILE`" in problem for problem in found.problems)
    for other in (
        ". ./env.sh && python3 train.py",
        "grep source x|cat",
        ["bash", "-c", "source x"],
        'bash -c "cd pkg; source x"',
        "python3 -c 'a = 1; source = 2'",
    ):
        assert "source" not in "".join(check(other, files).problems)


def test_what_the_jobs_own_preparations_may_bring(files: dict[str, Path]) -> None:
    """Commands and modules of a container or of loaded modules are not asked for; what the code
    itself lacks is a warning; what is wrong everywhere stays refused."""
    for silent in ("nosuch train.py", "python3 -m nosuch", "torchrun train.py"):
        found = check(silent, files, prepared=True)
        assert (found.problems, found.warnings) == ([], [])
    for doubtful in ("python3 trian.py", "python3 broken.py", "model_def:NoSuch",
                     "python3 -m determined.launch.tensorflow train.py"):  # fmt: skip
        found = check(doubtful, files, prepared=True)
        assert found.problems == [] and "as far as can be seen" in found.warnings[0]
    assert check("python3 -m detslurm.launch.tensorflow a.py", files, prepared=True).problems


def test_a_file_of_the_code_by_an_absolute_path_is_not_the_copy(files: dict[str, Path]) -> None:
    """Jobs would run it as it is by then: the name in the copy is told. Other files are silent."""
    code = files["train.py"].parent
    aside = code.with_name("data.csv")
    aside.write_text("")
    (code.parent / "link").symlink_to(code)
    for entrypoint, name in {
        f"python3 {code}/train.py": "train.py",
        f"python3 {code.parent}/link/tool/steps/fit.py": "tool/steps/fit.py",
        f"python3 train.py --data={code}/data.csv": "data.csv",
        f"cd pkg && python3 '{code}/train.py' >log": "train.py",
        f"{code}/run.sh": "run.sh",
    }.items():
        found = check(entrypoint, files)
        assert found.problems == [] and len(found.warnings) == 1
        assert found.warnings[0].endswith(f"not the copy: write ./{name}")
    assert check(["python3", f"{code}/train.py", f"{code}/data.csv"], files).warnings[1:]
    assert check(f"python3 train.py --data {aside} {code}/new.csv", files).warnings == []


def test_what_stands_in_for_determined_has_no_more_launchers(files: dict[str, Path]) -> None:
    """Not in a process either that has loaded a checkpoint's code, or in a job."""
    with standing_in():
        (problem,) = check("python3 -m determined.launch.ray train.py", files).problems
    assert "detslurm has autohorovod, deepspeed, horovod" in problem


@pytest.mark.parametrize("package", ["deepspeed", "horovod"])
def test_what_a_launcher_needs_is_missed(
    package: str, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this Python, which runs it."""
    monkeypatch.setattr(modules, "exists", lambda name, run=False: name != package)
    monkeypatch.setattr(sys, "prefix", "/home/alice/env")
    (problem,) = check(f"python3 -m detslurm.launch.{package} train.py", files).problems
    assert f"has no {package!r}" in problem
    found = check(f"python3 -m detslurm.launch.{package} train.py", files, prepared=True)
    assert (found.problems, found.warnings) == ([], [])


def test_a_horovod_that_gloo_alone_connects(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The launcher has no use for one, and several nodes none for horovodrun."""
    monkeypatch.setattr(sys, "prefix", "/home/alice/env")
    monkeypatch.syspath_prepend(tmp_path)
    library = tmp_path / "horovod" / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"
    library.parent.mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").write_text("")
    for contents, problems in ((b"..gloo_allreduce..", 1), (b"..MPI_Init_thread..", 0)):
        library.write_bytes(contents)
        found = check("python3 -m detslurm.launch.horovod train.py", files)
        assert len(found.problems) == problems
        assert all("Horovod without MPI" in problem for problem in found.problems)
    found = check("python3 -m detslurm.launch.horovod train.py", files, prepared=True)
    assert (found.problems, found.warnings) == ([], [])
    alone = "torchrun --standalone --nproc_per_node=2 train.py"
    for several in (alone, "horovodrun --gloo -np 4 python3 x", ["/opt/bin/horovodrun", "x"]):
        assert "each node would train by itself" in str(one_node_problem(several))
    for other in ("python3 train.py", "cd x && horovodrun y", None, " "):
        assert one_node_problem(other) is None


def test_another_python_may_know_more(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its modules and its syntax are its own."""
    python = tmp_path / "python3.99"
    python.write_text("")
    python.chmod(0o755)
    assert check("python3.99 -m nosuch", files).problems == []
    assert check("/opt/env/bin/python -m nosuch", files).problems == []
    found = check("python3.99 broken.py", files)
    assert found.problems == [] and "SyntaxError" in found.warnings[0]
    assert check("python3.99 trian.py", files).problems


def test_a_python_of_the_system_may_be_another_one_on_the_nodes(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With modules of its own."""
    monkeypatch.setattr(sys, "prefix", "/usr/local")
    found = check("python3 -m nosuch", files)
    assert found.problems == [] and "nosuch" in found.warnings[0]


@pytest.mark.parametrize("module", ["xml", "xml.nosuch"])
def test_a_package_may_have_modules_that_are_not_in_its_folder(
    module: str, files: dict[str, Path]
) -> None:
    found = check(f"python3 -m {module}", files)
    assert found.problems == [] and module in found.warnings[0]


def test_nothing_of_the_users_is_imported(files: dict[str, Path], tmp_path: Path) -> None:
    """Neither the code nor packages that are found elsewhere."""
    shop = tmp_path / "site" / "shop"
    shop.mkdir(parents=True)
    (shop / "__init__.py").write_text("raise SystemExit('imported')")
    (shop / "fit.py").write_text("raise SystemExit('imported')")
    script = (
        "from pathlib import Path; import sys\n"
        "from detslurm.sdk.submission.entrypoint import check_entrypoint\n"
        "for entrypoint in ('python3 -m shop.fit', 'python3 -m torch.distributed.run'):\n"
        "    found = check_entrypoint(entrypoint, {}, prepared=False)\n"
        "    assert not found.problems, found.problems\n"
        "assert not {'shop', 'torch'} & set(sys.modules)\n"
    )
    env = {"PYTHONPATH": str(shop.parent), "PATH": ""}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)


def test_the_launchers_are_those_that_can_be_run() -> None:
    """What they have beside them is none."""
    assert {"deepspeed", "horovod", "mpi", "torch_distributed", "wrap_rank"} <= set(launchers())
    assert {"arguments", "srun_proxy", "torch_environment"}.isdisjoint(launchers())


def test_a_notebook_needs_jupyter_before_it_waits(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the job's own Python, also where the program begins in another directory."""
    document = read_document("notebook")
    words = [sys.executable, *notebook_entrypoint(document)[1:]]
    entrypoint = experiment_config(document, words).plain()["entrypoint"]
    assert entrypoint[3] == str(Path.cwd())
    assert not check(entrypoint, files).problems
    monkeypatch.setattr(modules, "exists", lambda name, run=False: name != "jupyter_server")
    monkeypatch.setattr(sys, "prefix", "/home/alice/env")
    (problem,) = check(entrypoint, files).problems
    assert problem.endswith("has no Jupyter: python3 -m pip install jupyterlab")
