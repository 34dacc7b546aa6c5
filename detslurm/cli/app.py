"""The top of the command line: all commands by name, and how errors are printed."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from detslurm import __version__
from detslurm.cli.lazy import Entry, lazy_group
from detslurm.cli.session import Session

if TYPE_CHECKING:
    from detslurm.sdk.client import Client

COMMANDS = {
    "submit": Entry("submission.submit:submit", "Check an experiment and queue its jobs."),
    "run": Entry(
        "submission.run:run", "Run a command as an experiment, or a search over its flags."
    ),
    "multirun": Entry("submission.run:multirun", "Run a Hydra application with many values."),
    "preview-search": Entry(
        "submission.search_preview:preview_search",
        "Show how many trials a search trains, and for how long.",
    ),
    "simulate": Entry("submission.search_preview:simulate", "Simulate a search in virtual time."),
    "experiment": Entry(
        "experiment.commands:experiment", "List, inspect and control experiments.", ("e",)
    ),
    "trial": Entry("trial.commands:trial", "Inspect and control trials.", ("t",)),
    "checkpoint": Entry(
        "checkpoint.commands:checkpoint", "List, copy, check and delete checkpoints.", ("c",)
    ),
    "cmd": Entry("task.command:command", "Run programs as jobs.", ("command",)),
    "notebook": Entry("task.notebook:notebook", "Work in JupyterLab on a node."),
    "shell": Entry("task.shell:shell", "Open shells in jobs, by ssh."),
    "job": Entry("job.commands:job", "See and change the queue.", ("j",)),
    "resource-pool": Entry(
        "resource_pool:resource_pool", "See the partitions of the cluster.", ("rp",)
    ),
    "agent": Entry("resource_pool:agent", "See the nodes of the cluster.", ("a",)),
    "slot": Entry("resource_pool:slot", "See the slots of the cluster.", ("s",)),
    "workspace": Entry("project:workspace", "List workspaces.", ("w",)),
    "project": Entry("project:project", "List projects and their experiments.", ("p",)),
    "report": Entry("report:report", "Write experiments to a page that any browser opens."),
    "tensorboard": Entry("tensorboard:tensorboard", "Look at metrics with TensorBoard."),
    "ui": Entry("ui:ui", "Show experiments in a browser, live."),
    "model": Entry(
        "model.commands:model", "Give checkpoints names, with numbered versions.", ("m",)
    ),
    "template": Entry("template:template", "Keep parts of configurations by name.", ("tpl",)),
    "batch-script": Entry("batch_script:batch_script", "Print batch scripts to adapt."),
    "import": Entry(
        "experiment.bundle:import_bundle", "Read an experiment that was bundled elsewhere."
    ),
    "plot": Entry("experiment.plot:plot", "Plot learning curves as text."),
    "compare": Entry("compare:compare", "Show what differs between experiments, or trials."),
    "usage": Entry("usage:usage", "Show slot-hours and training time by user, project or month."),
    "du": Entry("du:du", "Show what experiments take on disk."),
    "gc": Entry("gc:gc", "Delete what no policy keeps, and what crashes left."),
    "top": Entry("top:top", "Watch experiments and the queue in the terminal."),
    "notify": Entry("notify:notify", "Send notices of the end of experiments."),
    "doctor": Entry("doctor:doctor", "Check the store, Slurm and this Python."),
    "selftest": Entry("selftest:selftest", "Try this cluster with a dozen short jobs."),
    "site": Entry("site:site", "Show or create the site profile of this cluster."),
    "completion": Entry(
        "completion:completion", "Complete commands, options, ids and file names with Tab."
    ),
}

app = click.version_option(__version__, prog_name="detslurm")(
    lazy_group(
        "detslurm",
        "Experiments, search and preemptible training on Slurm, with no server.",
        COMMANDS,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
)


def run(argv: Sequence[str] | None = None, *, bare: bool = False) -> int:
    """Run one command line; expected errors become a message on stderr and an exit status.

    With `bare`, JSON is printed without the envelope.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    current = Session(words, bare=bare)
    status = _run(words, current)
    if current.client is not None and "_DETSLURM_COMPLETE" not in os.environ:
        _send_waiting(current.client)
    return status


def _send_waiting(client: Client) -> None:
    """Send notices that jobs could not send, now that the command has done its work."""
    with contextlib.suppress(Exception, KeyboardInterrupt):  # none of it is the command's
        from detslurm.sdk.parts import fs

        names = fs.names_in(client.store.own("notices"))
        if any(name[:1].isdigit() for name in names):  # by one listing: mostly nothing waits
            from detslurm.sdk.notices import flush_after_command

            flush_after_command(client.store)


def _run(words: list[str], current: Session) -> int:
    color = False if "NO_COLOR" in os.environ else None
    try:
        if sys.stdout is None:  # and the next file that is opened would get its number
            raise click.ClickException("stdout is closed: send it to a file, or to /dev/null")
        for stream in (sys.stdout, sys.stderr):  # what users have named or printed is any text
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                # Names of files may be any bytes, which UTF-8 can give back as they are.
                is_utf8 = codecs.lookup(stream.encoding).name == "utf-8"
                stream.reconfigure(errors="surrogateescape" if is_utf8 else "replace")
        done = app.main(
            words, prog_name="detslurm", standalone_mode=False, obj=current, color=color
        )
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.Abort as error:
        # click's answer to any EOFError: of input that broke off, or of a question.
        if isinstance(error.__cause__, EOFError):
            return _explain(error.__cause__, current)
        asked = isinstance(error.__context__, EOFError)
        if asked and not (sys.stdin is not None and sys.stdin.isatty()):
            why = click.ClickException("this question has no terminal to answer it; add --yes")
            return _explain(why, current)
        return 130
    except KeyboardInterrupt:
        return 130
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:
        error.show()
        return int(error.exit_code)
    except Exception as error:
        if "_DETSLURM_COMPLETE" in os.environ:
            return 1  # a shell completes a line: an explanation would disturb it
        return _explain(error, current)
    return done if isinstance(done, int) else 0


def _explain(error: Exception, current: Session) -> int:
    from detslurm.cli.failures import described, usage
    from detslurm.cli.output.printing import print_error, print_json_errors

    known = described(error)
    if known is None:
        raise error
    if text := usage(error):
        click.echo(text, err=True)
    print_error(known.text, known.kind, current)
    if current.as_json:
        print_json_errors(current)
    return known.exit_code
