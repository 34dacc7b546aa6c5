"""torch's compiler and its shapes in Python are loaded by those who need them, and no one else sees
a difference."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cluster.spec import LIGHT_STARTS
from tests.e2e.desk import EXAMPLES

# The suite's own starts are shown to be right before a release, and after a change to them.
pytestmark = pytest.mark.nightly

EXAMPLE = EXAMPLES / "core_api_walkthrough"
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


def test_who_compiles_has_all_of_it() -> None:
    """Eager training loads none of it, and goes on while another thread loads it; who compiles then
    has what was kept out of graphs before, too."""
    code = """
import threading
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

@torch.compiler.disable
def apart(x):
    return x + 1

steps, thread = 0, threading.Thread(target=lambda: torch._dynamo.config)
thread.start()
while thread.is_alive():
    step()
    steps += 1
step()
print(eager, steps > 0, type(torch._dynamo).__name__)

compiled = torch.compile(model, backend=backend)
before = model.weight.detach().clone()
optimizer.zero_grad()
compiled(torch.ones(3, 2)).sum().backward()
optimizer.step()
step()
print(len(graphs), torch.equal(before, model.weight), torch._dynamo.graph_break.__module__)

double = torch.compile(lambda x: apart(x * 2) * 2, backend=backend)
print(double(torch.ones(1)).item(), len(graphs))
"""
    assert _printed(TRAINING + code).splitlines() == [
        "False True module", "1 False torch._dynamo.decorators", "6.0 3",
    ]  # fmt: skip


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


def test_what_is_set_before_it_is_loaded_counts() -> None:
    """timm sets the size of a cache at its import; torchvision imports a function for later."""
    code = f"""
import sys, torch, torch._dynamo
sys.path.insert(0, {str(EXAMPLE)!r})
import cpu_torchvision, timm.optim
print({IS_LOADED}, "wandb" in sys.modules)
from torchvision.ops.roi_align import is_compile_supported
print(is_compile_supported("cpu") in (True, False), torch._dynamo.config.cache_size_limit)
import torch._dynamo.utils as utils
print(utils.is_compile_supported.__module__, utils is torch._dynamo.utils)
"""
    assert _printed(code).splitlines() == [
        "False False", "True 1000000", "torch._dynamo.utils True",
    ]  # fmt: skip


def test_its_modules_are_loaded_once() -> None:
    """Whichever of them is asked for first, and how."""
    code = """
import os, sys, torch
for use in (
    "from torch._dynamo import config as found",
    "found = torch._dynamo.config",
    "import torch._dynamo.utils; found = torch._dynamo.config",
):
    if not os.fork():
        exec(use)
        used = sys.modules["torch._dynamo.convert_frame"].config
        same = used is found is torch._dynamo.config is sys.modules["torch._dynamo.config"]
        print(same, used.__spec__.origin, torch._dynamo.__spec__.loader.path, flush=True)
        os._exit(0)
    os.wait()
"""
    said = [line.split() for line in _printed(code).splitlines()]
    assert len(said) == 3
    for same, config, package in said:
        assert same == "True"
        assert config.endswith("torch/_dynamo/config.py")
        assert package.endswith("torch/_dynamo/__init__.py")


USES = (
    "from torch._refs import add",
    "from torch._decomp import decomposition_table as found; len(found) > 1000 or 1 / 0",
    "from torch._meta_registrations import device_hint",
    "from torch._subclasses import FakeTensorMode; shape(FakeTensorMode())",
    "torch.compile(torch.nn.Linear(2, 1), backend='eager')(torch.ones(1, 2))",
    "importlib.util.find_spec('keras'); shape(torch.device('meta'))",
)


def test_shapes_are_there_for_whoever_needs_them() -> None:
    """And for each of them once: what they register can't be registered twice."""
    code = f"""
import importlib.util, os, sys, torch

def shape(where):
    with where:
        torch.nn.Conv2d(1, 2, 3)(torch.ones(1, 1, 8, 8))

torch.rand(1, generator=torch.Generator())
print("torch._decomp" in sys.modules, flush=True)
for use in {USES}:
    if not os.fork():
        exec(use)
        names = ("_decomp", "_refs", "_meta_registrations")
        print(*{{type(sys.modules["torch." + name]).__name__ for name in names}}, flush=True)
        os._exit(0)
    os.wait()
"""
    assert _printed(code).splitlines() == ["False", *["module"] * len(USES)]


def test_deepspeed_is_imported_without_what_it_never_uses() -> None:
    """No mlflow, which there is; and where the compiler is off not that, either: Muon, which
    DeepSpeed compiles at its import, works all the same."""
    code = f"""
import os, sys
os.environ["TORCHDYNAMO_DISABLE"] = "1"
import deepspeed, torch
from deepspeed.runtime.zero.muon.original_muon import zeropower_via_newtonschulz5 as orthogonal
print(orthogonal(torch.eye(2), 5).shape, {IS_LOADED}, "mlflow" in sys.modules)
import mlflow
"""
    assert _printed(code).splitlines()[-1] == "torch.Size([2, 2]) False False"
