"""Records what Determined 0.38.1 does, and whether it reads our checkpoints.

`python -m tests.pytorch.peer.record` installs it in the environment of `make bench`, writes
determined-0.38.1.json with it, and loads a checkpoint that detslurm has saved.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import python_with_peers

HERE = Path(__file__).resolve().parent
TRAIN = """
from determined import pytorch
from model_def import Small
with pytorch.init(hparams={"a": 1}) as context:
    pytorch.Trainer(Small(context), context).fit(max_length=pytorch.Batch(3))
"""
LOAD = """
import sys
import determined
from determined import pytorch
trial = pytorch.load_trial_from_checkpoint_path(
    sys.argv[1], torch_load_kwargs={"weights_only": False}
)
print(determined.__version__, "has loaded", type(trial), trial.model.state_dict())
with pytorch.init(hparams={"a": 1}) as context:
    trial = type(trial)(context)
    pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(5), latest_checkpoint=sys.argv[2])
    print("and trained on to a rate of", trial.optimizer.param_groups[0]["lr"])
"""


def main() -> None:
    """Run all of it."""
    theirs = str(python_with_peers())
    with tempfile.TemporaryDirectory() as scratch:
        own = os.environ | {
            "DETSLURM_ROOT": f"{scratch}/store",
            "XDG_DATA_HOME": scratch,
            "PYTHONPATH": str(HERE / "checkpoints" / "code"),
            # torch 2.6 refuses what Determined saves.
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
        }
        recorded = HERE / "determined-0.38.1.json"
        subprocess.run([theirs, str(HERE / "runs.py"), str(recorded)], env=own, check=True)
        train = Path(scratch) / "train.py"
        train.write_text(TRAIN)
        ours = [sys.executable, "-m", "detslurm.compat", "train.py"]
        subprocess.run(ours, env=own, cwd=scratch, check=True)
        (folder,) = (Path(scratch) / "store" / "checkpoints").iterdir()
        place = Path(scratch) / "determined"
        place.mkdir(exist_ok=True)
        (place / folder.name).symlink_to(folder)
        load = [theirs, "-c", LOAD, str(folder), folder.name]
        empty = Path(scratch) / "empty"  # Determined copies all that lies there into its checkpoint
        empty.mkdir()
        subprocess.run(load, env=own, cwd=empty, check=True)


if __name__ == "__main__":
    main()
