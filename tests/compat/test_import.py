"""`import determined` where a job has prepared it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.compat import DIRECTORY, with_determined


def python(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Python in the environment of a job."""
    base = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DETSLURM_COMPAT")}
    return subprocess.run(
        [sys.executable, "-W", "error", *args],
        env=with_determined({**base, **env}),
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def said(code: str, tmp_path: Path, **env: str) -> str:
    """What a piece of code prints; it must end well."""
    done = python("-c", code, cwd=tmp_path, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fake_determined(folder: Path) -> Path:
    """A real `determined` as far as anybody can see: a package that says so."""
    package = folder / "determined"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("who = 'the real one'\n")
    (package / "core.py").write_text("who = 'the real core'\n")
    return folder


WHO = "import determined; print(getattr(determined, 'who', determined.__name__))"


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize(
    ("statement", "thing", "real"),
    [
        ("import determined as det", "det", "detslurm"),
        ("import determined.core", "determined.core", "detslurm.core"),
        ("import determined", "determined.core", "detslurm.core"),
        ("from determined import core", "core", "detslurm.core"),
        ("from determined import InvalidHP", "InvalidHP", "detslurm.InvalidHP"),
        ("from determined.core import Context", "Context", "detslurm.core.Context"),
        ("import determined.core._context as c", "c", "detslurm.core._context"),
        ("import determined.errors as e", "e", "detslurm.errors"),
        ("import determined.launch as l", "l", "detslurm.launch"),
        ("from determined.launch import wrap_rank", "wrap_rank", "detslurm.launch.wrap_rank"),
        ("from determined import searcher", "searcher", "detslurm.searcher"),
        ("from determined.searcher import Create", "Create", "detslurm.searcher.Create"),
        ("from determined import experimental", "experimental", "detslurm.experimental"),
        ("from determined.experimental import client", "client", "detslurm.experimental.client"),
        (
            "import determined.experimental.client",
            "determined.experimental.client",
            "detslurm.experimental.client",
        ),
    ],
)
def test_every_way_to_import_gives_the_same_objects(
    statement: str, thing: str, real: str, first: str, tmp_path: Path
) -> None:
    """However it is imported, before or after it, it is detslurm's own module object."""
    module = real.removesuffix(".InvalidHP").removesuffix(".Context").removesuffix(".Create")
    imports = [f"import {module}", statement]
    code = "\n".join(imports if first == "ours" else reversed(imports))
    said(f"{code}\nassert {thing} is {real}", tmp_path)


def test_modules_keep_their_identity(tmp_path: Path) -> None:
    """An alias changes neither name nor spec of the module: pickles and reloads stay right."""
    code = """
import determined.core, importlib, pickle
assert determined.core.__spec__.name == determined.core.__name__ == "detslurm.core"
assert determined.__spec__.name == "detslurm"
mode = determined.core.PreemptMode.ChiefOnly
assert b"determined" not in pickle.dumps(mode)
assert pickle.loads(pickle.dumps(mode, 0).replace(b"detslurm.core", b"determined.core")) is mode
assert importlib.reload(determined.core) is determined.core
"""
    said(code, tmp_path)


@pytest.mark.parametrize(
    "code",
    [
        "import determined.nothing",
        "from determined.nothing import x",
        "from determined.core.nothing import x",
        "import determined.cli",
    ],
)
def test_what_is_missing_is_said(code: str, tmp_path: Path) -> None:
    """A module that detslurm lacks gives an ImportError that names it and what there is."""
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: no module 'determined.")
    assert "determined.core, " in last and "determined.launch" in last


def test_a_framework_that_is_missing_is_named(tmp_path: Path) -> None:
    """What a package of ours needs and nobody installed."""
    done = python("-c", "from determined.keras import DeterminedCallback", cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'keras'"


def test_a_failing_import_inside_ours_shows_itself(tmp_path: Path) -> None:
    """A module that is there but can't be imported fails with its own error."""
    code = "import sys; sys.modules['msgspec'] = None; import determined.core"
    done = python("-c", code, cwd=tmp_path)
    assert "msgspec" in done.stderr.splitlines()[-1]


def test_running_a_module(tmp_path: Path) -> None:
    """`python -m determined.launch.x` runs detslurm's x."""
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    args = ["-m", "determined.launch.wrap_rank", "3", "--", sys.executable, str(script)]
    done = python(*args, cwd=tmp_path)
    assert done.stdout == "[rank=3] trained\n", done.stderr


def test_spawned_processes_see_it(tmp_path: Path) -> None:
    """A worker of multiprocessing, which starts from nothing, unpickles by the same names."""
    (tmp_path / "main.py").write_text(
        "import multiprocessing, determined.core\n"
        "if __name__ == '__main__':\n"
        "    pool = multiprocessing.get_context('spawn').Pool(1)\n"
        "    mode = pool.apply(determined.core.PreemptMode, ['CHIEF_ONLY'])\n"
        "    assert mode is determined.core.PreemptMode.ChiefOnly\n"
        "    pool.close(); pool.join()\n"
    )
    done = python("main.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


class TestARealOne:
    """The user's own `determined` is never in the shadow of ours, unless that is asked for."""

    def test_in_the_users_pythonpath(self, tmp_path: Path) -> None:
        """What stands in PYTHONPATH wins, with its submodules."""
        there = fake_determined(tmp_path / "lib")
        assert said(WHO, tmp_path, PYTHONPATH=str(there)) == "the real one"
        code = "import determined.core as c; print(c.who)"
        assert said(code, tmp_path, PYTHONPATH=str(there)) == "the real core"

    def test_installed(self, tmp_path: Path) -> None:
        """So does an installed one, which Python looks for after all of PYTHONPATH."""
        code = f"import sys; sys.path.append({str(fake_determined(tmp_path / 'site'))!r}); {WHO}"
        assert said(code, tmp_path) == "the real one"
        core = code.replace(WHO, "import determined.core as c; print(c.who)")
        assert said(core, tmp_path) == "the real core"

    def test_beside_the_script(self, tmp_path: Path) -> None:
        """So does a package of that name in the project."""
        fake_determined(tmp_path)
        assert said(WHO, tmp_path) == "the real one"

    def test_forced(self, tmp_path: Path) -> None:
        """DETSLURM_COMPAT=force prefers detslurm to an installed one."""
        there = fake_determined(tmp_path / "lib")
        assert said(WHO, tmp_path, PYTHONPATH=str(there), DETSLURM_COMPAT="force") == "detslurm"
        code = f"import sys; sys.path.append({str(there)!r}); {WHO}"
        assert said(code, tmp_path, DETSLURM_COMPAT="force") == "detslurm"

    def test_a_folder_without_code(self, tmp_path: Path) -> None:
        """A data folder called `determined` is no package."""
        (tmp_path / "determined").mkdir()
        assert said(WHO, tmp_path) == "detslurm"


def test_a_python_without_detslurm(tmp_path: Path) -> None:
    """Where the job's Python has neither, the error says what to install."""
    env = {**os.environ, "PYTHONPATH": str(DIRECTORY)}
    code = "import sys; sys.modules['detslurm'] = None; import determined"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert "neither determined nor detslurm" in done.stderr


class TestTheEnvironment:
    """What the node agent sets."""

    def test_last_by_default_first_by_force(self) -> None:
        """The directory goes behind the user's own, or before it when forced; once only."""
        ours = str(DIRECTORY)
        assert with_determined({})["PYTHONPATH"] == ours
        env = with_determined({"PYTHONPATH": "/a:/b"})
        assert env["PYTHONPATH"] == f"/a:/b:{ours}"
        assert with_determined(env) == env
        forced = with_determined({**env, "DETSLURM_COMPAT": "force"})
        assert forced["PYTHONPATH"] == f"{ours}:/a:/b"

    def test_off(self) -> None:
        """Switched off, nothing is put there, and what an outer job had put there goes."""
        assert "PYTHONPATH" not in with_determined({"DETSLURM_COMPAT": "off"})
        env = with_determined({"PYTHONPATH": f"/a:{DIRECTORY}", "DETSLURM_COMPAT": "off"})
        assert env["PYTHONPATH"] == "/a"

    def test_a_mode_that_does_not_exist(self) -> None:
        """A slip is refused, not ignored."""
        with pytest.raises(ValueError, match="'Force' is none of auto, force, off"):
            with_determined({"DETSLURM_COMPAT": "Force"})


class TestByHand:
    """`python -m detslurm.compat`."""

    @staticmethod
    def compat(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "detslurm.compat", *args],
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **env},
            cwd=cwd,
            capture_output=True,
            text=True,
        )

    def test_a_script(self, tmp_path: Path) -> None:
        """The script gets its own arguments and the interpreter's options, as if run directly."""
        (tmp_path / "train.py").write_text(
            "import sys, determined as det\n"
            "print(det.__name__, sys.argv, __name__, sys.warnoptions)\n"
            "sys.exit(7)\n"
        )
        done = self.compat("train.py", "--lr", "-m", cwd=tmp_path)
        assert done.returncode == 7, done.stderr
        expected = "detslurm ['train.py', '--lr', '-m'] __main__ ['error']"
        assert done.stdout.strip() == expected

    def test_a_module_of_determineds(self, tmp_path: Path) -> None:
        """`-m determined.launch.x` works too, and what it starts can import determined."""
        script = tmp_path / "train.py"
        script.write_text("import determined; print(determined.__name__)\n")
        done = self.compat(
            "-m", "determined.launch.wrap_rank", "0", "--", sys.executable, "train.py", cwd=tmp_path
        )
        assert done.stdout == "[rank=0] detslurm\n", done.stderr

    def test_force(self, tmp_path: Path) -> None:
        """--force prefers detslurm to the one that is installed."""
        there = str(fake_determined(tmp_path / "lib"))
        (tmp_path / "who.py").write_text(WHO)
        assert self.compat("who.py", cwd=tmp_path, PYTHONPATH=there).stdout == "the real one\n"
        done = self.compat("--force", "who.py", cwd=tmp_path, PYTHONPATH=there)
        assert done.stdout == "detslurm\n"

    def test_nothing_to_run(self, tmp_path: Path) -> None:
        """Without a script it says how it is used."""
        done = self.compat(cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith("usage: python -m detslurm.compat")


def test_nothing_is_there_outside_jobs(tmp_path: Path) -> None:
    """Installing detslurm brings no module called `determined`."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    code = "import detslurm.compat, importlib.util as u; print(u.find_spec('determined'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "None\n", done.stderr
