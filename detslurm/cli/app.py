"""The top of the command line: all commands by name, and how errors are printed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from detslurm import __version__
from detslurm.cli.lazy import Entry, lazy_group

COMMANDS = {
    "submit": Entry("detslurm.cli.submit:submit", "Check an experiment and queue its jobs."),
    "preview-search": Entry(
        "detslurm.cli.search_preview:preview_search",
        "Show how many trials a search trains, and for how long.",
    ),
    "simulate": Entry("detslurm.cli.search_preview:simulate", "Simulate a search in virtual time."),
    "experiment": Entry(
        "detslurm.cli.experiment:experiment", "List, inspect and control experiments.", ("e",)
    ),
    "trial": Entry("detslurm.cli.trial:trial", "Inspect and control trials.", ("t",)),
    "template": Entry("detslurm.cli.template:template", "Print batch scripts to adapt."),
    "doctor": Entry("detslurm.cli.doctor:doctor", "Check the store, Slurm and this Python."),
    "site": Entry("detslurm.cli.site:site", "Show or create the site profile of this cluster."),
}

app = click.version_option(__version__, prog_name="detslurm")(
    lazy_group(
        "detslurm",
        "Experiments, search and preemptible training on Slurm, with no server.",
        COMMANDS,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line; expected errors become a message on stderr and an exit status."""
    try:
        done = app.main(argv and list(argv), prog_name="detslurm", standalone_mode=False)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        return _explain(error)
    return done if isinstance(done, int) else 0


def _explain(error: Exception) -> int:
    from detslurm.cli.failures import described

    known = described(error)
    if known is None:
        raise error
    click.secho(known.text, err=True, fg="red")
    return known.exit_code
