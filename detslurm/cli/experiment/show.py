"""Commands that show experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from detslurm.cli.arguments.ids import client, experiment_id, several_ids
from detslurm.cli.checkpoint import listing
from detslurm.cli.experiment import description, description_tables
from detslurm.cli.failures import print_expected
from detslurm.cli.output.printing import Document, Table, describes, note, shows, warn
from detslurm.sdk.checkpoints.choosing import as_stored, best_first, fronts_of


@click.command()
@several_ids
@click.option(
    "--outdir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write experiments.csv, workloads.csv and trials.csv to DIR instead.",
)
@click.option("--metrics", is_flag=True, help="Include what each trial reported and saved.")
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print experiments, trials and --metrics as CSV instead."
)
@describes
def describe(ids: list[int], outdir: Path | None, metrics: bool, as_csv: bool) -> Document:
    """Show the settings, trials and failures of experiments.

    If one of several experiments can't be read, the others are still shown, and the exit status
    is 1.

    \b
    Examples:
      detslurm experiment describe 7
      detslurm experiment describe 7 8 --json
      detslurm experiment describe 7 --metrics --csv
      detslurm experiment describe 7 8 --outdir tables
    """
    failed: list[Exception] = []
    experiments = client().experiments(ids, skip=failed.append if len(ids) > 1 else None)
    for error in failed:
        print_expected(error)
    for warning in [text for one in experiments for text in one.purge_warnings()][:10]:
        warn(warning)

    if outdir is not None:
        written = [str(path) for path in description_tables.write_tables(experiments, outdir)]
        wrote = "\n".join(f"Wrote {path}" for path in written)
        return Document(lambda: wrote, lambda: written, failed=bool(failed))

    def data() -> Any:
        found = [description.experiment_data(one, metrics=metrics) for one in experiments]
        return found[0] if len(ids) == 1 else found

    def text() -> str:
        if as_csv:
            return description_tables.tables_csv(experiments, metrics=metrics)
        parts = [description.experiment_text(one) for one in experiments]
        if metrics:
            tables = map(description_tables.workloads_text, experiments)
            parts = [f"{part}\n\n{table}" for part, table in zip(parts, tables, strict=True)]
        return "\n\n".join(parts)

    return Document(text, data, failed=bool(failed))


@click.command("list-checkpoints")
@experiment_id
@click.option(
    "--best",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show only the N best, by the searcher's metric, or front by front if it has several.",
)
@shows
def list_checkpoints(experiment_id: int, best: int | None) -> Table:
    """List the checkpoints of all trials of an experiment.

    \b
    Examples:
      detslurm experiment list-checkpoints 7
      detslurm experiment list-checkpoints 7 --best 3
    """
    mine = client()
    found = as_stored(mine.store, mine.checkpoints([experiment_id]))
    shown = found if best is None else best_first(found)[:best]
    return listing.as_rows(shown, front=fronts_of(found))


@click.command()
@experiment_id
@describes
def config(experiment_id: int) -> Document:
    """Print the resolved configuration as YAML, with secrets masked."""
    data: dict[str, Any] = client().stored(experiment_id).config

    def text() -> str:
        from detslurm.sdk.parts import as_yaml  # with PyYAML

        return as_yaml(data, sort_keys=True).rstrip("\n")

    return Document(text, lambda: data)


@click.command("download-model-def")
@experiment_id
@click.option(
    "-o",
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default=True,
    help="Write the archive to this directory.",
)
def download_model_def(experiment_id: int, output_dir: Path) -> None:
    """Save the code that an experiment runs as experiment_ID_model_def.tgz."""
    path = client().stored(experiment_id).download_code(output_dir)
    note(f"Downloaded the code of experiment {experiment_id}")
    click.echo(path)
