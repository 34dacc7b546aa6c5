"""The Trainer: what to train, how long, and what to do how often."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from detslurm._info import ClusterInfo, get_cluster_info
from detslurm.core._searcher import configured_unit
from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._loop import TrainingLoop
from detslurm.pytorch._plan import Plan, Policy, configured_length
from detslurm.pytorch._schedule import Schedule
from detslurm.pytorch._trial import PyTorchTrial, evaluates_batches
from detslurm.pytorch._units import NEVER, Batch, Epoch, TrainUnit, length, period

logger = logging.getLogger("detslurm.pytorch")

_POLICIES = ("best", "all", "none")
_OWN_LENGTHS = ("pbt", "custom")
"""Searchers that say as they go how far a trial trains, without a `max_length`."""


class Trainer:
    """Trains a `PyTorchTrial`; made and used inside `pytorch.init()`."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        if not isinstance(trial, PyTorchTrial):
            raise TypeError(
                "Trainer() takes a PyTorchTrial and its context, such as Trainer(MyTrial(context),"
                f" context), not {trial!r}"
            )
        self._trial = trial
        self._context = context
        self._profile = False

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Deprecated: use `fit(profiling_enabled=True)`. Only `enabled` has an effect."""
        logger.warning(
            "configure_profiler() is deprecated: use fit(profiling_enabled=True). The node is"
            " measured during all of the training; context.set_profiler() looks into single batches"
        )
        self._profile = enabled

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
        """Train, validate, save, report; returns when done, or when the trial has to leave.

        Periods of None mean never. `max_length` is needed outside of jobs; in a job the search's
        `max_length` counts if it has one. `checkpoint_policy` says which validations are followed
        by a checkpoint: `best` (better than all before in the experiment), `all` or `none`; there
        is always one at the end and when the trial has to leave. `latest_checkpoint` is what to go
        on from, `detslurm.get_cluster_info().latest_checkpoint` as a rule. `test_mode` trains and
        validates one batch. Raises `ValueError` and `TypeError` for arguments that make no sense,
        `RuntimeError` when called a second time in one `pytorch.init()`.
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
        plan = Plan(
            schedule=schedule,
            policy=checkpoint_policy,
            max_length=None if max_length is None else length(max_length),
            latest_checkpoint=latest_checkpoint,
            step_zero_validation=step_zero_validation,
            test_mode=test_mode,
        )
        if info is None:
            plan = replace(
                plan,
                max_length=_local_length(plan),
                policy=self._local_policy(plan.policy),
            )
        else:
            self._warn_of_unused(schedule, info, latest_checkpoint)
            plan = self.managed(plan)
        self.run(plan, profile=profiling_enabled)

    def run(self, plan: Plan, *, profile: bool = False) -> None:
        """Train by a complete plan."""
        self._check_trial()
        self._refuse_second_fit()
        if self._context.distributed.rank == 0:
            searcher = (self._context._exp_conf or {}).get("searcher") or {}
            alone = searcher.get("name") in (None, "single", "random", "grid")
            logger.info("%s", describe(plan, searches=plan.follows_search and not alone))
        if profile or self._profile:
            assert self._context._core is not None
            self._context._core._profile()
        TrainingLoop(self._trial, self._context, plan).run()

    def _check_trial(self) -> None:
        name = type(self._trial).__name__
        if not self._context.models:
            raise InvalidExperimentException(
                f"{name} has no model: pass each through context.wrap_model() in __init__"
            )
        if not self._context.optimizers:
            raise InvalidExperimentException(
                f"{name} has no optimizer: pass each through context.wrap_optimizer() in __init__"
            )
        evaluates_batches(self._trial)

    def _refuse_second_fit(self) -> None:
        if self._context._fitted:
            raise RuntimeError(
                "fit() was called before in this pytorch.init(), and a trial counts its batches"
                " once: train more in another pytorch.init(), with latest_checkpoint= the last one"
            )
        self._context._fitted = True

    def managed(self, plan: Plan) -> Plan:
        """The plan with the length that counts in a job. Raises `ValueError` for lack of one."""
        max_length, follows_search = self._managed_length(plan.max_length)
        return replace(plan, max_length=max_length, follows_search=follows_search)

    def _managed_length(self, given: TrainUnit | None) -> tuple[TrainUnit | None, bool]:
        """The length to train to in a job, and whether the search gives it."""
        searcher: Mapping[str, Any] = self._context.get_experiment_config().get("searcher") or {}
        if searcher.get("name") in _OWN_LENGTHS:
            if configured_unit(searcher) is None and given is None:
                raise ValueError(
                    "`fit(max_length=X)` must be set: nothing says what the search's lengths"
                    " count; or set searcher.unit to batches or epochs"
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

    def _local_policy(self, policy: Policy) -> Policy:
        searcher = (self._context._exp_conf or {}).get("searcher") or {}
        if policy == "best" and not searcher.get("metric"):
            return "all"  # nothing says by which metric
        return policy


def _local_length(plan: Plan) -> TrainUnit:
    if plan.test_mode:
        return Batch(1)
    if plan.max_length is None:
        raise ValueError(
            "max_length must be defined in local training mode."
            " Say how far: fit(max_length=pytorch.Epoch(10)), for example"
        )
    return plan.max_length


def _max_time(searcher: Mapping[str, Any]) -> TrainUnit | None:
    """The longest that a search by `time_metric` lets a trial train."""
    kinds = {"batches": Batch, "epochs": Epoch}
    metric, most = searcher.get("time_metric"), searcher.get("max_time")
    return None if metric not in kinds or most is None else kinds[metric](int(most))


def describe(plan: Plan, *, searches: bool = False) -> str:
    """The plan in one line, for the log."""
    most = f", {plan.max_length} at most" if plan.max_length is not None else ""
    parts = [
        f"train as far as the search says{most}" if searches else f"train to {plan.max_length}"
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
