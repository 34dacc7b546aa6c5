"""`detslurm report`."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import any_experiments, any_trials, client
from detslurm.cli.output.printing import Document, describes, note, size
from detslurm.cli.output.progress import steps

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment


@click.command()
@any_experiments
@any_trials("Show only this trial, and others named so. Repeatable.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Write to this file; by default experiment-ID.html here.",
)
@click.option(
    "--ped-anova", is_flag=True, help="Show Optuna's PED-ANOVA beside hyperparameter importance."
)
@click.option("--open", "open_it", is_flag=True, help="Show it in this machine's browser, too.")
@describes
def report(
    ids: Sequence[int],
    trials: Sequence[int],
    output: Path | None,
    ped_anova: bool,
    open_it: bool,
) -> Document:
    """Write experiments to one page of HTML: tables, curves, searches, runs and checkpoints.

    It is one file that loads nothing, so that it can be copied, sent and opened anywhere. Secrets
    of the configuration are masked in it. It needs plotly: pip install 'detslurm[report]'.

    \b
    Examples:
      detslurm report 7
      detslurm report 7 8 9 -o searches.html
      detslurm report -t 12 -t 15 --open
    """
    from detslurm.look.document import PAGE
    from detslurm.look.report import page, write
    from detslurm.look.snapshot import snapshot

    chosen = _experiments(ids, trials)
    with steps("Reading") as progress:
        taken = snapshot(chosen, trials=trials or None, code=True, budget=PAGE, progress=progress)
        if ped_anova:
            from detslurm.look.ped_anova import with_ped_anova

            taken = with_ped_anova(taken)
        text = page(taken)
    target = output or Path(default_name([experiment.id for experiment in chosen]))
    write(text, target)
    if open_it:
        _open(target)
    return Document(
        lambda: f"Wrote {target} ({size(target.stat().st_size)}): open it in any browser",
        lambda: _facts(chosen, trials, target),
    )


def default_name(ids: Sequence[int]) -> str:
    """The name of the file for these experiments: of many of them the first and the last."""
    if len(ids) == 1:
        return f"experiment-{ids[0]}.html"
    return f"experiments-{'-'.join(map(str, ids if len(ids) < 5 else (ids[0], ids[-1])))}.html"


def _experiments(ids: Sequence[int], trials: Sequence[int]) -> list[Experiment]:
    """The experiments that are named, or else those of the trials."""
    if not ids and not trials:
        raise click.UsageError("name an experiment, or a trial with -t")
    mine = client()
    owners = {number: mine.stored_trial(number).experiment_id for number in trials}
    for number, owner in owners.items():
        if ids and owner not in ids:
            raise click.UsageError(
                f"trial {number} is one of experiment {owner}, which is not named"
            )
    return [mine.experiment(number) for number in ids or dict.fromkeys(owners.values())]


def _open(target: Path) -> None:
    try:
        opened = _has_screen() and webbrowser.open(target.resolve().as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        note("There is no browser here: copy the file to your laptop and open it there.")


def _has_screen() -> bool:
    """Elsewhere a browser of texts would take the terminal, and it knows no JavaScript."""
    named = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in named)


def _facts(chosen: Sequence[Experiment], trials: Sequence[int], target: Path) -> dict[str, Any]:
    ids = [experiment.id for experiment in chosen]
    path, written = str(target.resolve()), target.stat().st_size
    return {"path": path, "size": written, "experiments": ids, "trials": list(trials)}
