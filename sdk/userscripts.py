"""New jobs for trials of batch scripts that the user wrote and submitted by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detslurm.sdk.lifecycle_errors import LifecycleError
from detslurm.slurm import detect_cluster, userscript
from detslurm.store import ExperimentDir
from detslurm.store.jobclaims import go_on


def submit_again(experiment: ExperimentDir, indices: Sequence[int]) -> str:
    """Queue the user's script once more for these trials; returns the job id.

    Raises `LifecycleError` where nothing was kept of it, `SlurmError` where Slurm refuses.
    """
    script = _script(experiment)
    if "unknown" in script:
        raise LifecycleError(
            f"experiment {experiment.id} can't be submitted again: {script['unknown']}."
            " Submit your batch script by hand; it begins a new experiment"
        )
    elements = [script["elements"][index] for index in indices] if script["elements"] else []
    # Held until the store says whose trials the new job goes on with.
    path = experiment.jobs / userscript.SCRIPT
    job = userscript.submit_again(path, script, elements, hold=True)
    go_on(experiment.store, script["cluster"], job, script["job"])
    refs = [f"{job}_{element}" for element in elements] or [job]
    experiment.append(userscript.submitted_fact(refs, indices, script))
    detect_cluster("slurm").release([job])
    return job


def _script(experiment: ExperimentDir) -> Mapping[str, Any]:
    """Which job it was, and what was kept of its script a little later."""
    job: Mapping[str, Any] | None = None
    kept: Mapping[str, Any] = {"unknown": "its job ended before its script was kept"}
    for fact in experiment.facts():
        if job is None and fact.get("type") == "submitted" and "script" in fact:
            job = fact["script"]
        elif fact.get("type") == "script":
            kept = {key: value for key, value in fact.items() if key not in ("type", "n")}
    if job is None:
        return {"unknown": "it ran outside of Slurm"}
    return dict(job) if "options" in job else {**kept, **job}
