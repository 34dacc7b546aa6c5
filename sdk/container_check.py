"""`doctor --container`: a job of one minute that tries an image on a node."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from detslurm.config import ConfigErrors, load_experiment, load_site
from detslurm.sdk.container_findings import container_findings
from detslurm.sdk.doctor import Finding
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.probe_job import scratch_folder, wait_for_file
from detslurm.sdk.submission.planning import jobs_within
from detslurm.slurm import Cluster, JobRequest, SlurmError
from detslurm.store import ContainerFacts, StoreError

PATIENCE: Final = 300.0
"""Seconds in which the job has to start."""

_RUN_SECONDS = 150.0  # Slurm ends a job up to a minute after its limit
_LATER = (
    "Try another partition with --pool, or the same later: `detslurm job list` shows the queue."
)


def examine_container(
    image: str,
    connect: Callable[[], Cluster],
    root: Path,
    *,
    pool: str | None = None,
    runtime: str | None = None,
    notify: Callable[[str], None] = lambda message: None,
) -> list[Finding]:
    """Return the findings on an image on a node of a partition.

    Args:
        root: The directory of the store, where the job's files lie for a while.
        runtime: A value of `slurm.container`; by default the site profile's.
        notify: Gets a message once the job is queued.
    """
    try:
        cluster, site = connect(), load_site()
        given = {"container": runtime} if runtime else {}
        loaded = load_experiment(_experiment(image, pool, given), site=site, root=root)
        config = loaded.config
        if config.slurm.container == "none":
            return [_NO_RUNTIME]
        job = jobs_within(config, site, cluster, 1)[1].template
        with scratch_folder(root, "doctor-") as folder:
            (folder / "config.json").write_text(json.dumps(config.to_dict()))
            return list(_tried(cluster, job, folder, notify))
    except (ConfigErrors, OSError, StoreError) as error:
        return [Finding("site", "broken", str(error))]
    except SubmitError as error:
        return [Finding("slurm", "broken", str(error))]
    except SlurmError as error:
        return [Finding("slurm", "broken", error.message, error.advice)]


_NO_RUNTIME = Finding(
    "runtime", "broken", "the site profile names no container runtime",
    "Set `container: apptainer` (or another) there, or choose one with --runtime.",
)  # fmt: skip


def _experiment(image: str, pool: str | None, slurm: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "doctor",
        "entrypoint": ["true"],
        "searcher": {"name": "single", "metric": "none", "max_length": 1},
        "environment": {"image": image},
        "resources": {"slots_per_trial": 1, **({"resource_pool": pool} if pool else {})},
        "slurm": slurm,
    }


def _tried(
    cluster: Cluster, template: JobRequest, folder: Path, notify: Callable[[str], None]
) -> Iterator[Finding]:
    job_id = cluster.submit(
        template.with_changes(
            name="detslurm-doctor",
            command=(sys.executable, "-P", "-m", "detslurm.exec.container_check", str(folder)),
            folder=folder,
            time_minutes=1,
            requeue=False,
            signal_lead=0,
        )
    )
    found = None
    try:
        notify(f"Job {job_id} tries the image on a node. Ctrl-C cancels it.")
        found = _wait(cluster, job_id, folder / "facts.json")
    finally:
        if not isinstance(found, bytes):  # also at Ctrl-C
            with suppress(SlurmError):
                cluster.cancel([job_id])
    if isinstance(found, Finding):
        yield found
    else:
        yield from container_findings(msgspec.json.decode(found, type=ContainerFacts))


def _wait(cluster: Cluster, job_id: str, facts: Path) -> bytes | Finding:
    """Wait for the facts; the finding where the job gives none."""
    end = wait_for_file(cluster, job_id, facts, start=PATIENCE, run=_RUN_SECONDS)
    if end.data is not None:
        return end.data
    if end.started:
        state = end.seen.state if end.seen and end.seen.final else "no longer known"
        return _ended(job_id, state, facts.parent)
    reason = end.seen.reason if end.seen is not None else ""
    text = f"job {job_id} has not started in {PATIENCE / 60:.0f} minutes ({reason})"
    return Finding("slurm", "broken", f"{text}; it is cancelled", _LATER)


def _ended(job_id: str, state: str, folder: Path) -> Finding:
    """The job has ended without facts: with the last lines of its output."""
    texts = (path.read_text(errors="replace") for path in folder.glob("slurm-*.out"))
    lines = "\n".join(texts).strip().splitlines()[-5:]
    text = f"job {job_id} has ended without a result ({state})"
    advice = "Check that the nodes see the store and this Python: `detslurm doctor`."
    return Finding("slurm", "broken", "\n".join([text, *lines]), advice)
