"""The process of an export (see `isolation`): a task as its argument, a line of JSON a trial."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from detslurm.sdk.client import Client
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.export import ExportedTrial
from detslurm.sdk.export.isolation import ExportFailure, ExportTask
from detslurm.sdk.export.updating import update
from detslurm.store import StoreError


def main(argv: Sequence[str]) -> int:
    """Do the task."""
    task = msgspec.json.decode(argv[0], type=ExportTask)
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what the libraries print is no result

        def say(result: ExportedTrial | ExportFailure) -> None:
            out.write(msgspec.json.encode(result) + b"\n")
            out.flush()

        try:
            experiments = []
            for root, numbers in task.experiments:
                client = Client(root, warn=lambda text: print(text, file=sys.stderr))
                experiments += [client.stored(number) for number in numbers]
            update(experiments, task.to, Path(task.folder), say)
        except (LifecycleError, StoreError) as error:
            say(ExportFailure(str(error)))
            return 1
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
