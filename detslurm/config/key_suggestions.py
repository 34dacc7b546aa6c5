"""Suggestions for an unknown key: a nearby spelling, or the section that it belongs to."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from msgspec import inspect as schema

from detslurm.config import describe
from detslurm.config.schema.experiment import FIT, ExperimentConfig

_FOREIGN = {  # names in other tools, and in sbatch itself
    "slot": "resources.slots_per_trial",
    "slots": "resources.slots_per_trial",
    "gpus": "resources.slots_per_trial",
    "num_gpus": "resources.slots_per_trial",
    "ngpus": "resources.slots_per_trial",
    "nodes": "resources.slots_per_trial and slurm.slots_per_node",
    "gpus_per_node": "slurm.slots_per_node",
    "partition": "resources.resource_pool",
    "queue": "resources.resource_pool",
    "walltime": "slurm.time",
    "time_limit": "slurm.time",
    "timelimit": "slurm.time",
    "job_name": "name",
    "command": "entrypoint",
    "cmd": "entrypoint",
    "script": "entrypoint",
    "env": "environment.environment_variables",
    "variables": "environment.environment_variables",
    "seed": "reproducibility.experiment_seed",
    "hparams": "hyperparameters",
    "params": "hyperparameters",
    "checkpoint_dir": "checkpoint_storage",
    "max_steps": "searcher.max_length",
    "max_epochs": "searcher.max_length",
    "max_iter": "searcher.max_length",
}


_SBATCH = """
    begin bb burst-buffer comment contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu
    cpus-per-task deadline delay-boot dependency distribution exclude exclusive export
    extra-node-info gpu-bind gpu-freq gres gres-flags hint hold licenses mail-type mail-user mem
    mem-bind mem-per-cpu mem-per-gpu mincpus network nice nodefile nodelist ntasks-per-core
    ntasks-per-gpu ntasks-per-socket overcommit oversubscribe power prefer priority profile
    reservation reboot sockets-per-node spread-job switches thread-spec threads-per-core time-min
    tmp tres-bind tres-per-task use-min-nodes wckey
"""
"""Options of sbatch that have no key of their own."""
_MEMORY = frozenset({"memory", "mem-gb", "ram", "memory-gb"})
_NEAR_SLURM = ("", "resources", "slurm")


def sbatch_hint(key: str, path: str) -> str:
    """The hint for a key that is one of sbatch's options; "" for others."""
    option = key.lower().replace("_", "-").lstrip("-")
    if path not in _NEAR_SLURM:
        return ""
    option = "mem" if option in _MEMORY else option
    return f'write slurm.sbatch_args: ["--{option}=..."]' if option in _SBATCH.split() else ""


def recommended(struct: schema.StructType) -> list[schema.Field]:
    """The fields of a section, less deprecated ones; those of a Trial class are current there."""
    return [field for field in struct.fields if (_advice(field) or FIT).startswith(FIT)]


def _advice(field: schema.Field) -> str:
    extra = isinstance(field.type, schema.Metadata) and field.type.extra
    return str((extra or {}).get("deprecated", ""))


def unknown_key_hint(key: str, known: list[str], path: str) -> str:
    """The hint for a user who wrote `key` at `path`, where only `known` keys are allowed."""
    if hint := describe.did_you_mean(key, known, 0.8) or sbatch_hint(key, path):
        return hint
    if path_elsewhere := _paths_by_key().get(key) or _FOREIGN.get(key.lower().replace("-", "_")):
        return f"did you mean {path_elsewhere}?"
    if hint := describe.did_you_mean(key, known):
        return hint
    if len(known) <= 12:
        return f"expected is {describe.one_of(sorted(known))}"
    return ""


@functools.cache
def _paths_by_key() -> dict[str, str]:
    """Every key of the schema that is found in one place only (or first there)."""
    paths: dict[str, str] = {}
    for path in config_keys():
        paths.setdefault(path.rpartition(".")[2], path)
    return paths


def config_keys() -> list[str]:
    """The paths of all keys of an experiment, sections included."""
    return list(_walk(describe.type_info(ExperimentConfig), ""))


def _walk(kind: schema.Type, path: str) -> Iterator[str]:
    level = [
        (f"{path}.{field.encode_name}" if path else field.encode_name, field)
        for member in describe.members(kind)
        if isinstance(member, schema.StructType)
        for field in recommended(member)
    ]
    yield from (below for below, _ in level)
    for below, field in level:
        yield from _walk(field.type, below)
