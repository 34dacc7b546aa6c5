"""`detslurm batch-script`: batch scripts to start from, for those who write their own."""

from __future__ import annotations

import click

from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import Column, Document, Table, describes, shows


@click.group("batch-script")
def batch_script() -> None:
    """Print batch scripts to adapt."""


@batch_script.command("list")
@shows
def list_scripts() -> Table:
    """List the batch scripts, each with its purpose."""
    from detslurm.sdk.parts import packaged, purpose

    rows = [{"name": n, "purpose": purpose(t)} for n, t in packaged("batch", ".sbatch").items()]
    columns = [
        Column("Name", lambda row: row["name"]),
        Column("Purpose", lambda r: r["purpose"], least=20),
    ]
    return Table(columns, rows)


@batch_script.command("print")
@click.argument("name", shell_complete=completed_by("batch_scripts"))
@describes
def print_script(name: str) -> Document:
    """Print the batch script NAME, one of `detslurm batch-script list`.

    \b
    Examples:
      detslurm batch-script print torch > train.sbatch
    """
    from detslurm.sdk.parts import packaged

    texts = packaged("batch", ".sbatch")
    if name not in texts:
        raise click.BadParameter(f"no script is called {name!r}; there are {', '.join(texts)}")
    text = texts[name].rstrip("\n")
    return Document(lambda: text, lambda: {"name": name, "script": text + "\n"})
