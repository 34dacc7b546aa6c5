"""`detslurm job why`: why a job waits, and what shows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.cluster_option import cluster_option
from detslurm.cli.arguments.ids import client, either_kind, job_or_experiment, trial_option
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import Document, describes
from detslurm.sdk.waiting.explain import estimate_text
from detslurm.sdk.waiting.spans import clock_and_span, span

if TYPE_CHECKING:
    from detslurm.sdk.waiting.explanation import Explanation, Variant


@click.command()
@click.argument("job_id", metavar="[ID]", required=False, shell_complete=completed_by("jobs"))
@either_kind
@trial_option("Show it for the job of this trial.")
@click.option(
    "--sooner",
    is_flag=True,
    help="Check with Slurm up to three variants that may start sooner: half the time, half the"
    " GPUs, another partition. Nothing is queued or changed.",
)
@click.option("--refresh", is_flag=True, help="Take no answers of the last minute: ask again.")
@cluster_option
@describes
def why(
    job_id: str | None,
    trial_id: int | None,
    sooner: bool,
    refresh: bool,
    cluster: str,
    experiment: bool,
    is_job: bool,
) -> Document:
    """Show why a job waits, the evidence, the remedy, and when it will start.

    ID is Slurm's, such as 4711 or 4711_3, of anybody's job, or that of an experiment, of whose jobs
    the first to start is meant. Of a number that is both, the experiment is meant while it has jobs
    in the queue. Slurm is asked at most five times, and not again within a minute.

    \b
    Examples:
      detslurm job why 4711
      detslurm job why last --sooner
      detslurm job why -j 7
    """
    if (job_id is None) == (trial_id is None):
        raise click.UsageError("give either ID or --trial")
    mine = client()
    if job_id is not None:
        name, kind = job_or_experiment(job_id, experiment=experiment, job=is_job)
        try:
            found = mine.explain_job(
                name, sooner=sooner, refresh=refresh, cluster=cluster, kind=kind
            )
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    else:
        assert trial_id is not None
        number = mine.stored_trial(trial_id).experiment_id
        found = mine.explain_trial(number, trial_id, sooner=sooner, refresh=refresh)
    return Document(lambda: "\n".join(_lines(found, time.time(), sooner)), found.to_dict)


def _lines(found: Explanation, now: float, sooner: bool) -> Iterator[str]:
    yield found.cause + _of_experiment(found)
    if found.category is None:
        return
    since = f" for {span(now - found.submitted)}" if found.submitted else ""
    yield f"It waits in {found.resource_pool or 'the queue'}{since}. Cause: {found.category}" + (
        f" ({found.reason})." if found.reason else "."
    )
    if found.permanent:
        yield "It never starts as it is."
    if found.remedy:
        yield found.remedy
    yield from _listed("Evidence", found.evidence)
    if not found.permanent:
        yield ""
        yield f"Expected start: {estimate_text(found, now)}."
    if sooner:
        yield from _listed("Sooner", [_variant(one, now) for one in found.sooner] or [_NOTHING])
    yield from _listed("Not available", found.unavailable)
    age = now - found.as_of
    if age >= 1:
        yield ""
        yield f"As of {span(age)} ago; --refresh asks again."


_NOTHING = "nothing was tried: it does not wait for what less time or fewer GPUs would change"


def _of_experiment(found: Explanation) -> str:
    if found.experiment_id is None:
        return ""
    trials = found.trial_ids
    if not trials:
        return f" It works for experiment {found.experiment_id}."
    names = ", ".join(map(str, trials[:5])) + (" ..." if len(trials) > 5 else "")
    noun = "trial" if len(trials) == 1 else "trials"
    return f" It is for {noun} {names} of experiment {found.experiment_id}."


def _listed(title: str, lines: Any) -> Iterator[str]:
    if lines:
        yield ""
        yield f"{title}:"
        yield from (f"  - {line}" for line in lines)


def _variant(variant: Variant, now: float) -> str:
    start, sooner = variant.expected_start, variant.sooner
    if start is None:
        return f"{variant.change}: refused: {variant.refusal}"
    when = f"{variant.change}: about {clock_and_span(max(start, now), now)}"
    if sooner is not None and sooner < 60:
        return f"{when}, not sooner"
    compared = "" if sooner is None else f", {span(sooner)} sooner"
    return f"{when}{compared}" + (f": `{variant.command}`" if variant.command else "")
