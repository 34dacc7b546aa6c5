"""`detslurm job`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

COMMANDS = {
    "list": Entry("job.list:list_jobs", "List the jobs in the queue, as scheduled.", ("ls",)),
    "describe": Entry("job.show:describe", "Show all that is known of a job."),
    "update": Entry("job.update:update", "Change a job that waits: its place, its partition."),
    "update-batch": Entry(
        "job.update:update_batch", "Change several jobs that wait, one after another."
    ),
    "why": Entry("job.why:why", "Show why a job waits, and when it will start."),
}

job = lazy_group("job", "See and change the queue.", COMMANDS)
