"""A DeepSpeedTrial's view of its surroundings: engines, model parallelism, devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.engine import PipelineEngine

from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._base_context import ExperimentalContext, TrialContext, alone
from detslurm.pytorch.deepspeed._mpu import (
    ModelParallelUnit,
    make_data_parallel_mpu,
    make_deepspeed_mpu,
)


class DeepSpeedTrialContext(TrialContext):
    """Registers DeepSpeed's engines, which are then trained, saved and resumed.

    Optimizers and schedulers go to `deepspeed.initialize()` and are not wrapped. `deepspeed.init()`
    gives the context.

    Attributes:
        distributed: The ranks of the trial.
        device: This slot's device.
        models: The wrapped engines.
        experimental: Less common settings.
    """

    models: list[DeepSpeedEngine]
    _only_used = False
    """Whether the trial is loaded to be used, not trained."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.models = []
        self.experimental = ExperimentalContext(self)
        self._mpu: ModelParallelUnit | None = None
        self._accumulates = True

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a context to try a trial with, by hand and in one process, from an experiment's
        `config`. Of its hyperparameters those count that are values, or of type `const`; one that
        has a range raises `ValueError`: choose a value.

        Example:
            from detslurm.pytorch.deepspeed import DeepSpeedTrialContext

            config = {"hyperparameters": {"lr": 0.1}, "data": {"folder": "digits"}}
            context = DeepSpeedTrialContext.from_config(config)
            assert context.get_hparam("lr") == 0.1
        """
        from detslurm.pytorch.deepspeed._connect import connect

        given = config.get("hyperparameters") or {}
        context = cls(**alone({k: _constant(k, v) for k, v in given.items()}, config))
        connect(context)
        return context

    def wrap_model_engine(self, model: DeepSpeedEngine) -> DeepSpeedEngine:
        """Register and return an engine, which is then saved in checkpoints: `model`, the first
        result of `deepspeed.initialize()`. The first engine decides about batch sizes, gradient
        accumulation and which rank reads which data.

        Raises:
            InvalidExperimentException: If it is no engine, was wrapped before, writes its
                checkpoints in the background (`checkpoint.writer`, DataStates), or can't be saved
                (ZeRO-3 without an optimizer).
        """
        if not isinstance(model, DeepSpeedEngine):
            raise InvalidExperimentException(
                "wrap_model_engine() takes an engine, the first of what deepspeed.initialize()"
                f" returns, not {type(model).__name__}"
            )
        if any(model is own for own in self.models):
            raise InvalidExperimentException("wrap_model_engine() got the same engine twice")
        if model.checkpoint_engine is None:
            raise InvalidExperimentException(
                "DeepSpeed can't save this engine, for with ZeRO-3 it has no optimizer: use it"
                " without wrapping it, and give it its weights in __init__"
            )
        if model.checkpoint_engine.is_decoupled():
            raise InvalidExperimentException(
                f"this engine would write its checkpoints after they count, by"
                f" {type(model.checkpoint_engine).__name__}: leave checkpoint.writer and"
                " datastates_config out of DeepSpeed's configuration"
            )
        self.models.append(model)
        if len(self.models) == 1:
            each = model.train_micro_batch_size_per_gpu() * model.gradient_accumulation_steps()
            self._batch_sizes = model.train_batch_size(), each
        return model

    def set_mpu(self, mpu: ModelParallelUnit) -> None:
        """Set the ranks that read data and report metrics, by this rank's place.

        Needed only for model parallelism that the first engine doesn't know of: data parallelism,
        ZeRO, DeepSpeed's pipelines, and the `mpu` and `mesh_param` of `deepspeed.initialize()` are
        recognised.

        Raises:
            InvalidExperimentException: If it was called before, or `mpu` is something else.
        """
        if self._mpu is not None:
            raise InvalidExperimentException("set_mpu() was called before: a trial has one mpu")
        if not isinstance(mpu, ModelParallelUnit):
            raise InvalidExperimentException(
                f"set_mpu() takes a ModelParallelUnit, not {type(mpu).__name__};"
                " make_deepspeed_mpu() makes one of an engine's mpu"
            )
        self._mpu = mpu

    def wrap_mpu(self, mpu: ModelParallelUnit) -> None:
        """Older name of `set_mpu()`. Arguments as in `set_mpu`."""
        self.set_mpu(mpu)

    @property
    def _place(self) -> ModelParallelUnit:
        if self._mpu is not None:
            return self._mpu
        known = getattr(self.models[0], "mpu", None) if self.models else None
        if known is not None:
            if not hasattr(known, "get_data_parallel_rank"):
                raise InvalidExperimentException(
                    "the engine's mpu doesn't show which part of the data is this rank's: call"
                    " context.set_mpu() in __init__"
                )
            return make_deepspeed_mpu(known)
        mesh = getattr(self.models[0], "mesh_device", None) if self.models else None
        if mesh is not None:  # DeepSpeed's sequence parallelism, for which there is no mpu
            # All report: each may know the loss of its own part of the sequences.
            return ModelParallelUnit(
                mesh.get_local_rank("data_parallel"), mesh["data_parallel"].size(), True, True
            )
        return make_data_parallel_mpu(self.distributed)

    def disable_auto_grad_accumulation(self) -> None:
        """Call `train_batch()` once a batch: it trains on all micro-batches itself, as many as
        `get_num_micro_batches_per_slot()`.
        """
        self._accumulates = False

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow any iterable of batches as a data loader.

        Its order, its shards and where it goes on after a restart are then up to the trial;
        `pytorch.samplers` may help.
        """
        self._reproducible = False

    @property
    def use_pipeline_parallel(self) -> bool:
        """Whether the first engine is a pipeline, which trains on all micro-batches at once."""
        return bool(self.models) and isinstance(self.models[0], PipelineEngine)

    def get_train_micro_batch_size_per_gpu(self) -> int:
        """Return the number of records in a micro-batch of one slot. Raises
        `InvalidExperimentException` if no engine was wrapped.
        """
        return int(self._first().train_micro_batch_size_per_gpu())

    def get_num_micro_batches_per_slot(self) -> int:
        """Return the number of micro-batches in a batch of one slot: `gradient_accumulation_steps`.
        Raises `InvalidExperimentException` if no engine was wrapped.
        """
        return int(self._first().gradient_accumulation_steps())

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        """Deprecated: `get_train_micro_batch_size_per_gpu()`."""
        return self.get_train_micro_batch_size_per_gpu()

    @property
    def num_micro_batches_per_slot(self) -> int:
        """Deprecated: `get_num_micro_batches_per_slot()`."""
        return self.get_num_micro_batches_per_slot()

    def _first(self) -> DeepSpeedEngine:
        if not self.models:
            raise InvalidExperimentException(
                "there is no engine yet: pass each through context.wrap_model_engine() in __init__"
            )
        return self.models[0]


def _constant(name: str, value: Any) -> Any:
    """A hyperparameter of a configuration as a trial gets it. Raises `ValueError`."""
    if not isinstance(value, Mapping):
        return value
    kind = value.get("type")
    if kind == "const":
        return value.get("val")
    if kind in ("int", "double", "log", "categorical", "choice"):
        raise ValueError(f"the hyperparameter {name} has a range, {dict(value)}: choose a value")
    return {key: _constant(f"{name}.{key}", inner) for key, inner in value.items()}
