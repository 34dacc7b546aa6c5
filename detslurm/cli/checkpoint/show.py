"""Commands that show checkpoints and check their files."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import any_trials, client, experiments_of, several
from detslurm.cli.checkpoint import listing
from detslurm.cli.checkpoint.arguments import Quantity, any_uuids, one_uuid
from detslurm.cli.experiment.description import compact, properties
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import (
    Document,
    Table,
    describes,
    local_time,
    note,
    shows,
    size,
    warn,
)
from detslurm.cli.output.progress import one_by_one
from detslurm.sdk.checkpoints.choosing import as_stored, fronts_of, in_order, sort_names
from detslurm.sdk.checkpoints.verification import verify_each

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.client import Client

_FIELDS = ("uuid", "experiment_id", "trial_id", "batch_number", "end_time", "state", "size")


_experiments = click.option(
    "-e", "--experiment", "experiments", multiple=True, metavar="ID",
    help="Take only the checkpoints of this experiment; may be repeated.",
    callback=several(experiments_of), shell_complete=completed_by("experiments"),
)  # fmt: skip
_trials = any_trials("Take only the checkpoints of this trial; may be repeated.")


@click.command("list")
@_experiments
@_trials
@click.option(
    "--older-than", type=Quantity("age"), metavar="AGE", help="Show only older ones: 12h, 7d."
)
@click.option(
    "--larger-than", type=Quantity("size"), metavar="SIZE", help="Show only larger ones: 2G."
)
@click.option(
    "--sort-by",
    metavar="NAME",
    help=f"Sort by a validation metric, or by one of {', '.join(_FIELDS)}.",
)
@click.option("--desc", is_flag=True, help="Show the largest values first.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Show only N checkpoints.")
@click.option("-a", "--all", "deleted", is_flag=True, help="Include deleted checkpoints.")
@shows
def list_checkpoints(
    experiments: list[int],
    trials: list[int],
    older_than: float | None,
    larger_than: float | None,
    sort_by: str | None,
    desc: bool,
    limit: int | None,
    deleted: bool,
) -> Table:
    """List checkpoints of all experiments, by experiment and trial.

    State DAMAGED means that `verify` has found missing or changed files, DELETED with a problem
    that the directory was removed without detslurm.

    \b
    Examples:
      detslurm checkpoint list
      detslurm checkpoint list -e 7 --sort-by val_loss --limit 5
      detslurm checkpoint list --older-than 30d --sort-by size --desc
      detslurm checkpoint list -t 12 --json
    """
    mine = client()
    found: Iterable[Checkpoint] = _of(mine, experiments, trials, deleted=deleted)
    several = {one.experiment_id for one in found if one.objectives is not None}
    front = fronts_of(mine.checkpoints(sorted(several))) if several else ()
    is_metric = sort_by is not None and sort_by.lower() not in (*_FIELDS, "searcher_metric")
    if found and is_metric and sort_by not in (names := sort_names(found)):
        raise click.UsageError(f"--sort-by {sort_by}: give one of {', '.join(names)}")
    if older_than is not None:
        latest = time.time() - older_than
        found = [c for c in found if c.report_time is not None and c.report_time < latest]
    if larger_than is not None:
        found = [c for c in found if c.size > larger_than]
    chosen = in_order(found, sort_by, descending=desc) if sort_by else list(found)
    if limit is not None:
        chosen = chosen[:limit]
    metric = sort_by if is_metric else None
    shown = as_stored(mine.store, chosen)
    return listing.as_rows(shown, metric, experiments=True, front=front)


def _of(
    mine: Client, experiments: list[int], trials: list[int], *, deleted: bool = False
) -> list[Checkpoint]:
    """The checkpoints of these experiments and trials, by default of all."""
    owners = [mine.store.find_trial(trial).experiment_id for trial in trials]
    ids = sorted({*experiments, *owners}) or None
    chosen = set(trials)
    return [
        one
        for one in mine.checkpoints(ids, deleted=deleted)
        if not chosen or one.trial_id in chosen or one.experiment_id in experiments
    ]


@click.command()
@one_uuid
@describes
def describe(uuid: str) -> Document:
    """Show a checkpoint: where it comes from, its metrics and metadata, and what needs it.

    \b
    Examples:
      detslurm checkpoint describe 1b4e28ba
      detslurm checkpoint describe 1b4e28ba --json
    """
    found = _stored(uuid)
    return Document(lambda: _text(found), lambda: _data(found))


def _stored(uuid: str) -> Checkpoint:
    mine = client()
    return as_stored(mine.store, [mine.checkpoint(uuid)])[0]


def _text(found: Checkpoint) -> str:
    had, was = ("had ", "was ") if found.state == "DELETED" else ("", "")
    rows = [
        ("UUID", found.uuid),
        ("Experiment", found.experiment_id),
        ("Trial", found.trial_id),
        ("# of Batches", found.steps_completed),
        ("State", listing.state(found)),
        ("Deleted", local_time(found.view.deleted_time)),
        ("Problem", found.problem),
        ("Report Time", local_time(found.report_time)),
        ("Size", f"{had}{size(found.size)} in {counted(_file_count(found), 'file')}"),
        ("Path", f"{was}{found.location}"),
        ("H-Params", compact(found.hparams)),
        ("Validation", compact(found.validation_metrics)),
        ("Metadata", compact(found.metadata)),
        ("Needed by", "\n".join(found.kept_by())),
        ("Used by", "\n".join(_users(found))),
    ]
    return properties(rows)


def _users(found: Checkpoint) -> Iterator[str]:
    """The trials that use it, with what they have reported last."""
    for trial, reported in _reported(found).items():
        groups = (f"{group} {compact(last)}" for group, last in reported.items())
        yield ": ".join(filter(None, (f"trial {trial}", ", ".join(groups))))


def _reported(found: Checkpoint) -> dict[int, dict[str, dict[str, Any]]]:
    """The last metrics of the trials that use it, by trial, group and name."""
    reported: dict[int, dict[str, dict[str, Any]]] = {trial: {} for trial in found.used_by()}
    for row in found.get_metrics() if reported else ():
        if row.trial_id in reported:
            reported[row.trial_id].setdefault(row.group, {}).update(row.metrics)
    return reported


def _file_count(found: Checkpoint) -> int:
    return sum(not name.endswith("/") for name in found.resources)


def _data(found: Checkpoint) -> dict[str, Any]:
    return {
        **listing.data(found),
        "hparams": found.hparams,
        "metadata": found.metadata,
        "resources": found.resources,
        "needed_by": found.kept_by(),
        "used_by": list(reported := _reported(found)),
        "metrics_of_users": reported,
        "deleted_time": found.view.deleted_time,
    }


@click.command()
@one_uuid
@describes
def tree(uuid: str) -> Document:
    """Show the files of a checkpoint with their sizes, as they were recorded.

    \b
    Examples:
      detslurm checkpoint tree 1b4e28ba
    """
    found = client().checkpoint(uuid)
    return Document(
        lambda: "\n".join([f"{found.location}/", *_branches(found.resources)]),
        lambda: {"uuid": found.uuid, "path": found.location, "resources": found.resources},
    )


def _branches(resources: dict[str, int]) -> Iterator[str]:
    children: dict[PurePosixPath, list[str]] = defaultdict(list)
    for name in sorted(resources):
        children[PurePosixPath(name).parent].append(name)

    def below(folder: PurePosixPath, indent: str) -> Iterator[str]:
        names = children[folder]
        for place, name in enumerate(names, 1):
            last = place == len(names)
            path = PurePosixPath(name)
            shown = (
                f"{path.name}/" if name.endswith("/") else f"{path.name}  {size(resources[name])}"
            )
            yield f"{indent}{'└── ' if last else '├── '}{shown}"
            yield from below(path, indent + ("    " if last else "│   "))

    yield from below(PurePosixPath("."), "")


@click.command()
@any_uuids
@_experiments
@_trials
@click.option("-a", "--all", "every", is_flag=True, help="Check all checkpoints of the store.")
@click.option("--deep", is_flag=True, help="Read files that carry checksums: torch.save's, npz.")
@shows
def verify(
    uuids: list[str], experiments: list[int], trials: list[int], every: bool, deep: bool
) -> Table:
    """Compare the files of checkpoints with the records of their saves.

    Problems are recorded, and lists show them from then on. A checkpoint whose storage can't be
    seen from here is UNKNOWN, and nothing is recorded of it. The exit status is 0 if all are sound;
    DELETED checkpoints are not verified.

    \b
    Examples:
      detslurm checkpoint verify 1b4e28ba --deep
      detslurm checkpoint verify -e 7
      detslurm checkpoint verify --all
    """
    if not (uuids or experiments or trials or every):
        raise click.UsageError("name checkpoints to check: UUIDs, --experiment, --trial or --all")
    mine = client()
    found = [mine.checkpoint(uuid) for uuid in uuids]
    if experiments or trials or every:
        found += _of(mine, experiments, trials)
    found = list({one.uuid: one for one in found}.values())
    wrong = [one for one in found if one.problem] if _checked(found, deep=deep) else []
    states = Counter(str(one.state) for one in wrong)
    unseen, gone = states["UNKNOWN"], states["DELETED"]
    unchecked = f", {unseen} that can't be seen from here" if unseen else ""
    unchecked += f", {gone} deleted" if gone else ""
    checked = counted(len(found) - unseen - gone, "checkpoint")
    note(f"{checked} checked, {len(wrong) - unseen - gone} with problems{unchecked}")
    if wrong:
        click.get_current_context().call_on_close(_fail)
    return listing.as_rows(wrong, experiments=True)


def _checked(found: list[Checkpoint], *, deep: bool) -> bool:
    """Check them, experiment by experiment."""
    with one_by_one("Checking", len(found)) as step:
        for _ in verify_each(found, deep=deep, warn=warn):
            step()
    return bool(found)


def _fail() -> None:
    raise click.exceptions.Exit(1)
