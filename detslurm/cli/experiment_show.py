"""Commands that show experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from detslurm.cli.ids import client, experiment_id, several_ids
from detslurm.cli.output import json_option, local_time, note, print_json, print_table


@click.command("list")
@click.option("-a", "--all", "include_archived", is_flag=True, help="Include archived experiments.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show only the N newest experiments.",
)
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Skip the N newest experiments.",
)
@json_option
def list_experiments(include_archived: bool, limit: int | None, offset: int, as_json: bool) -> None:
    """List experiments.

    \b
    Examples:
      detslurm experiment list
      detslurm experiment list --all --limit 20
      detslurm experiment list --json
    """
    rows = client().list_experiments(archived=include_archived)
    end = len(rows) - offset
    rows = rows[max(0, end - limit) if limit is not None else 0 : max(0, end)]
    if as_json:
        print_json(rows)
        return
    headers = [
        "ID",
        "Owner",
        "Name",
        "State",
        "Progress",
        "Trials",
        "Started",
        "Ended",
        "Resource Pool",
    ]
    table = [
        [
            r.id,
            r.owner,
            r.name,
            r.state,
            f"{100 * r.progress:.0f}%",
            r.trial_count,
            local_time(r.started),
            local_time(r.ended),
            r.pool or "",
        ]
        for r in rows
    ]
    if include_archived:
        headers.append("Archived")
        for line, row in zip(table, rows, strict=True):
            line.append("yes" if row.archived else "")
    print_table(headers, table)


@click.command()
@several_ids
@json_option
def describe(ids: list[int], as_json: bool) -> None:
    """Show the settings, trials and failures of experiments.

    If one of several experiments can't be read, the others are still shown, and the exit status
    is 1.

    \b
    Examples:
      detslurm experiment describe 7
      detslurm experiment describe 7 8 --json
    """
    from detslurm.cli import description

    failed: list[Exception] = []
    experiments = client().experiments(ids, skip=failed.append if len(ids) > 1 else None)
    if as_json:
        found = [description.experiment_data(experiment) for experiment in experiments]
        print_json(found[0] if len(ids) == 1 else found)
    elif experiments:
        click.echo("\n\n".join(description.experiment_text(e) for e in experiments))
    for error in failed:
        click.secho(str(error), err=True, fg="red")
    if failed:
        raise click.exceptions.Exit(1)


@click.command("list-trials")
@experiment_id
@json_option
def list_trials(experiment_id: int, as_json: bool) -> None:
    """List the trials of an experiment."""
    from detslurm.cli import description

    experiment = client().experiment(experiment_id)
    if as_json:
        print_json([description.trial_row(trial) for trial in experiment.trials()])
    else:
        click.echo(description.trials_table(experiment))


@click.command("list-checkpoints")
@experiment_id
@click.option(
    "--best",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show only the N best, by the searcher's metric.",
)
@json_option
def list_checkpoints(experiment_id: int, best: int | None, as_json: bool) -> None:
    """List the checkpoints of all trials of an experiment.

    \b
    Examples:
      detslurm experiment list-checkpoints 7
      detslurm experiment list-checkpoints 7 --best 3
    """
    from detslurm.cli import checkpoints

    experiment = client().experiment(experiment_id)
    checkpoints.show(checkpoints.of_experiment(experiment, best), as_json=as_json)


@click.command()
@experiment_id
@json_option
def config(experiment_id: int, as_json: bool) -> None:
    """Print the resolved configuration as YAML, with secrets masked."""
    data: dict[str, Any] = client().stored(experiment_id).config
    if as_json:
        print_json(data)
        return
    import yaml

    click.echo(yaml.safe_dump(data, sort_keys=True, allow_unicode=True), nl=False)


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
