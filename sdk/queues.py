"""The clusters behind a store's experiments, each asked at most once for any number of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from detslurm.sdk.standing import Place, Sight
from detslurm.slurm import Cluster, JobInfo, SlurmError

Connect = Callable[[str], Cluster]


def connector(root: Path) -> Connect:
    """How to reach a cluster by name; a local one belongs to the store at `root`."""

    def connect(name: str) -> Cluster:
        from detslurm.slurm.detect import detect_cluster

        return detect_cluster(name, root=root)

    return connect


class Queues:
    """Clusters by name, connected on first use; what they can't do is said, not raised."""

    def __init__(self, connect: Connect, say: Callable[[str], None]) -> None:
        self._connect = connect
        self._say = say
        self._clusters: dict[str, Cluster] = {}

    def cluster(self, name: str) -> Cluster:
        """The cluster of that name, or SlurmError."""
        if name not in self._clusters:
            self._clusters[name] = self._connect(name)
        return self._clusters[name]

    def look(
        self,
        wanted: Iterable[Place],
        *,
        since: float | None = None,
        beside: Iterable[Place] = (),
    ) -> Sight:
        """What the queues say of these jobs: one query a cluster, then evidence for the missing.

        Those `beside` are looked for in the queue alone. A cluster that does not answer is named in
        `silent` and a warning is said.
        """
        jobs: dict[Place, JobInfo] = {}
        silent: set[str] = set()
        sure, more = _by_cluster(wanted), _by_cluster(beside)
        for name in {**sure, **more}:
            try:
                jobs.update(self._look_at(name, sure.get(name, []), more.get(name, []), since))
            except SlurmError as error:
                silent.add(name)
                why = error.said.rpartition("\n")[2]
                self._say(f"{name} does not answer; states are as the store knows them ({why})")
        return Sight(jobs, frozenset(silent))

    def _look_at(
        self,
        name: str,
        places: Collection[Place],
        beside: Collection[Place],
        since: float | None,
    ) -> dict[Place, JobInfo]:
        cluster = self.cluster(name)
        refs = {place.ref for place in places}
        found = cluster.query(sorted({place.job_id for place in (*places, *beside)}))
        missing = sorted(refs - found.keys())
        if missing:
            try:
                found = {**cluster.evidence(missing, since=since), **found}
            except SlurmError as error:
                self._say(f"{name} can't say how jobs ended: {error.said}")
        refs |= {place.ref for place in beside}
        return {Place(name, ref): found[ref] for ref in refs & found.keys()}

    def act(self, name: str, what: str, action: Callable[[Cluster], None]) -> bool:
        """Do something in a queue; a refusal becomes a warning, for the wish is recorded."""
        try:
            action(self.cluster(name))
        except SlurmError as error:
            self._say(f"{name}: can't {what} now: {error}")
            return False
        return True


def _by_cluster(places: Iterable[Place]) -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = {}
    for place in places:
        found.setdefault(place.cluster, []).append(place)
    return found
