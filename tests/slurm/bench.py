"""What the tests of both clusters share: a cluster, its probe jobs, and what they logged."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm.slurm import Cluster, JobInfo, JobRequest
from tests.cluster import wait_for

PROBE = Path(__file__).with_name("probe.py")


@dataclass
class Bench:
    """A cluster and a folder in which probe jobs run."""

    cluster: Cluster
    folder: Path

    def request(self, *arguments: str, **changes: Any) -> JobRequest:
        """A probe job with these arguments."""
        command = (sys.executable, str(PROBE), *arguments)
        base = JobRequest(name="probe", command=command, folder=self.folder, time_minutes=10)
        return base.with_changes(**{"ntasks": 1, "cpus_per_task": 1, **changes})

    def submit(self, *arguments: str, **changes: Any) -> str:
        return self.cluster.submit(self.request(*arguments, **changes))

    def go(self, ref: str = "") -> None:
        """Let all probes (or one) finish."""
        (self.folder / (f"go-{ref}" if ref else "go")).touch()

    def log(self, ref: str) -> list[dict[str, Any]]:
        """What a probe has logged so far."""
        path = self.folder / f"{ref}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def words(self, ref: str) -> list[str]:
        return [entry["word"] for entry in self.log(ref)]

    def wait_word(self, ref: str, word: str, times: int = 1, timeout: float = 180.0) -> None:
        """Wait until a probe has logged a word so many times."""
        wait_for(lambda: self.words(ref).count(word) >= times, timeout, f"{word} of {ref}")

    def info(self, ref: str) -> JobInfo | None:
        return self.cluster.query([ref]).get(ref)

    def wait_state(self, ref: str, *states: str, timeout: float = 180.0) -> JobInfo:
        """Wait until the queue shows one of these states."""

        def there() -> JobInfo | None:
            info = self.info(ref)
            return info if info is not None and info.state in states else None

        found = wait_for(there, timeout, f"{ref} {states}")
        assert found is not None
        return found
