"""torchrun's workers on several nodes where the nodes talk MPI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.conftest import needs_mpi
from tests.e2e.desk import Desk

pytestmark = [pytest.mark.cluster, needs_mpi]

REPOSITORY = Path(__file__).resolve().parents[2]
TRAIN = """\
    import sys
    import detslurm as det
    from tests.distributed import scenarios

    peers = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=peers):
        scenarios.collectives(peers)
        mpi = "mpi4py" in sys.modules
        print(f"done rank={peers.rank} node={peers.cross_rank} mpi={mpi}", flush=True)
"""
CONFIG = f"""\
environment: {{environment_variables: [PYTHONPATH={REPOSITORY}]}}
resources: {{slots_per_trial: 4}}
slurm: {{slot_type: cpu, slots_per_node: 2, mpi: pmix}}
"""


def test_local_chiefs_inherit_their_nodes_mpi_identity(desk: Desk) -> None:
    """With `mpi: pmix` a worker of torchrun on each node is the node's MPI process; the others
    reach it by local sockets."""
    config = desk.project(TRAIN)
    config.write_text(
        "name: test\nsearcher: {name: single, metric: loss, max_length: 10}\n"
        "entrypoint: python3 -m detslurm.launch.torch_distributed train.py\n" + CONFIG
    )
    number = desk.submit(config)
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    found = sorted(re.findall(r"done (rank=\d node=\d mpi=\w+)", desk.log(number)))
    assert found == [f"rank={i} node={i // 2} mpi={i % 2 == 0}" for i in range(4)], desk.log(number)
