"""The job that asks each node of a partition for its facts.

Its batch script needs nothing but a shell, so that it finds a node without the store or without
this Python, which the jobs of experiments wait for.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from detslurm._base.quantities import counted
from detslurm.sdk.probe_job import ProbeEnd, wait_for_file
from detslurm.sdk.selftest.facts import NodesJobFacts
from detslurm.slurm import Cluster, JobRequest, SlurmError, script_path
from detslurm.slurm.selftest_queries import job_record, local_time
from detslurm.store import NodesFacts, fs

_NODE_FOLDER: Final = Path("/dev/shm")  # on every node, whatever else it lacks
_LACKS: Final = {"73:0": "the store is not there", "74:0": "this Python is not there"}
_SCRIPT: Final = """\
rm -f "$PWD/slurm-$SLURM_JOB_ID.out"
test -w "$1" || exit 73
test -x "$2" || exit 74
exec >>"$1/nodes.out" 2>&1
exec "$2" -P -m detslurm.exec.selftest_nodes "$1"
"""
_TRIES: Final = 3
_RUN_SECONDS: Final = 180.0
_NODE_SECONDS: Final = 0.25  # more for each node


def ask_nodes(
    cluster: Cluster,
    template: JobRequest,
    folder: Path,
    *,
    patience: float,
    notify: Callable[[str], None],
) -> NodesJobFacts:
    """Run the job on the template's nodes, and again without a first node that lacks something.

    The `template` has one slot on each node, the `folder` is in the store, and the job has to start
    in `patience` seconds.
    """
    lacking: dict[str, str] = {}
    for _ in range(_TRIES):
        request = _request(template, folder, tuple(lacking))
        facts, end = _run(cluster, request, folder, patience, notify)
        node, lacks = end.get("BatchHost", ""), _LACKS.get(end.get("ExitCode", ""))
        if facts.found is not None or not node or lacks is None:
            break
        lacking[node] = lacks
        if len(lacking) == template.nodes:
            break
    return replace(facts, lacking=lacking)


def _request(template: JobRequest, folder: Path, exclude: Sequence[str]) -> JobRequest:
    count = template.nodes - len(exclude)
    return template.with_changes(
        name="detslurm-selftest",
        command=("/bin/sh", "-c", _SCRIPT, "sh", str(folder), sys.executable),
        folder=_NODE_FOLDER,
        comment="detslurm selftest",
        nodes=count,
        ntasks=count,
        exclude=(*template.exclude, *exclude),
        time_minutes=_minutes(count),
        requeue=True,
        signal_lead=0,
        mark=os.urandom(6).hex(),
    )


def _minutes(count: int) -> int:
    return 5 + int(count * _NODE_SECONDS / 60)


def _run(
    cluster: Cluster,
    request: JobRequest,
    folder: Path,
    patience: float,
    notify: Callable[[str], None],
) -> tuple[NodesJobFacts, dict[str, str]]:
    """The job's facts; and its record at the end, if it wrote none."""
    begun = NodesJobFacts(
        request=request,
        submitted=time.time(),
        uid=os.getuid(),
        utc_offset=time.localtime().tm_gmtoff,
    )
    try:
        job_id = cluster.submit(request)
    except SlurmError as refusal:
        return replace(begun, request=None, problem=f"refused: {refusal.message}"), {}
    finally:
        with suppress(OSError):
            script_path(request.folder, request.mark).unlink()
    end = ProbeEnd(None, None, False)
    try:
        notify(f"Job {job_id} asks {counted(request.nodes, 'node')}.")
        record = job_record(job_id)
        facts_path = folder / "facts.json"
        seconds = _RUN_SECONDS + request.nodes * _NODE_SECONDS
        end = wait_for_file(cluster, job_id, facts_path, start=patience, run=seconds)
    finally:
        if end.data is None:  # also at Ctrl-C
            with suppress(SlurmError):
                cluster.cancel([job_id])
    done = replace(
        begun,
        job_id=job_id,
        record=record,
        listed=end.seen is not None,
        started=end.started,
        read=time.time(),
        shown_submit=local_time(record.get("SubmitTime", "")),
    )
    if end.data is not None:
        return replace(done, found=msgspec.json.decode(end.data, type=NodesFacts)), {}
    last = job_record(job_id)
    return replace(done, problem=_problem(job_id, last, folder / "nodes.out")), last


def _problem(job_id: str, end: dict[str, str], output: Path) -> str:
    """Why a job has written nothing, by its record at the end."""
    state, reason = end.get("JobState", "not shown by Slurm"), end.get("Reason", "None")
    why = [_LACKS.get(end.get("ExitCode", ""), ""), "" if reason == "None" else reason]
    why += (fs.read_file(output) or b"").decode(errors="replace").strip().splitlines()[-1:]
    where = f" on {end['BatchHost']}" if "BatchHost" in end else ""
    text = ", ".join(filter(None, [state, *why]))
    return f"job {job_id} wrote no facts{where} ({text})"
