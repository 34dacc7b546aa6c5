"""The forms of an entrypoint as command lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from detslurm.exec.entrypoint import HOOK_FAILED, entrypoint_argv, with_startup_hook


def test_a_list_is_executed_as_it_is() -> None:
    """No shell touches it."""
    assert entrypoint_argv(["a b", "$(c)"]) == ["a b", "$(c)"]


@pytest.mark.parametrize("text", ["model_def:MyTrial", "pkg.model:Trial_2"])
def test_the_legacy_form_names_a_trial_class(text: str) -> None:
    """module:Class goes to the default launcher."""
    argv = entrypoint_argv(text)
    assert argv[-2:] == ["--trial", text]
    assert argv[1:3] == ["-m", "detslurm.launch.torch_distributed"]


@pytest.mark.parametrize("text", ["python3 a.py x:y", "a:b c", "a-b:c", "echo http://x"])
def test_other_strings_go_to_the_shell(text: str) -> None:
    """Only a whole module:Class is the legacy form."""
    assert entrypoint_argv(text)[:2] == ["sh", "-c"]


def test_the_shell_outlives_sigterm_and_its_children_do_not_inherit_that() -> None:
    """The shell waits for its command; the command's own SIGTERM is the default one."""
    text = "sh -c 'kill -TERM $$'; echo \"ended with $?\"; kill -TERM $$; echo still here"
    done = subprocess.run(entrypoint_argv(text), capture_output=True, text=True)
    assert done.stdout == "ended with 143\nstill here\n"


def test_the_hook_is_sourced_before(tmp_path: Path) -> None:
    """What it exports is there, arguments arrive whole, and its failure is the run's."""
    hook = tmp_path / "startup-hook.sh"
    hook.write_text("export A='from the hook'\n")
    argv = with_startup_hook(["sh", "-c", 'echo "$A" "$1"', "sh", "two words"])
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "from the hook two words\n"
    assert not (tmp_path / HOOK_FAILED).exists()
    for text in ("cd /; (exit 3)", "exit 3"):
        hook.write_text(f"{text}\n")
        assert subprocess.run(argv, cwd=tmp_path, capture_output=True).returncode == 3
        assert (tmp_path / HOOK_FAILED).read_text() == "3\n"
        (tmp_path / HOOK_FAILED).unlink()
    hook.write_text("")
    assert subprocess.run([*argv[:4], "false"], cwd=tmp_path).returncode == 1
    assert not (tmp_path / HOOK_FAILED).exists()  # the code failed, not the hook


@pytest.mark.parametrize("text", ["echo x", 'echo x "$@"', 'true && echo x "${@}" 2>&1 | cat'])
def test_arguments_are_never_parsed_by_the_shell(text: str) -> None:
    """They stand where the text has their place, else at its end."""
    argv = entrypoint_argv(text, ["$(id)", "a b", "'\"", "\n;"])
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout == "x $(id) a b '\" \n;\n"
    assert entrypoint_argv(["a b"], ["$(id)"]) == ["a b", "$(id)"]
