"""The training loop: batches, and the work between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from detslurm._base.quantities import counted
from detslurm.core import Context, EarlyExitReason
from detslurm.core._collective import run_collectively
from detslurm.core._retries import keep_trying
from detslurm.core._unmanaged_job import in_own_script
from detslurm.errors import InvalidHP
from detslurm.pytorch._averages import MetricsWindow, Partial, averages, on_host, partial
from detslurm.pytorch._base_context import TrialContext
from detslurm.pytorch._base_trial import BaseTrial, evaluates_batches
from detslurm.pytorch._driver import Driver
from detslurm.pytorch._hooks import Hooks, hook
from detslurm.pytorch._loaders import (
    ENDLESS,
    checked,
    seed_of,
    training_batches,
    validation_batches,
)
from detslurm.pytorch._plan import Measures, TrainingPlan, TrainingTarget, training_targets
from detslurm.pytorch._profiling import BatchProfiler, ProfiledBatches
from detslurm.pytorch._reducer import Phase
from detslurm.pytorch._schedule import Due
from detslurm.pytorch._state import TrialState
from detslurm.pytorch._stopping import Stop, Stopper
from detslurm.pytorch._training_log import TrainingLog, format_metrics
from detslurm.pytorch._validation import Validation
from detslurm.pytorch.checkpointing import _checkpoint_dir as files
from detslurm.pytorch.checkpointing._checkpoint_policy import CheckpointPolicy
from detslurm.pytorch.checkpointing._writing import opened

logger = logging.getLogger("detslurm.pytorch")


class TrainingLoop:
    """Trains one trial by a plan, from its checkpoint if it has any."""

    def __init__(
        self,
        trial: BaseTrial,
        context: TrialContext,
        plan: TrainingPlan,
        driver: Driver,
        profiled: ProfiledBatches | None = None,
    ) -> None:
        assert context._core is not None
        self._profiler = None if profiled is None else BatchProfiler(context._core, profiled)
        self._trial, self._context, self._plan, self._driver = trial, context, plan, driver
        self._core: Context = context._core
        self._dist = context.distributed
        self._is_chief = self._dist.rank == 0
        self._state = TrialState()
        self._window = MetricsWindow()
        self._saving = self._own_options = self._requested_by_a_rank = False
        self._target_batches = 0
        self._schedule = replace(plan.schedule, each_epoch=driver.windows_end_with_epochs)
        self._batches: Generator[Any] | None = None
        self._log = TrainingLog(trial, driver.shard.size)

    def run(self) -> None:
        """Train until the plan is fulfilled, or until the trial has to leave."""
        self._hooks = Hooks(self._trial.build_callbacks())
        self._checkpoints = self._driver.checkpoints(
            self._core, self._hooks, is_trainer=self._plan.is_trainer
        )
        with ExitStack() as cleanup:
            cleanup.callback(self._drop_batches)
            self._set_up(cleanup)
            if self._context.profiler is not None:
                cleanup.enter_context(self._context.profiler)
            if self._profiler is not None:
                self._profiler.before(self._state.batches_trained)
            try:
                self._train()
            except InvalidHP:
                # Other ranks may not have raised: nothing can be asked of them.
                self._save_before_leaving(alone=self._dist.size > 1)
                raise

    def _drop_batches(self) -> None:
        # That ends a loader's workers. The frames of an exception would keep them until Python
        # exits and kills them, and torch would complain of that after the error itself.
        if self._batches is not None:
            self._batches.close()

    def _set_up(self, cleanup: ExitStack) -> None:
        plan, context = self._plan, self._context
        with opened(self._core, plan.latest_checkpoint) as path:
            if path is not None:
                self._state = self._continued(path)
            self._state.trial_id = context.get_trial_id() if context._managed else 0
            context._steps_completed = self._state.batches_trained
            for callback in self._hooks.callbacks.values():  # one fails: those before it shut down
                on_startup = hook(callback, "on_trial_startup")
                on_startup(self._state.batches_trained, plan.latest_checkpoint)
                cleanup.callback(callback.on_trial_shutdown)
            cleanup.callback(self._checkpoints.close)
            self._build_loaders()
            if path is not None:
                self._checkpoints.load(path, self._state, own_options=self._own_options)
                if self._state.stop_requested:  # and then the run was cut off
                    context.set_stop_requested(True)
            self._say_where(plan.latest_checkpoint)
        self._stopper = Stopper(self._dist, self._core.preempt, context.get_stop_requested)
        self._hooks.on_training_start()

    def _say_where(self, checkpoint: str | None) -> None:
        trained = f"; {self._state.batches_trained} are trained, by {checkpoint}"
        epoch = (
            counted(self._epoch_len, "batch", "batches")
            if self._epoch_len < ENDLESS
            else "without end"
        )
        self._log_info("an epoch is %s%s", epoch, trained if checkpoint else "")
        epochs = self._state.batches_trained // self._epoch_len
        if self._is_chief and 0 < self._state.epochs_trained != epochs:
            logger.warning(
                "epochs have another length now: the training so far counts as %d epochs, not %d",
                epochs,
                self._state.epochs_trained,
            )

    def _log_info(self, text: str, *args: Any) -> None:
        """In the log, once for all ranks."""
        if self._is_chief:
            logger.info(text, *args)

    def _continued(self, path: Any) -> TrialState:
        counters = keep_trying(lambda: files.read_counters(path))
        saved = TrialState.from_dict(counters, keep_trying(lambda: files.read_steps(path)))
        info = self._core.info if self._context._managed else None
        if info is None:
            return replace(saved, stop_requested=False)
        is_given = self._plan.latest_checkpoint == info.latest_checkpoint
        if is_given and not info.trial._steps_completed:
            return TrialState()  # a warm start: in another store a trial may have this one's id
        if info.trial.trial_id == saved.trial_id:
            # Another training in the same job decides anew, as does a trial that continues a trial
            # of another store, which may have had this one's id.
            is_own = is_given and not (info.trial.continues and info.trial._trial_run_id == 1)
            return saved if is_own else replace(saved, stop_requested=False)
        if info.trial.continues == saved.trial_id:  # of another experiment
            self._own_options = info.trial._hparams_changed
            # A trial that continues another trial has no checkpoint of its own yet.
            return replace(saved, last_ckpt=0, stop_requested=False)
        # From another trial's checkpoint it starts warm, unless the search has copied that trial.
        is_copy = 0 < saved.batches_trained == info.trial._steps_completed
        self._own_options = is_copy
        if is_copy:
            return replace(saved, searcher_metric=None, stop_requested=False)
        return TrialState()

    def _build_loaders(self) -> None:
        driver, shard, state = self._driver, self._driver.shard, self._state
        training = self._checked("build_training_data_loader") if shard.reads else None
        seed = seed_of(training, self._dist)
        if state.data_seed is None:
            state.data_seed = seed
        sharded = evaluates_batches(self._trial)
        validation = None
        if shard.reads if sharded else self._is_chief:
            loader = self._checked("build_validation_data_loader")
            validation = validation_batches(loader, shard, sharded=sharded, seed=state.data_seed)
        length = None
        if training is not None:
            done = state.batches_trained * driver.loader_batches
            batches, length = training_batches(training, shard, done, state.data_seed)
            self._batches = self._log.counted(batches)
        self._epoch_len = driver.epoch_len(self._dist.allgather(length))
        if self._epoch_len == 0:
            raise ValueError(
                "the training data is empty: build_training_data_loader() has no batches"
            )
        self._context._epoch_len = self._epoch_len
        at_most = 1 if self._plan.test_mode else None
        self._validation = Validation(
            self._trial,
            self._dist,
            self._hooks,
            self._context._reducers,
            driver.evaluator(validation, at_most),
            reports=driver.reports,
        )
        self._policy = self._make_policy()

    def _checked(self, method: str) -> Any:
        loader = getattr(self._trial, method)()
        context, call = self._context, self._driver.loader_checks_off
        return checked(loader, method, context._reproducible, call)

    def _make_policy(self) -> CheckpointPolicy:
        context, plan = self._context, self._plan
        alone = not context._managed or in_own_script()
        best = None if alone else self._core.train.get_experiment_best_validation
        searcher = (context._exp_conf or {}).get("searcher") or {}
        return CheckpointPolicy(plan.policy, searcher, best, needed=plan.follows_search)

    # Training

    def _train(self) -> None:
        sizes = self._context._batch_sizes
        measures = Measures(self._epoch_len, sizes[0] if sizes else None)
        searcher = self._core.searcher if self._plan.follows_search else None
        for target in training_targets(self._plan, searcher, measures):
            stop = self._train_to(target)
            if stop is Stop.PREEMPTED:
                return
            if stop is Stop.REQUESTED and self._state.batches_trained < target.batches:
                # The search may want more than was trained: it is informed that there is no more.
                self._core.train.report_early_exit(EarlyExitReason.USER_REQUESTED_STOP)
                return
            if target.operation is not None and self._is_chief:
                target.operation.report_completed(self._state.searcher_metric)
            if stop is Stop.REQUESTED:
                return

    def _train_to(self, target: TrainingTarget) -> Stop:
        state, self._target_batches = self._state, target.batches
        self._core.train._training_begins()
        stop = self._before_training()
        if 0 < target.batches <= state.batches_trained:
            self._log_info(
                "nothing is left to train: the length is %d batches, and %d are trained",
                target.batches,
                state.batches_trained,
            )
        while stop is Stop.NO and state.batches_trained < target.batches:
            due = self._train_window(target)
            requested_on_any_rank = self._report_training(target)
            stop = self._stopper.agreed(state.batches_trained, requested_on_any_rank)
            if stop is Stop.PREEMPTED:
                break  # there may be time to save only: the next run does what else is due
            if Due.VALIDATE in due:
                self._validate()
            if Due.CHECKPOINT in due and not state.saved_here:
                self._save()
            else:
                self._checkpoints.check()
            self._after_window(target)
            stop = self._stopper.agreed(state.batches_trained, requested_on_any_rank)
        if stop is not Stop.NO:
            who = "asked from outside" if stop is Stop.PREEMPTED else "at the trial's own request"
            self._log_info("leaving after batch %d, %s", state.batches_trained, who)
        if stop is Stop.PREEMPTED:
            self._save_before_leaving()
            self._checkpoints.wait()
            return stop
        if not state.validated_here or (target.operation and state.searcher_metric is None):
            self._validate()
        self._save_before_leaving()
        self._checkpoints.wait()
        return stop

    def _before_training(self) -> Stop:
        """The work before the next batch: a first or an interrupted validation."""
        state, plan = self._state, self._plan
        if state.batches_trained == 0:
            if plan.step_zero_validation:
                self._validate()
        elif not state.validated_here and Due.VALIDATE in self._due(0):
            self._validate()
        return self._stopper.agreed(state.batches_trained)

    def _due(self, target_batches: int) -> Due:
        return self._schedule.due(self._state.batches_trained, self._epoch_len, target_batches)

    def _train_window(self, target: TrainingTarget) -> Due:
        """Train until something is due or the trial has to leave."""
        self._driver.begin_training()
        self._context._reducers.reset()
        self._window = MetricsWindow()
        self._log.begin()
        state, stopper = self._state, self._stopper
        quiet_until = self._quiet_until(target)
        while True:
            self._train_batch()
            if state.batches_trained >= quiet_until:
                due = self._due(target.batches)
                if due is not Due.NOTHING:
                    return due
                quiet_until = self._quiet_until(target)
            if stopper.after_batch(state.batches_trained) is not Stop.NO:
                return Due.NOTHING

    def _quiet_until(self, target: TrainingTarget) -> int:
        done = self._state.batches_trained
        return self._schedule.quiet_until(done, self._epoch_len, target.batches)

    def _train_batch(self) -> None:
        context, state = self._context, self._state
        batch_idx = state.batches_trained
        epoch_idx, in_epoch = divmod(batch_idx, self._epoch_len)
        context._begin_batch(batch_idx)
        if in_epoch == 0:
            self._hooks.on_training_epoch_start(epoch_idx)
        result = self._driver.train_batch(self._batches, epoch_idx, batch_idx)
        self._log.batches += 1
        if self._driver.reports:
            self._window.add(result)
        if context.profiler is not None:
            context.profiler.step()
        state.batches_trained = batch_idx + 1
        if self._profiler is not None:
            self._profiler.before(batch_idx + 1)
        if in_epoch == self._epoch_len - 1:
            state.epochs_trained = epoch_idx + 1
            self._hooks.on_training_epoch_end(epoch_idx)

    # Between windows

    def _report_training(self, target: TrainingTarget) -> bool:
        """Report averages over batches and ranks; whether any rank asked to stop."""
        self._driver.reporting(self._state.batches_trained, target.batches)
        batches = self._window.batches()
        reducers = self._context._reducers
        chief_only = not self._plan.average_training_metrics

        reports = self._driver.reports

        def part() -> tuple[Partial, list[Any] | None, bool]:
            own = partial(batches)
            contribution = reducers.contribution(Phase.TRAINING) if reports else None
            return own, contribution, self._context.get_stop_requested()

        def decide(
            parts: list[tuple[Partial, list[Any] | None, bool]],
        ) -> tuple[dict[str, Any], bool]:
            of_reporting = [(own, reduced) for own, reduced, _ in parts if reduced is not None]
            partials = [own for own, _ in (of_reporting[:1] if chief_only else of_reporting)]
            metrics = averages(partials)
            reduced = [contribution for _, contribution in of_reporting]
            metrics |= on_host(reducers.metrics(Phase.TRAINING, reduced))
            return metrics, any(part[2] for part in parts)

        metrics, requested_on_any_rank = run_collectively(self._dist, part, decide)
        with_time = self._with_time(metrics)
        if self._is_chief:
            step = self._state.batches_trained
            self._core.train.report_training_metrics(step, with_time, batches)
            epoch = f" (epoch {step / self._epoch_len:.1f})" if self._epoch_len < ENDLESS else ""
            self._log.log(f"batch {step} of {target.batches}{epoch}", metrics)
        self._hooks.on_training_workload_end(with_time, batches)
        return requested_on_any_rank

    def _with_time(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The metrics with what searches count time by."""
        batches = self._state.batches_trained
        return {"batches": batches, "epochs": batches // self._epoch_len} | metrics

    def _after_window(self, target: TrainingTarget) -> None:
        if not self._is_chief:
            return
        if target.batches:
            share = min(self._state.batches_trained / target.batches, 1.0)
            if target.operation is not None:
                target.operation.report_progress(share * target.operation.length)
            else:
                self._core.train.report_progress(share)
        if self._context._writer is not None:
            self._context._writer.flush()

    def _validate(self) -> None:
        state, begun = self._state, time.monotonic()
        metrics = self._validation.metrics()
        self._core.train._spent("validation", time.monotonic() - begun)
        state.last_val, state.validated = state.batches_trained, True
        metric = state.searcher_metric = self._policy.searcher_metric(metrics)
        is_better = run_collectively(
            self._dist,
            lambda: self._policy.is_to_be_saved(metric, state) if self._is_chief else False,
            lambda answers: answers[0],
        )
        self._log_info(
            "validation after batch %d: %s", state.batches_trained, format_metrics(metrics)
        )
        if self._is_chief:
            self._core.train.report_validation_metrics(
                state.batches_trained, self._with_time(metrics)
            )
        if is_better and state.batches_trained and not state.saved_here:
            self._save()

    def _is_to_stop(self, *, alone: bool) -> bool:
        """Whether the next run should not train either, the same on all ranks, which must all call,
        unless `alone`. At the full length it may: a search may promote the trial, and there was
        nothing left to stop."""
        own = self._context.get_stop_requested()
        self._requested_by_a_rank |= own if alone else any(self._dist.allgather(own))
        return self._requested_by_a_rank and self._state.batches_trained < self._target_batches

    def _save(self, *, leaving: bool = False, alone: bool = False) -> None:
        self._saving = True
        self._state.stop_requested = self._is_to_stop(alone=alone)
        begun = time.monotonic()
        self._checkpoints.save(self._state, leaving=leaving, alone=alone)
        if self._checkpoints._background is not None:  # else the checkpoint's record has it
            self._core.train._spent("save", time.monotonic() - begun)
        self._saving = False

    def _save_before_leaving(self, *, alone: bool = False) -> None:
        """A last checkpoint, unless it exists, or saving is what failed."""
        state = self._state
        if self._saving or state.batches_trained == 0:
            return
        if state.saved_here and state.stop_requested == self._is_to_stop(alone=alone):
            return
        self._save(leaving=True, alone=alone)
