"""`detslurm shell`: sessions in a job, by ssh."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, task_id
from detslurm.cli.lazy import Entry, lazy_group
from detslurm.cli.output.printing import note
from detslurm.cli.task.commands import config_of, describing, killing, listing, logs_of
from detslurm.cli.task.opening import note_started, wait_for_server
from detslurm.cli.task.run import document_of, task_options
from detslurm.sdk.parts import load_site
from detslurm.sdk.tasks.programs import shell_entrypoint
from detslurm.sdk.tasks.shell import Shell, login_node

if TYPE_CHECKING:
    from detslurm.sdk.tasks.task import Task

KIND = "shell"

list_shells = listing(KIND)
logs = logs_of(KIND)
kill = killing(KIND)
describe = describing(KIND)
config = config_of(KIND)

shell = lazy_group(
    "shell",
    "Open shells in jobs, by ssh.",
    {
        "start": Entry("task.shell:start", "Start a shell as a job, and open it."),
        "open": Entry("task.shell:open_shell", "Open a session in a shell's job."),
        "list": Entry("task.shell:list_shells", "List shells.", ("ls",)),
        "logs": Entry("task.shell:logs", "Print the log of a shell."),
        "kill": Entry("task.shell:kill", "End shells at once."),
        "describe": Entry("task.shell:describe", "Show a shell: its state, job and node."),
        "config": Entry("task.shell:config", "Print a shell's configuration as YAML."),
        "show-ssh-command": Entry("task.shell:show_ssh_command", "Print the ssh commands."),
        "ssh-config": Entry("task.shell:ssh_config", "Print a block for your ssh_config."),
    },
)

_SSH_OPTIONS = click.argument("ssh_options", nargs=-1, type=click.UNPROCESSED)
_LOGIN = click.option(
    "--login",
    metavar="USER@HOST",
    help="Name the login node as your laptop knows it. [default: this machine]",
)


@click.command()
@_SSH_OPTIONS
@task_options
@click.option("-d", "--detach", is_flag=True, help="Print the id, and return at once.")
def start(ssh_options: tuple[str, ...], detach: bool, **options: Any) -> None:
    """Start a shell as a job, wait for it, and open it by ssh.

    Words after -- go to ssh. Ctrl-C ends the wait alone: the job stays. It ends itself when no
    session was in use for `idle_timeout` (30 minutes by default).

    \b
    Examples:
      detslurm shell start --slots 1 --time 4:00:00
      detslurm shell start -- -L 8888:localhost:8888
      detslurm shell start --detach --config idle_timeout=2h
    """
    document = document_of(KIND, options)
    task = client().start_task(
        document,
        shell_entrypoint(document, load_site().sshd),
        template=options["template"],
        cluster=options["cluster_name"],
    )
    if detach:
        click.echo(task.id)
        return
    note_started(task)
    _open(task, ssh_options)


@click.command("open")
@task_id(KIND)
@_SSH_OPTIONS
def open_shell(task_id: int, ssh_options: tuple[str, ...]) -> None:
    """Open a session in a shell's job, once it runs.

    Words after -- go to ssh: options, or a command.

    \b
    Examples:
      detslurm shell open 7
      detslurm shell open last -- -L 8888:localhost:8888
      detslurm shell open 7 -- nvidia-smi
    """
    _open(client().task(task_id, KIND), ssh_options)


def _open(task: Task, options: tuple[str, ...]) -> None:
    """Become the program of a session, in this terminal."""
    wait_for_server(task)
    shell = Shell.of(task)
    command = shell.open_command(options)
    if command[0] != "ssh":
        note(f"{shell.address.problem}: this session begins with {command[0]}.")
    note(f"Shell {task.id} on {shell.address.host}. `detslurm shell kill {task.id}` ends it.")
    os.execvp(command[0], command)


@click.command("show-ssh-command")
@task_id(KIND)
@_LOGIN
def show_ssh_command(task_id: int, login: str | None) -> None:
    """Print the commands that open a session: on this machine, and on your laptop.

    \b
    Examples:
      detslurm shell show-ssh-command 7
      detslurm shell show-ssh-command 7 --login me@login.example.org
    """
    shell, login = Shell.of(client().task(task_id, KIND)), login or login_node()
    click.echo(f"On this machine: {shlex.join(shell.open_command())}")
    if shell.address.port is not None:
        click.echo(f"On your laptop, once: {shell.fetch_command(login)}")
    click.echo(f"On your laptop:  {shlex.join(shell.laptop_command(login))}")


@click.command("ssh-config")
@task_id(KIND)
@_LOGIN
def ssh_config(task_id: int, login: str | None) -> None:
    """Print the block for the ~/.ssh/config of your laptop: for VS Code, PyCharm, scp and ssh.

    \b
    Examples:
      detslurm shell ssh-config 7
      detslurm shell ssh-config last --login me@login.example.org
    """
    shell, login = Shell.of(client().task(task_id, KIND)), login or login_node()
    click.echo(shell.laptop(login).block(), nl=False)
    note(f"Copy its keys to your laptop, too: {shell.fetch_command(login)}")
