"""torch's compiler is loaded by those who compile, and no one else sees a difference."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cluster.spec import LIGHT_STARTS

IS_LOADED = "'torch._dynamo.config' in sys.modules"
TRAINING = f"""
import sys, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())

def step():
    optimizer.zero_grad()
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()

step()
eager = {IS_LOADED}
"""


def _printed(code: str) -> str:
    command = [sys.executable, "-c", code]
    env = os.environ | LIGHT_STARTS
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


@pytest.fixture(autouse=True)
def _installed() -> None:
    if "detslurm_suite" not in _printed("import sys; print(*sys.modules)"):
        pytest.skip("light starts: scripts/test.sh installs what they need")


def test_eager_training_loads_no_compiler() -> None:
    assert _printed(f"{TRAINING}\nprint(eager)") == "False\n"


def test_who_compiles_has_all_of_it() -> None:
    code = """
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

compiled = torch.compile(model, backend=backend)
before = model.weight.detach().clone()
optimizer.zero_grad()
compiled(torch.ones(3, 2)).sum().backward()
optimizer.step()
step()
print(eager, len(graphs), torch.equal(before, model.weight), torch._dynamo.graph_break.__module__)
"""
    assert _printed(TRAINING + code) == "False 1 False torch._dynamo.decorators\n"


def test_what_was_kept_out_of_graphs_stays_out() -> None:
    code = """
import torch
graphs = []

@torch.compiler.disable
def apart(x):
    return x + 1

@torch.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
def double(x):
    return apart(x * 2) * 2

print(double(torch.ones(1)).item(), len(graphs))
"""
    assert _printed(code) == "6.0 2\n"


@pytest.mark.parametrize(
    "use",
    [
        "import torch._dynamo.utils as found",
        "from torch._dynamo import utils as found; found.counters",
        "import torch; found = torch._dynamo.utils; found.counters",
        "import torch; torch._dynamo.config; found = torch._dynamo.utils",
    ],
)
def test_its_modules_are_loaded_once(use: str) -> None:
    code = f"""
{use}
import sys, torch
real = sys.modules["torch._dynamo.utils"]
print(found.counters is real.counters, torch._dynamo.utils is real, real.__spec__.origin)
"""
    words = _printed(code).split()
    assert words[:2] == ["True", "True"]
    assert words[2].endswith("torch/_dynamo/utils.py")
