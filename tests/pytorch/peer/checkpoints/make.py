"""Makes a checkpoint with the Determined that the running Python has: `python make.py FOLDER`.

Trains the trial in `code/` for three batches (one before 0.21, in the local test mode that was all
there was), and puts the files that Determined wrote, but for the code, into FOLDER, beside them
FOLDER.json: what to expect of it. Releases from before 0.17.15 have no `load_data.json`: there the
command line's download wrote a `metadata.json`. That is written by hand here, and shown to be right
by loading the checkpoint with Determined.

Seen to work: Python 3.7 with torch 1.4 for Determined 0.13 to 0.16, Python 3.8 with torch 1.12 for
0.17 to 0.37, Python 3.11 with torch 2.13 for 0.38.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HPARAMS = {"global_batch_size": 2}
CONFIG = {
    "description": "small",
    "entrypoint": "model_def:Small",
    "hyperparameters": HPARAMS,
    "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"batches": 3}},
}


def main(target: Path) -> None:
    scratch = Path(tempfile.mkdtemp())
    keep_temporary_files(scratch)
    work = scratch / "work"
    shutil.copytree(str(Path(__file__).resolve().parent / "code"), str(work))
    os.chdir(str(work))
    sys.path.insert(0, str(work))
    sys.dont_write_bytecode = True
    expected = train()
    (folder,) = {path.parent for path in scratch.rglob("state_dict.pth")}
    if not (folder / "load_data.json").exists():
        write_metadata(folder, expected["determined"])
    shutil.rmtree(str(folder / "code"))
    if target.exists():
        shutil.rmtree(str(target))
    shutil.copytree(str(folder), str(target))
    target.with_name(target.name + ".json").write_text(json.dumps(expected, indent=1) + "\n")


def keep_temporary_files(folder: Path) -> None:
    """Let nothing be deleted: local test mode writes its checkpoint to a temporary directory."""
    tempfile.tempdir = str(folder)
    os.environ["XDG_DATA_HOME"] = str(folder)
    kind: Any = tempfile.TemporaryDirectory
    kind.cleanup = kind.__exit__ = lambda *args, **kwargs: None
    kind._cleanup = classmethod(lambda *args, **kwargs: None)


def train() -> dict[str, Any]:
    """Train; what there was when the checkpoint was written."""
    import determined
    import model_def
    import numpy as np
    import torch
    from determined import experimental, pytorch

    expected: dict[str, Any] = {"determined": determined.__version__, "torch": torch.__version__}
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)

    class Small(model_def.Small):
        def build_callbacks(self) -> dict[str, Any]:
            return {**super().build_callbacks(), "look": Look(self)}

    Small.__module__, Small.__qualname__ = "model_def", "Small"

    class Look(pytorch.PyTorchCallback):
        def __init__(self, trial: Any) -> None:
            self.trial = trial

        def on_checkpoint_end(self, checkpoint_dir: str) -> None:
            momentum = [s["momentum_buffer"] for s in self.trial.optimizer.state.values()]
            expected.update(
                weight=self.trial.model.linear.weight.tolist(),
                momentum=[buffer.tolist() for buffer in momentum],
                lr=self.trial.optimizer.param_groups[0]["lr"],
                validations=self.trial.counter.validations,
                random=[random.random(), np.random.rand(), torch.rand(1).item()],
            )

    if hasattr(pytorch, "Trainer"):
        with pytorch.init(hparams=HPARAMS) as context:
            pytorch.Trainer(Small(context), context).fit(max_length=pytorch.Batch(3))
    elif hasattr(experimental, "create"):
        experimental.create(Small, CONFIG, local=True, test=True, context_dir=str(Path.cwd()))
    else:
        experimental.test_one_batch(trial_class=Small, config=CONFIG)
    return expected


def write_metadata(folder: Path, version: str) -> None:
    from determined.experimental import Checkpoint

    metadata = {
        "determined_version": version,
        "framework": "torch",
        "format": "pickle",
        "experiment_config": CONFIG,
        "hparams": HPARAMS,
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=1))
    assert Checkpoint.load_from_path(str(folder)).model


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
