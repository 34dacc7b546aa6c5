"""The callback through which Hugging Face's Trainer reports, saves, stops and goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from detslurm.core import Unit
from detslurm.frameworks.checkpoints import FrameworkCheckpoints
from detslurm.frameworks.goal import Goal
from detslurm.frameworks.half_written import half_written_warning
from detslurm.frameworks.reports import Reports
from detslurm.transformers._loading import Loading

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from detslurm.core import Context

logger = logging.getLogger("detslurm.transformers")

_DURATION = "_runtime"


class DetCallback(TrainerCallback):  # type: ignore[misc]
    """Connect Hugging Face's Trainer with the trial that it runs in.

    Values that the Trainer logs become metrics: of evaluations in the group "validation" (where the
    searcher's metric is looked for, such as "eval_loss"), all else in "training". Each checkpoint
    that it saves is stored with the trial. When the trial is to leave, be it for a preemption, the
    time limit, its user or the search, the Trainer saves a checkpoint at the end of the step and
    stops; an evaluation that is due there follows, and a checkpoint of what it found; during an
    evaluation, it saves at its end. Where the search has operations, training goes on from one to
    the next, and an evaluation and a checkpoint are made at the end of each.

    Args:
        core_context: The result of `detslurm.core.init()`.
        args: The Trainer's arguments. Where the trial goes on from a checkpoint, their
            `resume_from_checkpoint` becomes its directory: pass it to `trainer.train()`.
        filter_metrics: The names of the metrics to report; by default all.
        user_data: Kept in the metadata of each checkpoint, under "user_data"; nothing by default.

    Raises:
        ValueError: If `args.enable_jit_checkpoint` is set: it handles SIGTERM, too, and both would
            save at the same moment.

    Example:
        import detslurm as det
        from detslurm.transformers import DetCallback

        with det.core.init() as core:
            args = TrainingArguments(output_dir="output", save_strategy="epoch")
            trainer = Trainer(model, args, train_dataset=data)
            trainer.add_callback(DetCallback(core, args))
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    """

    def __init__(
        self,
        core_context: Context,
        args: TrainingArguments,
        filter_metrics: Sequence[str] | None = None,
        user_data: Mapping[str, Any] | None = None,
    ) -> None:
        if getattr(args, "enable_jit_checkpoint", False):
            raise ValueError(
                "enable_jit_checkpoint saves at SIGTERM by itself, beside DetCallback, which does"
                " so when the trial is to leave: set it to False"
            )
        self._core = core_context
        self._is_chief = core_context.distributed.rank == 0
        self._reports = Reports(core_context.train, filter_metrics, logger)
        self._goal = Goal.of(core_context)
        self._is_training = False
        self._forget()
        self._save_strategy: Any = None  # the Trainer's, while another is in its place
        self._checkpoints = FrameworkCheckpoints(core_context, user_data, logger)
        self._resumes = self._checkpoints.resumed is not None
        self._loading: Loading | None = None
        if self._checkpoints.other_hparams is not None:
            if args.deepspeed:
                self._warn_of_options()
            else:
                self._loading = Loading()
                core_context._cleanup.callback(self._loading.close)
        if self._resumes:
            args.resume_from_checkpoint = str(self._checkpoints.resumed)
        self._warn_of_half_written(args)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Make sure that training goes on where the trial has been.

        Raises:
            RuntimeError: If the trial has a checkpoint, and training would begin from the start.
            ValueError: If training would end before the length that the search wants.
        """
        self._core.train._training_begins()
        if self._resumes and not state.global_step:
            raise RuntimeError(
                "this trial goes on from a checkpoint, but training would start again from the"
                " beginning: call trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)"
            )
        self._resumes = False
        if self._loading is not None:
            if not self._loading.end(more.get("optimizer"), more.get("lr_scheduler")):
                self._warn_of_options()
            self._loading = None
        self._forget()
        self._is_training = True
        if self._goal is not None:
            self._check_goal(args, state)
            control.should_training_stop |= self._goal.is_over

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Report the evaluation that has just ended."""
        self._give_strategy_back(args)
        self._reports.flush()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Save and stop where the trial is to leave; evaluate and save where the search waits."""
        if self._leaves(args, control):  # evaluating may take longer than there is time for
            self._owes_evaluation, control.should_evaluate = control.should_evaluate, False
        if self._goal is not None and self._goal.is_reached(self._position(args, state)):
            control.should_evaluate = control.should_save = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Do nothing again that the end of the step has done: where the trial leaves within an
        epoch, the Trainer comes here, too."""
        step = state.global_step
        leaves_within = self._left and bool((state.epoch or 0.0) % 1)
        due = self._owes_evaluation or (control.should_evaluate and not leaves_within)
        control.should_evaluate = due and self._evaluated_at != step
        control.should_log &= not leaves_within
        if self._left and control.should_evaluate:  # the checkpoint doesn't know of it yet
            control.should_save = True
        else:
            control.should_save &= self._saved_at != step

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """An evaluation can't be left; the checkpoint follows it."""
        if self._is_training:
            self._leaves(args, control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Report training metrics, and how far training is."""
        if not self._is_chief:
            return
        if logs and _prefix(logs) in (None, "train"):  # evaluations come with all of their metrics
            self._reports.report("training", state.global_step, logs)
        if self._goal is not None:
            self._goal.report_progress(self._position(args, state))
        elif state.max_steps > 0:
            self._core.train.report_progress(min(state.global_step / state.max_steps, 1.0))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Keep the metrics until all data sets are evaluated; those with another prefix than "eval"
        are a group of their own."""
        self._evaluated_at = state.global_step
        # After it the Trainer would decide anew: only the best are saved.
        if self._is_training and control.should_save and args.save_strategy == "best":
            self._save_strategy = args.save_strategy
            args.save_strategy = type(args.save_strategy).STEPS
        if not self._is_chief or metrics is None:
            return
        prefix = _prefix(metrics) or "eval"
        if prefix != "eval" and not prefix.startswith("eval_"):
            self._reports.report(prefix.replace(".", "_"), state.global_step, metrics)
            return
        self._reports.evaluated(state.global_step, metrics)
        if not self._is_training:  # then nothing follows that would report it
            self._reports.flush()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Report to the search, and store the checkpoint with the trial.

        Raises:
            RuntimeError: If the search waits for a metric that the evaluation did not give.
            ValueError: If training would end before the next length that the search wants.
        """
        self._give_strategy_back(args)
        self._reports.flush()
        if self._goal is not None and self._goal.is_reached(self._position(args, state)):
            self._goal.complete(self._reports.validation)
            self._check_goal(args, state)
            control.should_training_stop |= self._goal.is_over
        self._saved_at = state.global_step
        self._core.distributed.allgather(None)  # every rank has written its part
        if self._is_chief:
            self._core.checkpoint.upload(
                Path(args.output_dir, f"checkpoint-{state.global_step}"),
                self._checkpoints.metadata(state.global_step),
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Report the rest."""
        self._reports.flush()
        self._is_training = False
        self._checkpoints.close()

    def _warn_of_half_written(self, args: TrainingArguments) -> None:
        """Now, because a script that chooses such a checkpoint fails before training begins."""
        if self._is_chief and args.output_dir:
            resumed = self._checkpoints.resumed
            known = None if resumed is None else str(resumed)
            warning = half_written_warning(Path(args.output_dir), known)
            if warning is not None:
                logger.warning("%s", warning)

    def _warn_of_options(self) -> None:
        if self._is_chief:
            logger.warning(
                "this trial goes on from a checkpoint of trial %s, which had other hyperparameters:"
                " the optimizer is loaded with the learning rate and other options of that one,"
                " unless your code sets those of this trial when training has begun",
                self._checkpoints.other_hparams,
            )

    def _give_strategy_back(self, args: TrainingArguments) -> None:
        if self._save_strategy is not None:
            args.save_strategy, self._save_strategy = self._save_strategy, None

    def _forget(self) -> None:
        """Begin with a training's steps. At its beginning nothing is to be saved or evaluated."""
        self._evaluated_at = self._saved_at = 0
        self._left = False
        self._owes_evaluation = False  # of the step with which the trial leaves

    def _leaves(self, args: TrainingArguments, control: TrainerControl) -> bool:
        """Whether the trial is to leave: then the Trainer saves all there is, and stops."""
        self._left = self._core.preempt.should_preempt()
        if self._left:
            args.save_only_model = False
            control.should_save = control.should_training_stop = True
        return self._left

    def _check_goal(self, args: TrainingArguments, state: TrainerState) -> None:
        assert self._goal is not None
        end = self._counted(args, state.max_steps, float(state.num_train_epochs))
        self._goal.check(end, "the Trainer", "max_steps or num_train_epochs in its arguments")

    def _position(self, args: TrainingArguments, state: TrainerState) -> float:
        return self._counted(args, state.global_step, state.epoch or 0.0)

    def _counted(self, args: TrainingArguments, steps: int, epochs: float) -> float:
        """That many steps and epochs in the unit of the search."""
        assert self._goal is not None
        if self._goal.unit is Unit.EPOCHS:
            return epochs
        if self._goal.unit is Unit.RECORDS:
            ranks = args.world_size * args.gradient_accumulation_steps
            return float(steps * args.train_batch_size * ranks)
        return float(steps)


def _prefix(metrics: Mapping[str, Any]) -> str | None:
    """The prefix of the metrics of an evaluation, or of a training that is over: these alone come
    with their duration."""
    durations = (name for name in metrics if name.endswith(_DURATION))
    return next((name.removesuffix(_DURATION) for name in durations), None)
