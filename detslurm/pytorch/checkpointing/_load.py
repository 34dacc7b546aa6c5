"""A trained trial from the files of its checkpoint."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from detslurm._base.importing import WithoutCache
from detslurm._base.trust import others_can_change, others_can_change_below
from detslurm.compat import standing_in
from detslurm.pytorch._base_context import alone
from detslurm.pytorch._base_trial import BaseTrial
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._trial import PyTorchTrial
from detslurm.pytorch.checkpointing import _checkpoint_dir as files
from detslurm.pytorch.checkpointing._code import code_of
from detslurm.pytorch.checkpointing._sharded import joined
from detslurm.pytorch.checkpointing._state_dict import restore_models

logger = logging.getLogger("detslurm.pytorch")

_ENGINES = "DeepSpeedTrial"


class CheckpointLoadContext(PyTorchTrialContext):
    """The context of a trial that is loaded to be used, not trained: no job, no peers.

    Args:
        hparams: The hyperparameters; none by default.
        exp_conf: The experiment's configuration; none by default.
    """

    def __init__(
        self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(**alone(hparams, exp_conf, trial_seed=0), aggregation_frequency=1)


def load_trial_from_checkpoint_path(
    path: str,
    trial_class: type[BaseTrial] | None = None,
    trial_kwargs: dict[str, Any] | None = None,
    torch_load_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Return the trial that wrote a checkpoint, with its weights, ready for use. Of a trial with
    `build_model()`, as Determined 0.13 had them, return the model.

    Checkpoints may be detslurm's, or those of Determined 0.13 to 0.38. Loading runs the code that
    is in the checkpoint. A `DeepSpeedTrial` is made on this process as its only rank.

    Args:
        path: A directory with the checkpoint's files.
        trial_class: The trial's class; by default imported from the code in the checkpoint.
        trial_kwargs: More arguments for its constructor, after the context; none by default.
        torch_load_kwargs: Arguments for `torch.load`; none by default. DeepSpeed reads its files
            itself: for a `DeepSpeedTrial` only `weights_only` counts.
        **kwargs: Deprecated: as `torch_load_kwargs`.

    Raises:
        FileNotFoundError: If `path` is not a directory.
        ValueError: If the class can't be found, or arguments contradict each other.
        PermissionError: If others can change the code in the checkpoint, or its pickled files.
    """
    if kwargs and torch_load_kwargs:
        raise ValueError("give either torch_load_kwargs or the deprecated **kwargs, not both")
    if kwargs:
        logger.warning("**kwargs are deprecated: use torch_load_kwargs=%r", kwargs)
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{path} is not a directory: give the one with the checkpoint's files, its UUID under"
            " the experiment's checkpoint_storage, by default STORE/checkpoints/UUID"
        )
    load_data = _load_data(folder)
    options = torch_load_kwargs or kwargs
    code = _trusted(code_of(folder, load_data), trial_class, options)
    arguments = trial_kwargs or {}
    with standing_in(), _importing(code):
        kind = _checked(trial_class or _class(load_data, folder, code, options), load_data)
        if not issubclass(kind, PyTorchTrial):
            return _of_engines(kind, folder, load_data, arguments, options)
        context = CheckpointLoadContext(
            hparams=load_data.get("hparams"), exp_conf=load_data.get("experiment_config")
        )
        trial = kind(context, **arguments)
        built = _build_model(trial, context)
    state = files.read_state(folder, options)
    models = {name: value for name, value in state.items() if name.startswith("model")}
    restore_models(context, joined(models, folder, context))
    return trial if built is None else built


def _of_engines(
    kind: type[Any],
    folder: Path,
    load_data: Mapping[str, Any],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    from detslurm.pytorch.deepspeed._connect import restored_environment
    from detslurm.pytorch.deepspeed._using import EngineLoadContext, refuse_untrusted

    refuse_untrusted(folder, options)
    with restored_environment():
        context = EngineLoadContext(
            hparams=load_data.get("hparams"), exp_conf=load_data.get("experiment_config")
        )
        trial = kind(context, **arguments)
        trial.load(context, folder)
    return trial


def _build_model(trial: Any, context: PyTorchTrialContext) -> Any:
    """Make the one model of a trial as Determined 0.13 had them; None for other trials."""
    build = getattr(trial, "build_model", None)
    if context.models or not callable(build):
        return None
    return context.wrap_model(build())


def _trusted(code: Path, given: Any, options: Mapping[str, Any]) -> Path | None:
    """The code to import from; None for what others can change where the class is given.

    `weights_only=False` declares the checkpoint trusted. Raises `PermissionError`.
    """
    if not code.is_dir():
        return None
    if options.get("weights_only") is False or not others_can_change_below(code):
        return code
    if given is None:
        raise PermissionError(
            f"others can change the code in {code}, which would be executed. If you trust them,"
            " copy the checkpoint and use your copy, or load it with"
            " torch_load_kwargs={'weights_only': False}; or pass trial_class=..."
        )
    logger.warning("nothing is imported from %s: others can change it", code)
    return None


def _load_data(folder: Path) -> dict[str, Any]:
    data = files.read_load_data(folder)
    if data and data.get("trial_type") not in (None, "PyTorchTrial", _ENGINES):
        raise ValueError(
            f"{folder} is a checkpoint of a {data['trial_type']}, not a PyTorchTrial or {_ENGINES}"
        )
    if data:
        return data
    # Before 0.17.? the metadata named what made the checkpoint.
    metadata = files.read_metadata(folder)
    config = metadata.get("experiment_config") or {}
    return {
        "experiment_config": config,
        "hparams": metadata.get("hparams") or config.get("hyperparameters"),
        "trial_cls_spec": metadata.get("trial_cls_spec") or config.get("entrypoint"),
    }


def _class(
    load_data: Mapping[str, Any], folder: Path, code: Path | None, options: Mapping[str, Any]
) -> Any:
    spec = load_data.get("trial_cls_spec")
    if not isinstance(spec, str) or ":" not in spec:
        raise ValueError(f"{folder} does not name its trial's class: pass trial_class=...")
    module, _, name = spec.partition(":")
    if module == "__main__":
        raise ValueError(
            f"the trial's class {name} was defined in the script that was run, which can't be"
            " imported: pass trial_class=..."
        )
    top = module.partition(".")[0]
    if not _is_below(code, top) and options.get("weights_only") is not False:
        _refuse_foreign_name(folder, module)
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module))
    except (ModuleNotFoundError, AttributeError) as err:
        if getattr(err, "name", None) in (module, module.partition(".")[0], *name.split(".")):
            code = folder / "code"
            raise ValueError(
                f"the trial's class {spec} is not in {code}: pass trial_class=..."
            ) from err
        raise


def _refuse_foreign_name(folder: Path, module: str) -> None:
    """Importing a module runs it, and here the checkpoint's maker would choose which.

    Raises:
        PermissionError: If others could have written the name.
    """
    written = (folder, folder / "load_data.json", folder / "metadata.json")
    if any(others_can_change(path) for path in written if path.exists()):
        raise PermissionError(
            f"the checkpoint {folder} names the module {module}, which is not in its code, and"
            " others can change that name: nothing is imported. Pass trial_class=..., or, if you"
            " trust them, torch_load_kwargs={'weights_only': False}"
        )


def _is_below(code: Path | None, top: str) -> bool:
    """Whether a module lies in the code of the checkpoint."""
    if code is None:
        return False
    return (code / f"{top}.py").is_file() or (code / top).is_dir()


def _checked(kind: Any, load_data: Mapping[str, Any]) -> type[Any]:
    wanted: type[Any] = PyTorchTrial
    if load_data.get("trial_type") == _ENGINES:
        from detslurm.pytorch.deepspeed import DeepSpeedTrial as wanted
    if isinstance(kind, type) and issubclass(kind, wanted):
        return kind
    name = f"{getattr(kind, '__module__', '')}:{getattr(kind, '__qualname__', kind)}"
    raise ValueError(
        f"{name} is not a {wanted.__module__.partition('._')[0]}.{wanted.__name__}; a module that"
        " was imported with Determined itself has Determined's"
    )


@contextmanager
def _importing(code: Path | None) -> Iterator[None]:
    """Let imports find the checkpoint's code first, and forget these modules afterwards.

    No `__pycache__` is written: it would count as damage to the checkpoint.
    """
    if code is None:
        yield
        return
    code = code.absolute()
    finder = WithoutCache(code)
    before = dict(sys.modules)
    hidden = [name for name, module in before.items() if _shadowed(name, module, code)]
    for name in hidden:
        del sys.modules[name]
    sys.path.insert(0, str(code))
    # As a directory of `sys.path`: what Python has in itself goes before.
    sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(code))
        for name in [n for n, m in sys.modules.items() if n not in before and _is_in(m, code)]:
            del sys.modules[name]
        sys.modules.update({name: before[name] for name in hidden})


def _is_in(module: Any, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).is_relative_to(folder)


def _shadowed(name: str, module: Any, code: Path) -> bool:
    """Whether a module that is imported already has its namesake in the checkpoint."""
    if _is_in(module, code) or name == "__main__":
        return False
    top = name.partition(".")[0]
    return (code / f"{top}.py").is_file() or (code / top / "__init__.py").is_file()
