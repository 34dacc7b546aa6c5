"""`detslurm tensorboard`."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping
from typing import Any

import click

from detslurm.cli.arguments.ids import any_experiments, any_trials, client
from detslurm.cli.lazy import Entry, lazy_group
from detslurm.cli.output.printing import json_option, note, warn
from detslurm.cli.task.run import task_options
from detslurm.cli.task.tensorboard import start_in_job
from detslurm.cli.tunnel import ended_by_signals, is_login_node, tunnel_here
from detslurm.sdk.tensorboard import (
    TensorboardServer,
    event_files,
    serve,
    specification,
    with_snapshots,
)

tensorboard = lazy_group(
    "tensorboard",
    "Look at metrics with TensorBoard.",
    {
        "start": Entry("tensorboard:start", "Show experiments in TensorBoard."),
        "open": Entry("task.tensorboard:open_tensorboard", "Print the way to it, if it is a job."),
        "list": Entry("task.tensorboard:list_tensorboards", "List TensorBoards in jobs.", ("ls",)),
        "logs": Entry("task.tensorboard:logs", "Print its output, if it is a job."),
        "kill": Entry("task.tensorboard:kill", "End TensorBoards in jobs."),
        "describe": Entry("task.tensorboard:describe", "Show its state and node, if it is a job."),
        "config": Entry("task.tensorboard:config", "Print its configuration, if it is a job."),
    },
)

_LAPTOP_PORT = 6006


@click.command()
@any_experiments
@any_trials("Show this trial. Repeatable.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Listen on this port; by default a free one."
)
@click.option(
    "--print", "only_print", is_flag=True, help="Print only the command to run TensorBoard with."
)
@click.option(
    "--in-job",
    is_flag=True,
    help="Run it as a job, which ends after idle_timeout (30m) in silence.",
)
@click.option("-d", "--detach", is_flag=True, help="Print the job's id, and return at once.")
@task_options
@json_option
def start(
    ids: tuple[int, ...],
    trials: tuple[int, ...],
    port: int | None,
    only_print: bool,
    in_job: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show experiments in TensorBoard until Ctrl-C, or in a job.

    It listens on this machine's loopback address alone, and refuses requests without the secret in
    its address. It prints first how to reach it from your laptop. It shows the files that your code
    has written as they grow, or the reported metrics where there are no files.

    In a job it listens on a Unix socket of the node, which no other user can open, and takes a CPU.

    \b
    Examples:
      detslurm tensorboard start 7 8 --in-job --time 4:00:00
      detslurm tensorboard start 7 8
      detslurm tensorboard start -t 12 -t 15
      detslurm tensorboard start 7 --print
    """
    if not ids and not trials:
        raise click.UsageError("name an experiment, or a trial with -t")
    if in_job:
        start_in_job(ids, trials, options, detach=detach, as_json=as_json)
        return
    if detach or as_json or _of_a_job(options):
        raise click.UsageError("these options describe a job: add --in-job")
    mine = client()
    found = event_files(map(mine.stored, ids), map(mine.stored_trial, trials))
    if only_print:
        _print_command(specification(found), [one.label for one in found if one.path is None])
        return
    with ended_by_signals(), with_snapshots(found) as complete:
        server = serve(specification(complete), port)
        _tell(server, " ".join(one.label for one in complete))
        while True:
            signal.pause()


def _of_a_job(options: Mapping[str, Any]) -> bool:
    return any(value not in (None, (), "auto") for value in options.values())


def _print_command(spec: str, missing: list[str]) -> None:
    if missing:
        warn(
            f"no event files of {', '.join(missing)} on a disk that this machine sees; "
            "`detslurm experiment export ID --to tensorboard -o DIR` writes some"
        )
    if not spec:
        raise click.exceptions.Exit(1)
    click.echo(shlex.join(["tensorboard", "--logdir_spec", spec]))


def _tell(server: TensorboardServer, labels: str) -> None:
    way = tunnel_here(_LAPTOP_PORT, f"127.0.0.1:{server.port}")
    click.echo(f"On your laptop:  {way}")
    click.echo(f"then open:       {server.url(_LAPTOP_PORT)}")
    click.echo(f"On this machine: {server.url()}")
    note(f"TensorBoard shows {labels} until Ctrl-C.")
    if is_login_node(os.environ):
        warn(
            "this looks like a login node, where others work, too: end TensorBoard when you have "
            "seen enough, or copy `detslurm experiment export ID --to tensorboard -o DIR` to your "
            "laptop and run it there"
        )
