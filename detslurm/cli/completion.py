"""`detslurm completion`: completion with Tab, installed by one command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from detslurm.cli.output.printing import note

_SHELLS = ("bash", "zsh", "fish")
# A name is what others chose: the shell is to take it as text, in whatever quotes it is typed.
# Behind a quote that is closed it stands outside; in double quotes nothing keeps a "!".
_QUOTED_IN_BASH = r"""case ${COMP_WORDS[COMP_CWORD]} in
                ?*[\"\']*) printf -v value %q "$value" ;;
                \"*) [[ $value == *!* ]] && continue
                    value=$(sed 's/[\\"$`]/\\&/g' <<< "$value") ;;
                \'*) value=${value//\'/\'\\\'\'} ;;
                *) [[ $value == *[!A-Za-z0-9_.,:@%+=/-]* ]] && printf -v value %q "$value" ;;
            esac
            COMPREPLY+=("$value")
            [[ $value == *= ]] && compopt -o nospace 2>/dev/null"""
# Faults of click's scripts in real shells: a blank behind `key=`; in zsh an error at each start
# where nothing else has set up completion; in fish descriptions that end at their first comma.
_MENDED: Mapping[str, Sequence[tuple[str, str]]] = {
    "bash": [
        ("COMPREPLY+=($value)", _QUOTED_IN_BASH),
        ("read type value", "read -r type value"),
    ],
    "zsh": [
        (
            "compadd -U -V unsorted -a completions",
            "compadd -U -V unsorted -S '' -- ${(M)completions:#*=}\n"
            "        compadd -U -V unsorted -- ${completions:#*=}",
        ),
        (
            "    compdef _",
            "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }\n"
            "    compdef _",
        ),
    ],
    "fish": [('string split ","', 'string split -m 1 ","')],
}
_shell = click.argument("shell", required=False, type=click.Choice(_SHELLS))


@click.group()
def completion() -> None:
    """Complete commands, options, ids and file names with Tab.

    `install` sets it up. The others print a shell's script, to be read by it:
    `source <(detslurm completion bash)`.
    """


@completion.command()
@_shell
def install(shell: str | None) -> None:
    """Install completion with Tab for a shell, by default the one in $SHELL.

    It writes the script to a file, and for bash and zsh one line to ~/.bashrc or ~/.zshrc that
    reads it: new shells start no slower. Repeating it brings the script up to date.

    \b
    Examples:
      detslurm completion install
      detslurm completion install zsh
    """
    name = shell or _current()
    path = _script_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_source(name))
    note(f"Wrote {path}")
    if name != "fish":  # which reads the directory by itself
        profile = _home("ZDOTDIR" if name == "zsh" else "HOME") / f".{name}rc"
        if _add_line(profile, f'[ -r "{path}" ] && . "{path}"  # completion of detslurm'):
            note(f"Added a line to {profile}")
    note(f"Completion is there in every new {name}.")


def _print_script(shell: str) -> None:
    click.echo(_source(shell), nl=False)


for _name in _SHELLS:  # as `kubectl completion bash` does
    _help = f"Print the script for {_name}, to be read by it."
    completion.command(_name, help=_help)(partial(_print_script, _name))


def _current() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise click.UsageError(f"$SHELL is {name or 'not set'}: name one of {', '.join(_SHELLS)}")
    return name


def _home(variable: str) -> Path:
    return Path(os.environ.get(variable) or Path.home())


def _script_path(shell: str) -> Path:
    if shell == "fish":
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(config) / "fish" / "completions" / "detslurm.fish"
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "detslurm" / f"completion.{shell}"


def _source(shell: str) -> str:
    from detslurm.cli.app import app  # which imports this module by name

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(app, {}, "detslurm", "_DETSLURM_COMPLETE")
    # Not `source()`: it starts a bash to ask for its version.
    script = str(complete.source_template % complete.source_vars()).lstrip()
    for found, better in _MENDED[shell]:
        script = script.replace(found, better)
    return script


def _add_line(path: Path, line: str) -> bool:
    """Append a line unless it is there; whether it was not."""
    text = path.read_text() if path.exists() else ""
    if line in text.splitlines():
        return False
    with path.open("a") as file:
        file.write(f"{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n")
    return True
