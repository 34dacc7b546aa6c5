"""The Core API without a `with` block, as Determined's detached mode has it.

Inside a job the same script is the job's trial, and its own experiment has no effect.
Open contexts are closed when Python ends.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

from detslurm._base.info import ClusterInfo, TrialInfo
from detslurm.core import Context, DistributedContext, PreemptMode, TensorboardMode
from detslurm.core._context import init_with_info
from detslurm.core._unmanaged_info import UnmanagedInfo
from detslurm.store import Store
from detslurm.store.run_records import StartRecord

_PARTS = ("checkpoint", "distributed", "info", "preempt", "profiler", "searcher", "train")

_context: Context | None = None


class Config(UnmanagedInfo):
    """A script's description of itself outside of jobs.

    A later script with the same external ids records another run of the same trial, and finds its
    latest checkpoint in `core_v2.info`.

    Args:
        name: The experiment's name; by default the script's.
        hparams: The hyperparameters; none by default.
        data: The value of `info.user_data`; nothing by default.
        description: A longer text; none by default.
        labels: The experiment's labels; none by default.
        workspace: The workspace of a new experiment; by default it is in none.
        project: The project in that workspace; by default it is in none.
        checkpoint_storage: As for `core.init()`; by default the store.
        searcher: A mapping of which `metric` and `smaller_is_better` count; empty by default.
        external_experiment_id: The user's own name for the experiment; by default each script
            makes an experiment.
        external_trial_id: The user's own name for the trial; by default each script adds a trial.
    """


# The older names of its halves: what the experiment is, and where it belongs.
DefaultConfig = Config
UnmanagedConfig = Config


def init_context(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    client: object = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Make a context to use in a `with` block.

    Args:
        config: The configuration outside of jobs; by default `Config()`.
        defaults: The same, but for the external ids; None by default.
        unmanaged: The external ids, and the workspace and project; None by default.
        client: Has no effect; None by default.
        distributed: As for `core.init()`; by default this process is the only rank.
        checkpoint_storage: As for `core.init()`; by default that of `config`.
        preempt_mode: As for `core.init()`, with the same default.
        tensorboard_mode: As for `core.init()`, with the same default.

    Raises:
        ValueError: If a trial is named without an experiment, if `config` comes beside `defaults`
            or `unmanaged`, or as `core.init()`.
    """
    if config is not None and (defaults or unmanaged):
        raise ValueError("config replaces defaults and unmanaged: give one or the others")
    wanted, names = config or defaults or Config(), config or unmanaged or Config()
    if names.external_trial_id is not None and names.external_experiment_id is None:
        raise ValueError("external_trial_id needs external_experiment_id beside it")
    unmanaged_info = replace(
        wanted,
        workspace=wanted.workspace or names.workspace,
        project=wanted.project or names.project,
        external_experiment_id=names.external_experiment_id,
        external_trial_id=names.external_trial_id,
    )
    context = init_with_info(
        unmanaged_info,
        distributed=distributed,
        checkpoint_storage=checkpoint_storage or wanted.checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )
    # Only the chief records a script; every rank needs to know of it, the checkpoint above all.
    run = context.distributed.broadcast(context._run)
    if context.info is None and run is not None:
        context.info = _info(run, unmanaged_info)
    return context


def init(**arguments: Any) -> None:
    """Begin; an earlier run is closed first.

    From now on this module has `train`, `checkpoint`, `preempt`, `searcher`, `profiler`,
    `distributed` and `info`.

    Args:
        **arguments: As for `init_context`.

    Example:
        from detslurm.experimental import core_v2

        core_v2.init(config=core_v2.Config(name="mine", hparams={"lr": 0.1}))
        core_v2.train.report_training_metrics(steps_completed=1, metrics={"loss": 0.5})
        core_v2.close()
    """
    global _context
    close()
    context = init_context(**arguments)
    context.start()
    _context = context


def close() -> None:
    """End what `init()` began; nothing happens where nothing was begun."""
    global _context
    context, _context = _context, None
    if context is not None:
        context.close()


def url_reverse_webui_exp_view() -> str:
    """Where the experiment is: its folder in the store, for there is no web interface.

    Returns:
        The folder as a `file://` URL.

    Raises:
        RuntimeError: If the run is not recorded, or none has begun.
    """
    info = __getattr__("info")
    if info is None:
        raise RuntimeError("this run is not recorded")
    return f"{info.master_url}/experiments/{info.trial.experiment_id}"


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _context is None:
        raise RuntimeError(f"core_v2.{name} is there between core_v2.init() and core_v2.close()")
    return getattr(_context, name)


def _info(run: StartRecord, unmanaged_info: UnmanagedInfo) -> ClusterInfo:
    """The facts of the trial that a job would have."""
    trial = TrialInfo(
        trial_id=run.trial,
        experiment_id=run.experiment,
        trial_seed=run.seed,
        hparams=dict(unmanaged_info.hparams or {}),
        config={
            "data": dict(unmanaged_info.data or {}),
            "hyperparameters": unmanaged_info._config().get("hyperparameters", {}),
        },
        steps_completed=run.resumed.steps,
        trial_run_id=run.run,
    )
    task = f"{trial.experiment_id}.{trial.trial_id}"
    return ClusterInfo(
        master_url=f"file://{Store.open().path}",
        cluster_id="none",
        agent_id=socket.gethostname(),
        slot_ids=[],
        task_id=task,
        allocation_id=f"{task}.{run.run}",
        session_token="",
        task_type="TRIAL",
        latest_checkpoint=run.resumed.uuid,
        trial_info=trial,
    )
