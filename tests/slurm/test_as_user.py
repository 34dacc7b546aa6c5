"""What an ordinary user of a Slurm cluster may do, and what not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.cluster import User

OWN = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.cluster.waiting import wait_for
from detslurm.slurm import JobRequest, SlurmCluster, SlurmError
cluster, folder = SlurmCluster(), Path.cwd() / "jobs"
sleep = JobRequest(name="$(id)", command=("sleep", "300"), folder=folder, count=3, throttle=1,
                   ntasks=1, cpus_per_task=1, nice=100, time_minutes=5)
job = cluster.submit(sleep)
cluster.update(job, nice=10)
cluster.update(job, ArrayTaskThrottle=2)
cluster.hold([f"{job}_2"])
wait_for(lambda: cluster.query([job])[f"{job}_2"].held, 120, "held")
# A notification reaches what runs; of waiting elements nobody is told whose they are.
wait_for(lambda: cluster.query([job])[f"{job}_0"].running, 120, "running")
print(json.dumps({"job": job, "count": len(cluster.query([job])),
                  "limits": cluster.limits().cluster, "problems": cluster.check(sleep)}))
"""

OTHERS = """
import json, sys
from detslurm.slurm import SlurmCluster, SlurmError
import detslurm.slurm.cluster
detslurm.slurm.cluster.NOTIFY_PATIENCE = 60.0  # one that takes too long is given up in silence
cluster, said = SlurmCluster(), {}
job = sys.argv[1]
for verb, act in {"cancel": lambda: cluster.cancel([job]), "notify": lambda: cluster.notify([job]),
                  "requeue": lambda: cluster.requeue(f"{job}_0"),
                  "hold": lambda: cluster.hold([job])}.items():
    try: act(); said[verb] = "done"
    except SlurmError as refusal: said[verb] = refusal.advice
print(json.dumps(said))
"""


def ask(user: User, code: str, *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(user.run(sys.executable, "-c", code, *argv).stdout)
    return found


def test_users_rule_their_own_jobs_and_nobody_elses(alice: User, bob: User) -> None:
    """Nice up and down, throttle and hold are alice's; bob is told whose job it is."""
    own = ask(alice, OWN, str(Path(__file__).parents[2]))
    assert own["count"] == 3
    assert own["problems"] is None
    said = ask(bob, OTHERS, own["job"])
    assert set(said.values()) == {"The job belongs to another user."}
