"""An executor with submitit's interface, whose jobs are trials of experiments."""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission
from submitit.slurm.slurm import SlurmExecutor

from detslurm.sdk.client import Client
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.functions.job import FunctionJob, SharedPoller
from detslurm.sdk.functions.packing import calls_config, name_of, packed

_SHARED = {
    "name": str,
    "timeout_min": int,
    "mem_gb": (int, float),
    "nodes": int,
    "cpus_per_task": int,
    "gpus_per_node": int,
    "tasks_per_node": int,
    "stderr_to_stdout": bool,
}
_CLUSTERS = {"auto", "slurm", "local", "debug"}

# Parameters with a key of their own in a configuration; the others become options of sbatch.
_KEYS = {
    "slurm_account": "account",
    "slurm_qos": "qos",
    "slurm_constraint": "constraint",
    "slurm_setup": "setup",
    "slurm_signal_delay_s": "signal_lead",
}
_ELSEWHERE = {
    *_KEYS,
    *("slurm_partition", "slurm_time", "slurm_array_parallelism", "slurm_job_name"),
    *("slurm_additional_parameters", "slurm_ntasks_per_node", "slurm_gpus_per_node"),
    *("slurm_cpus_per_task", "slurm_nodes", "slurm_num_gpus", "slurm_gpus_per_task"),
}
_NO_EFFECT = {"slurm_use_srun", "slurm_stderr_to_stdout", "slurm_srun_args", "slurm_teardown"}


class Executor(submitit.Executor):  # type: ignore[misc]
    """submitit's `AutoExecutor`, whose functions are experiments of detslurm.

    `submit` makes an experiment of one trial, `map_array` and `batch()` one with a trial for each
    call. A function that raises is not called again.

    Args:
        folder: Gets a link to each experiment, which has the logs and the results.
        cluster: `slurm`, `local` (or `debug`): this machine; by default Slurm if it is set up.
        root: The directory of the store; by default the commands' store.
        context_dir: A directory whose files are copied beside the function; by default none.
            Modules are found where they are at the submission.
        **options: `slurm_python`, the Python of the jobs (by default that which runs this), and
            `slurm_max_num_timeout`; others that submitit takes have no effect.

    Raises:
        ValueError: If there is no such cluster.

    Example:
        from detslurm.sdk import Executor

        executor = Executor(folder="log_test", cluster="local")
        executor.update_parameters(timeout_min=5, cpus_per_task=2)
        job = executor.submit(sum, [1, 2])
        print(job.job_id, job.experiment.name)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        cluster: str | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        context_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        if (cluster or "auto") not in _CLUSTERS:
            raise ValueError(f"cluster is one of {', '.join(sorted(_CLUSTERS))}, not {cluster!r}")
        super().__init__(folder)
        self.cluster = "local" if cluster == "debug" else cluster or "auto"
        self.client = Client(root)
        self._context_dir = context_dir
        self._python = options.get("slurm_python")
        self._timeouts = int(options.get("slurm_max_num_timeout", 3))

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        given = {name: value for name, value in kwargs.items() if value is not None}
        check_names(given)
        self.parameters.update(given)

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[DelayedSubmission]
    ) -> list[FunctionJob]:
        for delayed in delayed_submissions:
            delayed.set_timeout(_minutes(self.parameters), self._timeouts)
        name = self.parameters.get("name") or name_of(delayed_submissions[0].function)
        base = calls_config(len(delayed_submissions), name, self._python)
        with packed(delayed_submissions) as functions:
            experiment = self.client.submit(
                configured(base, self.parameters),
                self._context_dir or functions.parent,
                includes=[functions] if self._context_dir else (),
                cluster=self.cluster,
            )
        self._link(experiment)
        poller = SharedPoller(experiment)
        return [FunctionJob(self.folder, poller, trial) for trial in experiment.trials()]

    def _link(self, experiment: Experiment) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        link = self.folder / str(experiment.id)
        if link.is_symlink():  # to an experiment of another store
            link.unlink()
        try:
            link.symlink_to(experiment.path)
        except FileExistsError:  # another user's: the jobs don't need the link
            warnings.warn(
                f"{link} was there before: the jobs are in {experiment.path}", stacklevel=2
            )


def check_names(given: Mapping[str, Any]) -> None:
    """Raise `NameError` or `TypeError` for what submitit would not take, either."""
    known = {f"slurm_{name}" for name in SlurmExecutor._valid_parameters()} | {"slurm_python"}
    own = {"detslurm_config", "detslurm_max_restarts"}
    wrong = [
        name
        for name in given
        if name not in known | own | _SHARED.keys() and not name.startswith(("local_", "debug_"))
    ]
    if wrong:
        valid = ", ".join(sorted(known | own | _SHARED.keys()))
        raise NameError(f"unknown parameters: {', '.join(wrong)}. There are {valid}")
    for name, kind in _SHARED.items():
        if name in given and not isinstance(given[name], kind):  # type: ignore[arg-type]
            raise TypeError(f"{name} is {given[name]!r}, which is no {kind}")


def configured(base: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of calls with submitit's parameters. Raises `ValueError` for many tasks."""
    own = {k: v for k, v in parameters.items() if not k.startswith(("local_", "debug_"))}
    tasks = _first(own, "slurm_nodes", "nodes", default=1) * _first(
        own, "slurm_ntasks_per_node", "tasks_per_node", default=1
    )
    if tasks != 1:
        raise ValueError(
            f"a job is one task here, not {tasks}: several processes are what the launchers of "
            "detslurm.launch start"
        )
    resources, slurm = _resources(own)
    slurm |= {key: own[name] for name, key in _KEYS.items() if name in own}
    slurm["sbatch_args"] = slurm["sbatch_args"] + _options(own)
    config = {**base, "slurm": {**base["slurm"], **slurm}, "resources": resources}
    if minutes := _first(own, "slurm_time", "timeout_min", default=None):
        config["slurm"]["time"] = minutes
    if "slurm_array_parallelism" in own:
        at_once = own["slurm_array_parallelism"]
        resources["max_slots"] = at_once * max(resources["slots_per_trial"], 1)
    if "detslurm_max_restarts" in own:
        config["max_restarts"] = own["detslurm_max_restarts"]
    return _merged(config, own.get("detslurm_config", {}))


def _resources(own: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    cpus = _first(own, "slurm_cpus_per_task", "cpus_per_task", default=1)
    names = ("slurm_gpus_per_node", "slurm_gpus_per_task", "slurm_num_gpus", "gpus_per_node")
    gpus = _first(own, *names, default=0)
    resources: dict[str, Any] = {"slots_per_trial": gpus or cpus, "is_single_node": True}
    if "slurm_partition" in own:
        resources["resource_pool"] = own["slurm_partition"]
    args = [f"--cpus-per-task={cpus}"] if gpus and cpus > 1 else []
    return resources, {"slot_type": "cuda" if gpus else "cpu", "sbatch_args": args}


def _options(own: Mapping[str, Any]) -> list[str]:
    found: dict[str, Any] = {}
    if "mem_gb" in own and "slurm_mem" not in own:
        found["mem"] = f"{math.ceil(own['mem_gb'] * 1024)}M"
    for name, value in own.items():
        if name.startswith("slurm_") and name not in _ELSEWHERE | _NO_EFFECT:
            found[name.removeprefix("slurm_").replace("_", "-")] = value
    more = own.get("slurm_additional_parameters", {}).items()
    found |= {name.replace("_", "-"): value for name, value in more}
    return [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in found.items()
        if value is not False
    ]


def _minutes(own: Mapping[str, Any]) -> int:
    given = _first(own, "slurm_time", "timeout_min", default=0)
    return given if isinstance(given, int) else 0


def _first(own: Mapping[str, Any], *names: str, default: Any) -> Any:
    return next(itertools.chain((own[name] for name in names if name in own), [default]))


def _merged(config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(config)
    for key, value in more.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found
