"""What each Python of the suite runs first; scripts/test.sh links this folder for it."""

from __future__ import annotations

import atexit
import gc
import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than all that is here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec


_MUON = "deepspeed.runtime.zero.muon.original_muon"
_UNWANTED = {"mlflow": "deepspeed.autotuning.autotuner", "wandb": "timm.utils.summary"}
_SHAPES = {
    "torch._meta_registrations",
    *("torch._decomp", "torch._prims", "torch._refs", "torch._subclasses.fake_tensor"),
    *("accelerate", "keras", "transformers"),
}


def is_importing(name: str) -> bool:
    """Whether a module is being imported now."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "_initializing", False)


class _Finder:
    """Spares processes what they import and never use.

    Torch's compiler is loaded by those who compile, its shapes of results in Python by those who
    compute without data. DeepSpeed's autotuner finds no mlflow (0.6 s) and timm no wandb. Muon, an
    optimizer of DeepSpeed, is compiled at its import, by a compiler that gives back what it gets
    where it is off.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, _: object = None
    ) -> ModuleSpec | None:
        if name in _UNWANTED and is_importing(_UNWANTED[name]):
            raise ModuleNotFoundError(name)
        if name in _SHAPES:
            from .shapes import find_spec

            return find_spec(name, path)
        if name == _MUON and os.environ.get("TORCHDYNAMO_DISABLE") == "1":
            from .compiler import uncompiled

            return uncompiled(name, path)
        if not name.startswith("torch._dynamo"):
            return None
        from .compiler import find_spec

        return find_spec(name, path)


def _leave_torch() -> None:
    if "torch" in sys.modules:
        gc.freeze()


# The collector looks again and again through what imports leave, and finds nothing; also at the
# end, where that takes a quarter of the time of a process that has imported torch.
gc.set_threshold(50_000)
atexit.register(_leave_torch)
sys.meta_path.insert(0, _Finder)
if sys.orig_argv[1:3] == ["-m", "deepspeed.launcher.launch"] and (
    os.environ.get("DS_ACCELERATOR") == "cpu"  # else it asks torch what there is
):
    from .launchers import lighten_deepspeed

    lighten_deepspeed()
