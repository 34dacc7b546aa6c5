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


def test_libraries_that_ask_load_none() -> None:
    """What they ask at their import, and where they wrap, unwrap and initialize, in the words of
    Lightning, Accelerate, Transformers and Keras; once it is loaded they have its answers."""
    code = f"""
import sys, torch, torch._dynamo as dynamo
from torch._dynamo import OptimizedModule

@dynamo.disable()
def apart(x):
    return x + 1

@dynamo.allow_in_graph
def whole(x):
    return x * three()

@dynamo.assume_constant_result
def three():
    return 3

store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
model = torch.nn.Linear(1, 1)
wrapped = [isinstance(model, kind) for kind in (OptimizedModule, dynamo.eval_frame.OptimizedModule)]
print(apart(1), *wrapped, {IS_LOADED})

compiled = torch.compile(lambda x: apart(x) * 2, backend="eager")
optimized = torch.compile(model, backend="eager")
optimized(torch.ones(1))
print(compiled(torch.ones(1)).item(), isinstance(optimized, OptimizedModule))
print(isinstance(optimized, dynamo.eval_frame.OptimizedModule))
graphs = []
backend = lambda graph, inputs: graphs.append(graph.code) or graph.forward
torch.compile(lambda x: whole(x) + three(), backend=backend)(torch.ones(1))
print("whole" in graphs[0], "+ 3" in graphs[0])
torch.distributed.destroy_process_group()
"""
    said = " ".join(_printed(code).split())
    assert said == "2 False False False 4.0 True True True True"


@pytest.mark.parametrize(
    "use",
    [
        "import torch._dynamo.config as found",
        "from torch._dynamo import config as found",
        "import torch; found = torch._dynamo.config",
        "import torch; torch._dynamo.utils; found = torch._dynamo.config",
        "import torch._dynamo.utils; found = torch._dynamo.config",
    ],
)
def test_its_modules_are_loaded_once(use: str) -> None:
    code = f"""
{use}
import sys, torch
used = sys.modules["torch._dynamo.convert_frame"].config
print(found is used, torch._dynamo.config is used, sys.modules["torch._dynamo.config"] is used)
print(used.__spec__.origin, torch._dynamo.__spec__.loader.path)
"""
    said, names = _printed(code).splitlines()
    assert said == "True True True"
    assert names.split()[0].endswith("torch/_dynamo/config.py")
    assert names.split()[1].endswith("torch/_dynamo/__init__.py")


def test_a_thread_trains_while_another_loads_it() -> None:
    code = """
import threading
steps, thread = 0, threading.Thread(target=lambda: torch._dynamo.config)
thread.start()
while thread.is_alive():
    step()
    steps += 1
step()
print(steps > 0, type(torch._dynamo).__name__)
"""
    assert _printed(TRAINING + code) == "True module\n"


def test_deepspeed_alone_finds_no_mlflow() -> None:
    code = "import sys, deepspeed; found = 'mlflow' in sys.modules; import mlflow; print(found)"
    assert _printed(code).endswith("False\n")


def test_deepspeed_optimizes_without_the_compiler() -> None:
    """Where it is off: Muon, which DeepSpeed compiles at its import, works all the same."""
    code = f"""
import os, sys, torch
os.environ["TORCHDYNAMO_DISABLE"] = "1"
from deepspeed.runtime.zero.muon.original_muon import zeropower_via_newtonschulz5 as orthogonal
print(orthogonal(torch.eye(2), 5).shape, {IS_LOADED})
"""
    assert _printed(code).splitlines()[-1] == "torch.Size([2, 2]) False"
