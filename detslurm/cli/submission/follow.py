"""Showing the first trial's log right after a submission."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import click

from detslurm.cli.output.human import has_blocks, human_time
from detslurm.cli.output.printing import note, number
from detslurm.cli.output.waiting import BottomLine
from detslurm.cli.trial.logs import show
from detslurm.look.plot import progress_bar
from detslurm.sdk.client import Client
from detslurm.sdk.experiments.polling import follow_logs
from detslurm.sdk.parts import TrialView
from detslurm.sdk.trials.log_lines import LogLine
from detslurm.sdk.trials.trial import Trial


def follow_first_trial(client: Client, experiment_id: int) -> bool:
    """Follow the first trial's log until the trial is over; whether it has completed."""
    trial = client.experiment(experiment_id).first_trial()
    note("Waiting for first trial to begin...")
    note(f"Following first trial with ID {trial.id}")
    line = BottomLine(_share_of(trial))

    def report(text: str) -> None:
        line.clear()
        note(text)

    def pause(seconds: float) -> None:
        line.show()
        time.sleep(seconds)

    try:
        show(_above(line, follow_logs(trial, report=report, sleep=pause)))
    except KeyboardInterrupt:
        again = f"detslurm experiment logs -f {experiment_id}"
        report(f"Experiment {experiment_id} goes on: `{again}` follows it again.")
        raise
    line.clear()
    note(f"Trial log stream ended. To reopen log stream, run: detslurm t logs -f {trial.id}")
    view = trial.reload().view
    click.echo(result(view))
    return view.state == "COMPLETED"


def _above(line: BottomLine, lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The lines of the log, each printed where the line at the bottom was."""
    for one in lines:
        line.clear()
        yield one


def _share_of(trial: Trial) -> Callable[[], str]:
    """How far a trial is, and how long it will take by what it did since it is watched."""
    began, first = time.monotonic(), trial.row.progress

    def text() -> str:
        share = trial.row.progress
        done, passed = share - first, time.monotonic() - began
        left = f", {human_time((1 - share) / done * passed)} left" if done > 0 else ""
        bar = f"{progress_bar(share, 20)} " if has_blocks() else ""
        return f"trial {trial.id} is {trial.state}: {bar}{100 * share:.0f}%{left}"

    return text


def result(trial: TrialView) -> str:
    """The result of a trial, in a line or two."""
    lines = [f"Trial {trial.id} of experiment {trial.experiment_id}: {trial.state}"]
    best, latest = trial.best_validation, trial.latest_checkpoint
    if trial.state == "ERROR" and trial.end_reason:
        lines[0] += f": {trial.end_reason}"
    if best is not None and best.value is not None:
        lines[0] += f", best validation {number(best.value)} at batch {best.steps}"
    if latest is not None:
        lines.append(f"Latest checkpoint: {latest.uuid} (batch {latest.steps})")
    return "\n".join(lines)
