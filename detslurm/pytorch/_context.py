"""A PyTorchTrial's view of its surroundings: models, optimizers, gradients, devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from detslurm.core import Context, DistributedContext
from detslurm.errors import InvalidExperimentException
from detslurm.pytorch import _ddp
from detslurm.pytorch._amp import MixedPrecision
from detslurm.pytorch._apex import configure, scale_of
from detslurm.pytorch._backward_exchange import BackwardExchange
from detslurm.pytorch._base_context import ExperimentalContext, TrialContext
from detslurm.pytorch._data_parallel import DataParallel, average_gradients
from detslurm.pytorch._ddp import is_sharded
from detslurm.pytorch._lr_scheduler import LRScheduler
from detslurm.pytorch._reducer import MetricReducer
from detslurm.pytorch._sanity_checks import SanityChecks

ClipGrads = Callable[[Any], Any]


class PyTorchTrialContext(TrialContext):
    """Wraps models, optimizers and schedulers, and runs backward passes and steps.

    Wrapped objects are trained on all slots and saved in checkpoints. `pytorch.init()` gives it.

    Attributes:
        distributed: The ranks of the trial.
        device: This slot's device.
        models: The wrapped models.
        optimizers: The wrapped optimizers.
        lr_schedulers: The wrapped schedulers.
        experimental: Less common settings.
    """

    def __init__(
        self,
        core_context: Context | None,
        trial_seed: int | None,
        hparams: Mapping[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: Mapping[str, Any] | None,
        aggregation_frequency: int,
        steps_completed: int,
        managed_training: bool,
        debug_enabled: bool = False,
        distributed: DistributedContext | None = None,
    ) -> None:
        super().__init__(
            core_context,
            trial_seed,
            hparams,
            slots_per_trial,
            num_gpus,
            exp_conf,
            steps_completed,
            managed_training,
            debug_enabled,
            distributed,
        )
        if aggregation_frequency < 1:
            raise InvalidExperimentException(
                f"aggregation_frequency must be 1 or more, not {aggregation_frequency}"
            )
        self._aggregation = aggregation_frequency
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.experimental = PyTorchExperimentalContext(self)
        self._amp = MixedPrecision(self.device)
        self._average_aggregated: bool | None = None
        self._average_default = True
        self._connect_by(_ddp)
        self._compressed: set[int] = set()  # optimizers whose gradients are sent as fp16
        self._averaged: set[int] = set()  # those whose gradients are averaged for this step
        self._exchanges: dict[int, BackwardExchange] = {}
        self._exchange_count = 0
        self._auto_to_device = True
        self._steps_now = True
        self._sanity_checks = SanityChecks(is_chief=self.distributed.rank == 0)

    def _connect_by(self, data_parallel: DataParallel) -> None:
        self._data_parallel = data_parallel
        self._averages_at_step = not data_parallel.AVERAGES_IN_BACKWARD

    # Wrapping

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Move a model to this slot's device, and on several slots average its gradients.

        A `model` that `fully_shard()` has split up over the slots is left as it is; on Horovod it
        raises `InvalidExperimentException`.

        Returns:
            The model to use, and to make the optimizer from.
        """
        if any(is_sharded(parameter) for parameter in model.parameters()):
            if not self._data_parallel.TAKES_SHARDED:
                raise InvalidExperimentException(
                    "a model that fully_shard() has split up can't train on Horovod: start the"
                    " trial with detslurm.launch.torch_distributed"
                )
            self.models.append(model)
            return model
        model = model.to(self.device)
        if self.distributed.size > 1:
            model = self._data_parallel.replicate(model, self.device)
        self.models.append(model)
        return model

    def wrap_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> torch.optim.Optimizer:
        """Register an optimizer of wrapped models' parameters, and return it.

        Args:
            optimizer: The optimizer.
            backward_passes_per_step: The number of backward passes over the same parameters in one
                `train_batch()`; 1 by default.
            fp16_compression: Whether gradients are sent in half precision; off by default.
            average_aggregated_gradients: Whether gradients that are aggregated over batches are
                averaged, not added up. By default the configuration's `optimizations` decide;
                averaged if they don't.

        Raises:
            InvalidExperimentException: If `backward_passes_per_step` is less than 1, or optimizers
                differ in `average_aggregated_gradients`.
        """
        if backward_passes_per_step < 1:
            raise InvalidExperimentException(
                f"backward_passes_per_step must be 1 or more, not {backward_passes_per_step}"
            )
        self._set_average(average_aggregated_gradients)
        if self.distributed.size > 1:
            self._averages_at_step = self._averages_at_step or backward_passes_per_step > 1
            if fp16_compression:
                self._data_parallel.compress_gradients(self.models)
                self._compressed.add(id(optimizer))
            self._exchange_in_backward(optimizer, backward_passes_per_step)
        optimizer.zero_grad()
        self.optimizers.append(optimizer)
        return optimizer

    def _exchange_in_backward(self, optimizer: torch.optim.Optimizer, passes: int) -> None:
        """Send its gradients during backward passes, where that can be done and DDP does not."""
        before = self._exchanges.pop(id(optimizer), None)
        if before is not None:  # wrapped a second time
            before.close()
        sums = self._data_parallel.sums_by_name()
        if sums is not None and passes == 1:
            self._exchange_count += 1
            self._exchanges[id(optimizer)] = BackwardExchange(
                f"detslurm.gradients.{self._exchange_count}",
                _parameters(optimizer),
                sums,
                self.distributed.size,
                compressed=id(optimizer) in self._compressed,
            )

    def _set_average(self, average: bool | None) -> None:
        if average is None:
            return
        if self._average_aggregated not in (None, average):
            raise InvalidExperimentException(
                "average_aggregated_gradients must be the same for all optimizers"
            )
        self._average_aggregated = average

    def wrap_lr_scheduler(
        self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1
    ) -> Any:
        """Register and return a scheduler of a wrapped optimizer, and when it steps.

        Args:
            lr_scheduler: The scheduler of torch.
            step_mode: When it steps.
            frequency: The number of epochs, batches or optimizer steps between two of its steps, as
                the mode defines; 1 by default.

        Raises:
            InvalidExperimentException: If its optimizer is not wrapped, or a `ReduceLROnPlateau` is
                not to be stepped by hand.
        """
        manual = step_mode is LRScheduler.StepMode.MANUAL_STEP
        if isinstance(lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) and not manual:
            raise InvalidExperimentException(
                "ReduceLROnPlateau needs a metric to step: use StepMode.MANUAL_STEP and call its"
                " step(metric), for example in on_validation_end() of a callback"
            )
        optimizer = getattr(lr_scheduler, "optimizer", None)
        if optimizer is None or not any(optimizer is own for own in self.optimizers):
            raise InvalidExperimentException(
                "the optimizer of a learning rate scheduler must be wrapped first: use"
                " context.wrap_optimizer()"
            )
        if not hasattr(lr_scheduler, "base_lrs"):  # ReduceLROnPlateau doesn't note where it began
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Register a gradient scaler, a `torch.amp.GradScaler`, that the trial uses as in plain
        PyTorch, and return it. Call it before `wrap_model()`, and pass the `scaler` to
        `step_optimizer()`.

        Raises:
            InvalidExperimentException: If a model was wrapped before, or there is a scaler already.
        """
        self._before_models("wrap_scaler()")
        return self._amp.wrap(scaler, lambda: self._steps_now, self._average)

    def _before_models(self, call: str) -> None:
        if self.models:
            raise InvalidExperimentException(f"{call} must be called before wrap_model()")

    def configure_apex_amp(
        self,
        models: Any,
        optimizers: Any,
        enabled: bool | None = True,
        opt_level: str | None = "O1",
        cast_model_type: torch.dtype | None = None,
        patch_torch_functions: bool | None = None,
        keep_batchnorm_fp32: bool | str | None = None,
        master_weights: bool | None = None,
        loss_scale: float | str | None = None,
        cast_model_outputs: torch.dtype | None = None,
        num_losses: int | None = 1,
        verbosity: int | None = 1,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = 16777216.0,
    ) -> tuple[Any, Any]:
        """Deprecated: train in mixed precision as `experimental.use_amp()`, by apex's arguments;
        return `models` and `optimizers` as they are.

        It always trains by `torch.amp`, because NVIDIA removed `apex.amp` from apex in 2025. O0 is
        float32; O1 and O2 are autocast with a loss scale, with weights and batch norm in float32;
        O3 is half precision throughout. `cast_model_type`, `patch_torch_functions`,
        `keep_batchnorm_fp32`, `master_weights`, `cast_model_outputs` and `verbosity` have no
        effect, whatever their default.

        Args:
            enabled: Whether to do anything; True by default.
            opt_level: "O0", "O1" (the default), "O2" or "O3".
            loss_scale: A fixed number, or "dynamic" (the default); O3 has none.
            num_losses: Must be 1 or more (1 by default); all losses share a scale.
            min_loss_scale: The least that a dynamic scale becomes; None by default.
            max_loss_scale: The most that a dynamic scale becomes; 2**24 by default.

        Raises:
            InvalidExperimentException: If an argument is of the wrong kind, if there is a gradient
                scaler already, or for O3 on several slots.
        """
        if not enabled:
            return models, optimizers
        if num_losses is not None and num_losses < 1:
            raise InvalidExperimentException(
                f"configure_apex_amp(): num_losses must be 1 or more, not {num_losses}"
            )
        configure(
            self._amp,
            models,
            opt_level,
            scale_of(loss_scale, min_loss_scale, max_loss_scale),
            several_slots=self.distributed.size > 1,
            cast_model_type=cast_model_type,
            patch_torch_functions=patch_torch_functions,
            keep_batchnorm_fp32=keep_batchnorm_fp32,
            master_weights=master_weights,
            cast_model_outputs=cast_model_outputs,
        )
        return models, optimizers

    # Training

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients of `loss`, as its own `backward()` does.

        Under gradient aggregation it is divided by the number of batches first, if gradients
        are averaged. On several slots every parameter may take part in one backward pass for each
        batch, unless the optimizer was wrapped with more `backward_passes_per_step`. `gradient`,
        `retain_graph` and `create_graph`, none of them by default, are as for `Tensor.backward()`;
        to create a graph retains it, too.
        """
        if self._aggregation > 1 and self._averages:
            loss = loss / self._aggregation
        keep = retain_graph or create_graph
        if not self._amp.automatic:
            loss.backward(gradient=gradient, retain_graph=keep, create_graph=create_graph)
            return
        loss = self._amp.scaler.scale(loss)
        with self._amp.backward():
            loss.backward(gradient=gradient, retain_graph=keep, create_graph=create_graph)

    @property
    def _averages(self) -> bool:
        if self._average_aggregated is None:
            return self._average_default
        return self._average_aggregated

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: ClipGrads | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step an optimizer and zero its gradients; call it in every `train_batch()`.

        Under gradient aggregation the step happens only in every `aggregation_frequency`-th batch.

        Args:
            optimizer: A wrapped optimizer.
            clip_grads: Gets the optimizer's parameters before the step; by default gradients are
                not clipped.
            auto_zero_grads: Whether to zero the gradients after the step; on by default.
            scaler: The scaler of `wrap_scaler()`; by default there is none.

        Raises:
            InvalidExperimentException: If gradients are aggregated and `auto_zero_grads` is off, or
                the scaler is not the wrapped scaler.
        """
        if self._aggregation > 1 and not auto_zero_grads:
            raise InvalidExperimentException(
                "with aggregation_frequency > 1 step_optimizer() needs auto_zero_grads=True"
            )
        if scaler is not None or self._amp.scaler is not None:
            self._check_scaler(scaler)
        self._sanity_checks.stepping(optimizer, self.optimizers)
        if not self._steps_now:
            return
        if self._averages_at_step:
            self._average(optimizer)
        clip = (lambda: clip_grads(_parameters(optimizer))) if clip_grads is not None else None
        if self._amp.automatic:
            self._amp.step(optimizer, clip)
        else:
            if clip is not None:
                clip()
            optimizer.step() if scaler is None else scaler.step(optimizer)
        if self._amp.scaler is not None:
            # A scaler leaves out steps of infinite gradients, most often the first: torch's
            # schedulers would warn of a loop that steps them too early.
            optimizer._opt_called = True
        self._averaged.discard(id(optimizer))
        if auto_zero_grads:
            optimizer.zero_grad()

    def _average(self, optimizer: torch.optim.Optimizer) -> None:
        """Average its gradients over the ranks, unless backward passes or this have done so."""
        if (
            not self._averages_at_step
            or self.distributed.size == 1
            or id(optimizer) in self._averaged
        ):
            return
        compressed, size = id(optimizer) in self._compressed, self.distributed.size
        parameters = _parameters(optimizer)
        if (exchange := self._exchanges.get(id(optimizer))) is not None:
            exchange.average()
            parameters = exchange.others(parameters)
        average_gradients(parameters, self._data_parallel, size, compressed=compressed)
        self._averaged.add(id(optimizer))

    def _check_scaler(self, scaler: Any) -> None:
        if self._amp.automatic:
            if scaler is not None:
                raise InvalidExperimentException(
                    "use_amp() has its own scaler: call step_optimizer() without one"
                )
        elif scaler is not self._amp.scaler:
            raise InvalidExperimentException(
                "step_optimizer() needs the scaler of wrap_scaler(): pass scaler=..."
                if scaler is None
                else "step_optimizer() got a scaler that was not wrapped: use wrap_scaler()"
            )

    def _moved(self, batch: Any) -> Any:
        return self.to_device(batch) if self._auto_to_device else batch

    def _begin_batch(self, batch_idx: int) -> None:
        self._current_batch = batch_idx
        self._steps_now = (batch_idx + 1) % self._aggregation == 0
        self._averaged.clear()
        for exchange in self._exchanges.values():
            exchange.begin_batch(steps=self._steps_now)

    def _around_batch(self) -> AbstractContextManager[Any] | None:
        """The context in which the code of a batch runs, if any.

        On several slots gradients may be left to a later batch, or to the step.
        """
        gathers = self._averages_at_step or not self._steps_now
        if not gathers and not self._amp.automatic:
            return None
        around = ExitStack()
        for model in self.models if gathers else ():
            if isinstance(model, DistributedDataParallel):
                around.enter_context(model.no_sync())
        around.enter_context(self._amp.forward())
        return around


class PyTorchExperimentalContext(ExperimentalContext):
    """Less common settings: `context.experimental`."""

    _parent: PyTorchTrialContext

    def use_amp(self) -> None:
        """Train in automatic mixed precision, with a scaler of its own.

        Call it before `wrap_model()`, and leave scalers and autocast out of the trial's code.

        Raises:
            InvalidExperimentException: If a model was wrapped before, or there is a scaler already.
        """
        self._parent._before_models("use_amp()")
        self._parent._amp.use()

    def disable_auto_to_device(self) -> None:
        """Leave batches where the data loader put them."""
        self._parent._auto_to_device = False

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow any iterable of batches as a data loader.

        Its order, its shards and where it goes on after a restart are then up to the trial;
        `pytorch.samplers` may help.
        """
        self._parent._reproducible = False

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Return a registered metric of your own: the older name of `context.wrap_reducer()`.
        Arguments as in `PyTorchTrialContext.wrap_reducer`.
        """
        return self._parent.wrap_reducer(reducer, name, for_training, for_validation)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
