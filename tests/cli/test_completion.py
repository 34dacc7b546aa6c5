"""Tab: what it offers, how quickly, and how it gets into a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.queues import slurm_commands
from detslurm._base.access import user_name
from tests.cli.conftest import Detslurm
from tests.cli.terminals import InteractiveShell
from tests.cli.test_program import DETSLURM
from tests.sdk.scenes import Scene

# As bash does it: the function of the script, called with the words of the line.
COMPLETE = """
source "$1"
COMP_WORDS=($2)
[ "${2% }" = "$2" ] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_detslurm_completion detslurm
printf '%s\\n' "${COMPREPLY[@]}"
"""


# A busy machine may not even start Slurm's command within what a user waits after Tab.
PATIENT = """
from detslurm.cli.arguments import completing
completing._PATIENCE = 60.0
from detslurm.cli.__main__ import main
main()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HOME of one's own, and `detslurm` on the PATH."""
    command = tmp_path / "bin" / "detslurm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m detslurm.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def offered(script: Path, line: str) -> list[str]:
    """What bash would show after Tab; a script that the user typed half of."""
    argv = ["bash", "-c", COMPLETE, "bash", str(script), line]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_tab_in_bash(scene: Scene, detslurm: Detslurm, program: Path) -> None:
    """Commands, ids, names, states, keys and columns complete, once one command was run."""
    uuid = "0f3a0a6e-0000-4000-8000-000000000000"
    first = scene.experiment(name="mnist-a")
    scene.run(first, losses=[0.5], checkpoint=uuid, end="completed")
    scene.experiment(3, name="mnist-b", job="8")
    assert detslurm("completion", "install", "bash").status == 0
    script = program / ".local/share/detslurm/completion.bash"
    profile = (program / ".bashrc").read_text()
    assert detslurm("completion", "install", "bash").status == 0
    assert (program / ".bashrc").read_text() == profile and str(script) in profile
    for line, expected in {
        "detslurm exp": ["experiment"],
        "detslurm experiment list-": ["list-trials", "list-checkpoints"],
        "detslurm e describe ": ["last", "2", "1"],
        "detslurm e describe 2,": ["2,last", "2,2", "2,1"],
        "detslurm e describe mn": ["mnist-b", "mnist-a"],
        "detslurm t logs ": ["last", "4", "3", "2", "1"],
        "detslurm e list --state pa": ["paused"],
        "detslurm checkpoint describe 0f": [uuid],
        "detslurm submit x --from-checkpoint 0": [uuid],
        "detslurm completion ": ["bash", "fish", "install", "zsh"],
        "detslurm e list --columns id,sta": ["id,state", "id,started"],
        "detslurm submit x --config resources.slots_p": ["resources.slots_per_trial="],
    }.items():
        assert offered(script, line) == expected, line


TYPED = {
    "detslurm exp\tdescribe ci\t": "<experiment><describe><cifar>",
    "detslurm submit x --config resources.slots_per_t\t4": (
        "<submit><x><--config><resources.slots_per_trial=4>"
    ),
    "detslurm submit exper\t": "<submit><experiment.yaml>",
}


def only_completes(program: Path, otherwise: str) -> None:
    """Let a line of shell stand in for all that the program does but completing."""
    real = program / "bin" / "detslurm"
    real.rename(program / "bin" / "real")
    real.write_text(f'#!/bin/sh\n[ -n "$_DETSLURM_COMPLETE" ] && exec real\n{otherwise}\n')
    real.chmod(0o755)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_name_is_text_to_the_shell(
    scene: Scene, detslurm: Detslurm, program: Path, shell: str
) -> None:
    """Whoever has chosen it: with blanks and signs, in quotes or without."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    name = 'zz$(touch owned) `touch owned`; (é) "x" \\ \'*'
    scene.run(scene.experiment(name=name), end="completed")
    assert detslurm("completion", "install", shell).status == 0
    only_completes(program, 'printf "%s\\n" "$3" >>got; echo ok')
    typing = InteractiveShell(shell, {"PS1": "$ ", "DETSLURM_ROOT": str(scene.root)})
    quotes = ("", '"', "'") if shell == "bash" else ("",)  # the others quote by themselves
    try:
        typing.type(f"cd {program}; echo re''ady\n", "ready\r\n")
        for number, quote in enumerate(quotes, 1):
            typing.type(f"detslurm e describe {quote}zz\t", "touch")
            typing.type("\n", "ok\r\n")
            assert (program / "got").read_text() == f"{name}\n" * number
        # Behind a quote that is closed it can't be the name, and is still text.
        for word in ("'zz'", '"zz"', 'z"z"') if shell == "bash" else ():
            typing.type(f"detslurm e describe {word}\t\n", "ok\r\n")
    finally:
        typing.end()
    assert not (program / "owned").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_tab_as_it_is_typed(scene: Scene, detslurm: Detslurm, program: Path, shell: str) -> None:
    """In a fresh home: nothing is said at the start, words are completed, and no blank follows
    the equals sign of a key."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    scene.run(scene.experiment(name="cifar"), end="completed")
    scene.run(scene.experiment(name="mnist"), end="completed")
    assert detslurm("completion", "install", shell).status == 0
    (program / "experiment.yaml").touch()
    only_completes(program, 'printf "<%s>" "$@"; echo')
    typing = InteractiveShell(shell, {"PS1": "$ ", "DETSLURM_ROOT": str(scene.root)})
    try:
        typing.type(f"cd {program}; echo re''ady\n", "ready\r\n")
        assert "not found" not in typing.seen
        for keys, words in TYPED.items():
            typing.type(f"{keys}\n", f"{words}\r\n")
    finally:
        typing.end()


def test_jobs_on_tab(
    scene: Scene, detslurm: Detslurm, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One's own jobs, the newest first; none where the queue does not answer at once."""
    script = program / "script"
    script.write_text(detslurm("completion", "bash").out)
    folder = program / "slurm"
    folder.mkdir()
    commands = slurm_commands(folder, 20, scene.root)
    queue = commands / "queue.txt"
    queue.write_text(queue.read_text().replace("@user3@", f"@{user_name()}@"))
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    command = program / "bin" / "detslurm"
    impatient = command.read_text()
    (program / "patient.py").write_text(PATIENT)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {program}/patient.py "$@"\n')
    assert offered(script, "detslurm job why ") == ["4728", "4721", "4714"]
    assert offered(script, "detslurm job describe 472") == ["4728", "4721"]
    assert offered(script, "detslurm job update 4728 --ahead-of 471") == ["4714"]
    command.write_text(impatient)
    (commands / "squeue").write_text("#!/bin/sh\nexec sleep 600\n")
    began = time.monotonic()
    assert offered(script, "detslurm job why ") == []
    assert time.monotonic() - began < 300


def test_what_cant_be_read_completes_to_nothing(
    scene: Scene, detslurm: Detslurm, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message comes between what the user types."""
    script = program / "script"
    script.write_text(detslurm("completion", "bash").out)
    monkeypatch.setenv("DETSLURM_ROOT", "/nonexistent")
    assert offered(script, "detslurm e describe ") == []


def test_completion_imports_no_command(scene: Scene) -> None:
    """Names come from the tables; each Tab is a process that the user waits for."""
    env = {**os.environ, "COMP_WORDS": "detslurm exp", "COMP_CWORD": "1"}
    env["_DETSLURM_COMPLETE"] = "bash_complete"
    argv = [sys.executable, "-X", "importtime", *DETSLURM[1:]]
    code = "import sys; from detslurm.cli import main; sys.argv[0] = 'detslurm'; main()"
    argv = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["plain,experiment"]
    modules = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    light = (
        "_base",
        "_base.contract",
        "_base.pythonpath",
        "errors",
        "cli",
        "cli.app",
        "cli.lazy",
        "cli.session",
    )
    ours = {name for name in modules if name.startswith("detslurm.")}
    assert ours <= {f"detslurm.{name}" for name in light}


def test_an_unknown_shell_is_asked_about(
    detslurm: Detslurm, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name the shell is that of the user."""
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert detslurm("completion", "install").status == 0
    assert "complete" in (program / ".config/fish/completions/detslurm.fish").read_text()
    monkeypatch.setenv("SHELL", "/bin/sh")
    result = detslurm("completion", "install")
    assert result.status == 2 and "name one of bash, zsh, fish" in result.err
