"""submitit's parameters become a configuration, and what submitit refuses is refused."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detslurm.config import load_experiment
from detslurm.sdk.functions.executor import Executor, check_names, configured
from detslurm.sdk.functions.job import FunctionJob, SharedPoller
from detslurm.sdk.functions.packing import calls_config, name_of, training_config
from tests.sdk.scenes import Scene

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"timeout_min": 90}, {"slurm": {"time": "0-01:30:00"}}),
    ({"timeout_min": 90, "slurm_time": "2:00:00"}, {"slurm": {"time": "0-02:00:00"}}),
    ({"slurm_partition": "dev"}, {"resources": {"resource_pool": "dev"}}),
    ({"cpus_per_task": 4}, {"resources": {"slots_per_trial": 4}, "slurm": {"slot_type": "cpu"}}),
    (
        {"gpus_per_node": 2, "cpus_per_task": 8},
        {
            "resources": {"slots_per_trial": 2},
            "slurm": {"slot_type": "cuda", "sbatch_args": ["--cpus-per-task=8"]},
        },
    ),
    ({"mem_gb": 1.5}, {"slurm": {"sbatch_args": ["--mem=1536M"]}}),
    ({"mem_gb": 1, "slurm_mem": "3G"}, {"slurm": {"sbatch_args": ["--mem=3G"]}}),
    ({"slurm_array_parallelism": 3, "cpus_per_task": 2}, {"resources": {"max_slots": 6}}),
    ({"slurm_account": "a", "slurm_qos": "q"}, {"slurm": {"account": "a", "qos": "q"}}),
    ({"slurm_setup": ["module load x"]}, {"slurm": {"setup": ["module load x"]}}),
    ({"slurm_signal_delay_s": 60}, {"slurm": {"signal_lead": 60}}),
    (
        {
            "slurm_exclude": "n1",
            "slurm_exclusive": True,
            "slurm_additional_parameters": {"nice": 5},
        },
        {"slurm": {"sbatch_args": ["--exclude=n1", "--exclusive", "--nice=5"]}},
    ),
    ({"detslurm_max_restarts": 1}, {"max_restarts": 1}),
    ({"detslurm_config": {"labels": ["a"], "slurm": {"qos": "q"}}}, {"slurm": {"qos": "q"}}),
    ({"local_setup": ["x"], "stderr_to_stdout": True, "slurm_use_srun": False}, {}),
]


@pytest.mark.parametrize(("parameters", "expected"), CASES)
def test_parameters_become_a_configuration(
    parameters: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A valid one, with each parameter where it belongs."""
    check_names(parameters)
    found = load_experiment(configured(calls_config(2, "test"), parameters)).config.to_dict()
    for section, values in expected.items():
        if not isinstance(values, dict):
            assert found[section] == values
            continue
        got = {key: found[section][key] for key in values}
        assert {k: list(v) if isinstance(v, (tuple, list)) else v for k, v in got.items()} == values


@pytest.mark.parametrize("there", ["nothing", "link", "file", "folder"])
def test_the_link_to_an_experiment_takes_nobody_elses_name(
    scene: Scene, tmp_path: Path, there: str
) -> None:
    """A link of another store gives way; other tools' files of that name stay, with a warning."""
    folder = tmp_path / "runs"
    name = folder / str(scene.experiment().id)
    folder.mkdir()
    match there:
        case "link":
            name.symlink_to(tmp_path / "elsewhere")
        case "file":
            name.write_text("data")
        case "folder":
            name.mkdir()
    executor = Executor(folder, root=scene.root)
    experiment = scene.client.experiment(int(name.name))
    if there in ("file", "folder"):
        with pytest.warns(UserWarning, match="was there before"):
            executor._link(experiment)
        assert not name.is_symlink() and name.exists()
    else:
        executor._link(experiment)
        assert name.readlink() == experiment.path


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"time_min": 3}, NameError, "time_min"),
    ({"slurm_colour": 3}, NameError, "slurm_colour"),
    ({"timeout_min": "long"}, TypeError, "timeout_min"),
    ({"tasks_per_node": 2}, ValueError, "one task"),
    ({"nodes": 2}, ValueError, "one task"),
]


@pytest.mark.parametrize(("parameters", "error", "names"), WRONG)
def test_wrong_parameters_are_refused(
    parameters: dict[str, Any], error: type[Exception], names: str
) -> None:
    """By name."""
    with pytest.raises(error, match=names):
        check_names(parameters)
        configured(calls_config(1, "test"), parameters)


def test_functions_that_would_not_train_are_refused() -> None:
    """Their trials would be completed, with nothing done; or fail in a job, for their arguments."""

    async def awaits(core: object) -> None: ...

    def generates(core: object) -> Iterator[int]:
        yield 1

    for function in (awaits, generates, functools.partial(awaits)):
        with pytest.raises(TypeError, match="does nothing when it is called"):
            training_config(function, {})
    for takes_others in (lambda: None, lambda core, other: None):
        with pytest.raises(TypeError, match="with one argument, the Core API's context"):
            training_config(takes_others, {})
    for good in (lambda core: None, lambda *all_of_it: None, functools.partial(print, "a"), print):
        assert training_config(good, {})["entrypoint"]


def test_experiments_are_named_for_their_function() -> None:
    """Partial functions and callable objects, too."""
    assert name_of(functools.partial(functools.partial(test_wrong_parameters_are_refused))) == (
        "test_wrong_parameters_are_refused"
    )
    assert name_of(3) == "int"


def test_what_a_call_printed_has_its_blank_lines(tmp_path: Path) -> None:
    """And nothing of what a log has before each line."""
    scene = Scene(tmp_path / "store")
    scene.run(scene.experiment(), end="completed", log=["0: first", "0: ", "0: a || b"])
    trial = scene.client.trial(1)
    job = FunctionJob(tmp_path, SharedPoller(trial.experiment), trial)
    assert job.stdout() == job.stderr() == "first\n\na || b\n"
