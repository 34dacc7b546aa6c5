"""The Trainer: what to train, how long, and what to do how often."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import convert

from detslurm._base import contract
from detslurm._base.info import ClusterInfo, get_cluster_info
from detslurm.config.run_config import RunSearcher
from detslurm.core._lengths import OWN_LENGTHS
from detslurm.core._searcher import configured_unit
from detslurm.pytorch._base_context import TrialContext
from detslurm.pytorch._base_trial import BaseTrial
from detslurm.pytorch._driver import Driver
from detslurm.pytorch._loop import TrainingLoop
from detslurm.pytorch._model_driver import ModelDriver
from detslurm.pytorch._plan import Policy, TrainingPlan, configured_length
from detslurm.pytorch._profiling import ProfiledBatches
from detslurm.pytorch._schedule import Schedule
from detslurm.pytorch._trial import PyTorchTrial
from detslurm.pytorch._units import NEVER, Batch, Epoch, TrainUnit, length, period

logger = logging.getLogger("detslurm.pytorch")

_POLICIES = ("best", "all", "none")


class Trainer:
    """Trains a `PyTorchTrial`; made and used inside `pytorch.init()`.

    Args:
        trial: The trial.
        context: The result of `pytorch.init()`, with which the trial was made.

    Raises:
        TypeError: If `trial` is not a `PyTorchTrial`.
    """

    _kind: Any = PyTorchTrial
    _driver: Callable[[Any, Any], Driver] = ModelDriver

    def __init__(self, trial: BaseTrial, context: TrialContext) -> None:
        if not isinstance(trial, self._kind):
            raise TypeError(
                f"Trainer() takes a {self._kind.__name__} and its context, such as"
                f" Trainer(MyTrial(context), context), not {trial!r}"
            )
        self._trial = trial
        self._context = context
        self._profiled: ProfiledBatches | None = None

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Deprecated: use `fit(profiling_enabled=True)`.

        Args:
            sync_timings: Has no effect, because no timings are taken; True by default.
            enabled: Whether to record system metrics of the node; off by default.
            begin_on_batch: The first batch to record them in, counted from 0; 0 by default.
            end_after_batch: The last batch to record them in; by default the last of all.

        Raises:
            ValueError: If the last batch is before the first.
        """
        logger.warning(
            "configure_profiler() is deprecated: use fit(profiling_enabled=True), or profiling of"
            " the configuration, which names batches, too"
        )
        if end_after_batch is not None and end_after_batch < begin_on_batch:
            raise ValueError("begin_on_batch must not be greater than end_after_batch")
        self._profiled = ProfiledBatches(begin_on_batch, end_after_batch) if enabled else None

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit | None = Batch(100),  # noqa: B008
        checkpoint_policy: Policy = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> None:
        """Train, validate, save and report; returns when done, or when the trial has to exit.

        Periods of None mean never. There is always a checkpoint at the end, and when the trial has
        to exit.

        Args:
            checkpoint_period: How often to save; never by default.
            validation_period: How often to validate; by default only at the end.
            max_length: How far to train. It has no default outside of jobs; in a job a `max_length`
                of the search counts instead.
            reporting_period: How often to report training metrics; `Batch(100)` by default.
            checkpoint_policy: The validations that a checkpoint follows: "best" (the default:
                better than all before in the experiment), "all" or "none".
            latest_checkpoint: The checkpoint to go on from, as a rule
                `detslurm.get_cluster_info().latest_checkpoint`; by default training starts from the
                beginning.
            step_zero_validation: Whether to validate before the first batch; off by default.
            test_mode: Whether to train and validate one batch only, outside of jobs; off by
                default.
            profiling_enabled: Whether to record system metrics of the node; off by default.

        Raises:
            ValueError: If there is no length to train to, or the policy or `test_mode` make no
                sense here.
            TypeError: If a length or a period is not a `Batch` or an `Epoch`.
            RuntimeError: If it is called a second time in one `pytorch.init()`.

        Example:
            import torch

            from detslurm import pytorch


            class Line(pytorch.PyTorchTrial):
                def __init__(self, context):
                    self.context = context
                    self.model = context.wrap_model(torch.nn.Linear(1, 1))
                    optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
                    self.optimizer = context.wrap_optimizer(optimizer)

                def build_training_data_loader(self):
                    x = torch.linspace(0, 1, 64).reshape(-1, 1)
                    data = torch.utils.data.TensorDataset(x, 3 * x)
                    return pytorch.DataLoader(data, batch_size=16, shuffle=True)

                def build_validation_data_loader(self):
                    return self.build_training_data_loader()

                def loss(self, batch):
                    x, y = batch
                    return torch.nn.functional.mse_loss(self.model(x), y)

                def train_batch(self, batch, epoch_idx, batch_idx):
                    loss = self.loss(batch)
                    self.context.backward(loss)
                    self.context.step_optimizer(self.optimizer)
                    return {"loss": loss}

                def evaluate_batch(self, batch, batch_idx):
                    return {"validation_loss": self.loss(batch)}


            with pytorch.init() as context:
                trainer = pytorch.Trainer(Line(context), context)
                trainer.fit(max_length=pytorch.Epoch(2), validation_period=pytorch.Epoch(1))
        """
        info = get_cluster_info() if self._context._managed else None
        if test_mode and info is not None:
            raise ValueError("test_mode is only supported in local training mode.")
        if checkpoint_policy not in _POLICIES:
            raise ValueError(
                f"checkpoint_policy must be one of {', '.join(_POLICIES)}, not"
                f" {checkpoint_policy!r}"
            )
        schedule = Schedule(
            period(validation_period, "validation_period"),
            period(checkpoint_period, "checkpoint_period"),
            period(reporting_period, "reporting_period"),
        )
        plan = TrainingPlan(
            schedule=schedule,
            policy=checkpoint_policy,
            max_length=None if max_length is None else length(max_length),
            latest_checkpoint=latest_checkpoint,
            step_zero_validation=step_zero_validation,
            test_mode=test_mode,
        )
        if info is None:
            plan = replace(plan, max_length=_local_length(plan))
        else:
            self._warn_of_unused(schedule, info, latest_checkpoint)
            plan = self._managed_plan(plan)
        plan = replace(plan, policy=self._possible_policy(plan.policy))
        if profiling_enabled:
            self._profiled = ProfiledBatches()
        self._run(plan)

    def _run(self, plan: TrainingPlan) -> None:
        """Train by a complete plan, which `fit()` makes of its arguments."""
        driver = self._driver(self._trial, self._context)
        self._refuse_second_fit()
        if self._context.distributed.rank == 0:
            searcher = (self._context._exp_conf or {}).get("searcher") or {}
            alone = searcher.get("name") in (None, "single", "random", "grid")
            logger.info("%s", describe(plan, searches=plan.follows_search and not alone))
        profiled = self._profiled
        if profiled is None and self._context._managed:
            profiled = ProfiledBatches.configured(self._context._exp_conf or {})
        TrainingLoop(self._trial, self._context, plan, driver, profiled).run()

    def _refuse_second_fit(self) -> None:
        if self._context._fitted:
            raise RuntimeError(
                "fit() was called before in this init(), and a trial counts its batches"
                " once: train more in another init(), with latest_checkpoint= the last one"
            )
        self._context._fitted = True

    def _managed_plan(self, plan: TrainingPlan) -> TrainingPlan:
        """The plan with the length that counts in a job, or ValueError where there is none."""
        if os.environ.get(contract.TEST_MODE):
            return replace(plan, max_length=Batch(1), test_mode=True)
        max_length, follows_search = self._managed_length(plan.max_length)
        return replace(plan, max_length=max_length, follows_search=follows_search)

    def _managed_length(self, given: TrainUnit | None) -> tuple[TrainUnit | None, bool]:
        """The length to train to in a job, and whether the search gives it."""
        searcher: Mapping[str, Any] = self._context.get_experiment_config().get("searcher") or {}
        if searcher.get("name") in OWN_LENGTHS:
            if configured_unit(convert(searcher, RunSearcher)) is None and given is None:
                instead = (
                    "give searcher.length_per_round a unit, such as {epochs: 5}"
                    if searcher["name"] == "pbt"
                    else "set searcher.unit to batches or epochs"
                )
                raise ValueError(
                    "`fit(max_length=X)` must be set: nothing defines what the search's lengths"
                    f" count; or {instead}"
                )
            return given, True
        configured = configured_length(searcher)
        if configured is None:
            most = _max_time(searcher)
            if given is not None and most not in (None, given):
                logger.warning(
                    "fit(max_length=%s) is not the search's max_time, %s: the search compares"
                    " trials as if they trained as long as that",
                    given,
                    most,
                )
            if given is None and most is None:
                raise ValueError(
                    "`fit(max_length=X)` must be set: the configuration has no searcher.max_length"
                )
            return given or most, False
        if isinstance(configured, TrainUnit):
            if given is not None and given != configured:
                logger.warning(
                    "fit(max_length=%s) is not used: the search's max_length is %s",
                    given,
                    configured,
                )
            return configured, True
        if given is None:
            raise ValueError(
                f"`fit(max_length=X)` must be set: searcher.max_length is {configured}, without a"
                " unit; or give it one, such as {batches: 1000} or {epochs: 10}"
            )
        if given.value != configured:
            logger.warning(
                "fit(max_length=%s) only gives the unit: the search's max_length is %s",
                given,
                configured,
            )
        return given, True

    def _warn_of_unused(
        self, schedule: Schedule, info: ClusterInfo, latest_checkpoint: str | None
    ) -> None:
        if info.latest_checkpoint and latest_checkpoint is None:
            logger.warning(
                "this trial has a checkpoint to go on from, but fit() was called without"
                " latest_checkpoint=detslurm.get_cluster_info().latest_checkpoint: training starts"
                " from the beginning"
            )
        config = self._context.get_experiment_config()
        for name, own in (
            ("min_validation_period", schedule.validation),
            ("min_checkpoint_period", schedule.checkpoint),
        ):
            if own == NEVER and any((config.get(name) or {}).values()):
                logger.warning(
                    "%s of the configuration has no effect on a script: pass %s to fit()",
                    name,
                    name.removeprefix("min_"),
                )

    def _possible_policy(self, policy: Policy) -> Policy:
        searcher = (self._context._exp_conf or {}).get("searcher") or {}
        if policy == "best" and not searcher.get("metric"):
            return "all"  # no metric is configured
        return policy


def _local_length(plan: TrainingPlan) -> TrainUnit:
    if plan.test_mode:
        return Batch(1)
    if plan.max_length is None:
        raise ValueError(
            "max_length must be defined in local training mode."
            " Set the length: fit(max_length=pytorch.Epoch(10)), for example"
        )
    return plan.max_length


def _max_time(searcher: Mapping[str, Any]) -> TrainUnit | None:
    """The longest that a search by `time_metric` lets a trial train."""
    kinds = {"batches": Batch, "epochs": Epoch}
    metric, most = searcher.get("time_metric"), searcher.get("max_time")
    return None if metric not in kinds or most is None else kinds[metric](int(most))


def describe(plan: TrainingPlan, *, searches: bool = False) -> str:
    """The plan in one line, for the log."""
    most = f", {plan.max_length} at most" if plan.max_length is not None else ""
    parts = [
        f"train as far as the search asks{most}" if searches else f"train to {plan.max_length}"
    ]
    for what, unit in (
        ("report", plan.schedule.reporting),
        ("validate", plan.schedule.validation),
        ("save", plan.schedule.checkpoint),
    ):
        if unit == NEVER:
            parts.append(f"{what} at the end")
        else:
            parts.append(f"{what} {'every' if isinstance(unit.value, int) else 'after'} {unit}")
    after = {"all": " and after every validation", "best": " and after the best validations"}
    parts[-1] += after.get(plan.policy, "")
    return "; ".join(parts)
