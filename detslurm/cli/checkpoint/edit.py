"""Commands that change checkpoints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import client
from detslurm.cli.arguments.pairs import data_of
from detslurm.cli.checkpoint.arguments import one_uuid, several_uuids
from detslurm.cli.failures import print_expected
from detslurm.cli.output.printing import (
    Document,
    UserData,
    confirm_deletion,
    describes,
    json_option,
    note,
    print_json,
    size,
)
from detslurm.sdk.checkpoints.changes import delete as delete_all

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint

_yes = click.option("-y", "--yes", is_flag=True, help="Delete without asking for confirmation.")


@click.command()
@one_uuid
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a value (YAML).")
@click.option("--remove", "removed", multiple=True, metavar="KEY", help="Remove a value.")
@describes
def metadata(uuid: str, changes: tuple[str, ...], removed: tuple[str, ...]) -> Document:
    """Show the metadata of a checkpoint, or change it.

    \b
    Examples:
      detslurm checkpoint metadata 1b4e28ba
      detslurm checkpoint metadata 1b4e28ba --set note="for the paper" --set 'tags=[a, b]'
      detslurm checkpoint metadata 1b4e28ba --remove note
    """
    found = client().checkpoint(uuid)
    wanted = data_of(changes)
    if removed:
        found.remove_metadata(removed)
    if wanted:
        found.add_metadata(wanted)
    return Document(lambda: _yaml(found.metadata), lambda: UserData(found.metadata))


def _yaml(value: dict[str, Any]) -> str:
    import yaml

    if not value:
        return "no metadata"
    text: str = yaml.safe_dump(value, sort_keys=True, allow_unicode=True)
    return text.rstrip("\n")


@click.command("rm")
@several_uuids
@click.option(
    "--glob",
    "globs",
    multiple=True,
    metavar="PATTERN",
    help="Delete what matches: 'optimizer*', '**/*.log'; may be repeated.",
)
@_yes
@json_option
def remove_files(uuids: list[str], globs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete some files of checkpoints, which are PARTIALLY_DELETED then.

    Without --glob nothing is deleted: the files are recorded as they are, after changes by hand.

    \b
    Examples:
      detslurm checkpoint rm 1b4e28ba --glob 'optimizer*'
      detslurm checkpoint rm 1b4e28ba,6fa459ea --glob '**/*.log' --yes
      detslurm checkpoint rm 1b4e28ba
    """
    found = _found(uuids)
    if globs:
        confirm_deletion(f"Delete {', '.join(globs)} of {_named(found)}?", yes)
    done = []
    for one in found:
        try:
            names = one.remove_files(globs)
        except Exception as error:
            print_expected(error)
            continue
        done.append({"uuid": one.uuid, "state": one.state, "removed": names})
        if not as_json:
            click.echo(
                f"Deleted {counted(len(names), 'file')} of checkpoint {one.uuid}: {one.state}"
            )
    if as_json:
        print_json(done)
    if len(done) < len(found):
        raise click.exceptions.Exit(1)


@click.command()
@several_uuids
@_yes
@json_option
def delete(uuids: list[str], yes: bool, as_json: bool) -> None:
    """Delete checkpoints with all their files.

    A checkpoint that a model version, another experiment, a running trial or a search needs stays.

    \b
    Examples:
      detslurm checkpoint delete 1b4e28ba
      detslurm checkpoint delete 1b4e28ba,6fa459ea --yes
    """
    found = _found(uuids)
    before = [one for one in found if one.state == "DELETED"]
    freed = sum(one.size for one in found if one not in before)
    confirm_deletion(f"Delete {_named(found)} permanently ({size(freed)})?", yes)
    groups: dict[int, list[Checkpoint]] = defaultdict(list)
    for one in found:
        groups[one.experiment_id].append(one)
    failed = False
    for group in groups.values():
        try:
            delete_all(group[0]._directory, group)
        except Exception as error:
            print_expected(error)
            failed = True
    gone = [one for one in found if one.state == "DELETED"]
    if as_json:
        print_json([{"uuid": one.uuid, "deleted": one in gone} for one in found])
    else:
        if news := [one for one in gone if one not in before]:
            click.echo(f"Deleted {_named(news)}: {size(sum(one.size for one in news))}")
        if before:
            note(f"{_named(before)} had been deleted before")
    if failed:
        raise click.exceptions.Exit(1)


def _found(uuids: Sequence[str]) -> list[Checkpoint]:
    mine = client()
    found = {one.uuid: one for one in map(mine.checkpoint, uuids)}
    return list(found.values())


def _named(found: Sequence[Checkpoint]) -> str:
    return f"checkpoint {found[0].uuid}" if len(found) == 1 else counted(len(found), "checkpoint")
