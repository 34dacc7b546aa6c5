"""A runner for tests: starts one step on all nodes, speaks to it, checks what it hears."""

import json
import os
import subprocess
import sys
from pathlib import Path

from detslurm.slurm import Allocation

# A line that a step writes reaches the runner whole, never mixed with another node's, up to this
# many bytes with its newline: slurmstepd's buffer. Longer ones are cut and interleaved.
STEP_LINE_BYTES = 1024

AGENT = f"""
import os
node = os.environ["SLURM_NODEID"]
def say(text): os.write(1, text.encode())
gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
say(f"hello {{node}} {{gpus}} {{os.environ.get('FROM_RUNNER')}} {{cpus}}\\n")
for _ in range(300):
    say(node * {STEP_LINE_BYTES - 1} + "\\n")
say("part"); say("ial\\n")
while line := os.read(0, 100):
    say(f"heard {{node}} {{line.decode()}}")
    if line == b"stop\\n": break
"""

allocation = Allocation.from_environment()
assert allocation is not None
os.environ |= {"FROM_RUNNER": "yes", "SLURM_EXPORT_ENV": "NONE"}
step = subprocess.Popen(
    allocation.step_command([sys.executable, "-c", AGENT]),
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
)
assert step.stdin
assert step.stdout
said: dict[str, list[list[str]]] = {"hello": [], "heard": []}
seen = {"long": 0, "partial": 0, "bent": 0}
for line in step.stdout:
    words = line.split()
    if words[0] in said:
        said[words[0]].append(words[1:])
    elif words[0] == "partial":
        seen["partial"] += 1
        if seen["partial"] == allocation.node_count:
            step.stdin.write("preempt\n")
            step.stdin.flush()
    elif len(line) == STEP_LINE_BYTES and len(set(line[:-1])) == 1:
        seen["long"] += 1
    else:
        seen["bent"] += 1
    if len(said["heard"]) == allocation.node_count and said["heard"][-1][-1] == "preempt":
        step.stdin.write("stop\n")
        step.stdin.flush()
seen["exit"] = step.wait()
Path(f"{allocation.ref}.json").write_text(json.dumps(seen | said))
