"""`detslurm batch-script`: batch scripts to start from, for those who write their own."""

from __future__ import annotations

import click

from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import Column, Document, Table, describes, shows
from detslurm.sdk.parts import packaged, purpose


@click.group("batch-script")
def batch_script() -> None:
    """Print batch scripts to adapt."""


@batch_script.command("list")
@shows
def list_scripts() -> Table:
    """List the batch scripts, each with its purpose."""
    return packaged_table("batch", ".sbatch", "Purpose")


def packaged_table(folder: str, suffix: str, purpose_header: str) -> Table:
    """The files that come with detslurm in a folder, each with its purpose."""
    rows = [{"name": n, "purpose": purpose(text)} for n, text in packaged(folder, suffix).items()]
    columns = [
        Column("Name", lambda row: row["name"]),
        Column(purpose_header, lambda row: row["purpose"], least=20),
    ]
    return Table(columns, rows)


def packaged_text(folder: str, suffix: str, kind: str, name: str) -> str:
    """The file of that name. Raises BadParameter if there is none."""
    texts = packaged(folder, suffix)
    if name not in texts:
        raise click.BadParameter(f"no {kind} is called {name!r}; there are {', '.join(texts)}")
    return texts[name]


@batch_script.command("print")
@click.argument("name", shell_complete=completed_by("batch_scripts"))
@describes
def print_script(name: str) -> Document:
    """Print the batch script NAME, one of `detslurm batch-script list`.

    \b
    Examples:
      detslurm batch-script print torch > train.sbatch
    """
    text = packaged_text("batch", ".sbatch", "script", name).rstrip("\n")
    return Document(lambda: text, lambda: {"name": name, "script": text + "\n"})
