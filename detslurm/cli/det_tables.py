"""Options and commands of `det` that detslurm lacks or names otherwise, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Ignored(NamedTuple):
    """An option of `det` that is left out: why, and whether a value follows it."""

    why: str
    takes_value: bool = True


_NO_SERVER = "there is no server"


def _ignored(why: str, names: str, *, takes_value: bool = True) -> dict[str, Ignored]:
    return dict.fromkeys(names.split(), Ignored(why, takes_value))


GLOBAL: Mapping[str, Ignored] = {
    **_ignored("users are those of the cluster", "-u --user"),
    **_ignored(_NO_SERVER, "-m --master"),
}
_COMMON = {
    **_ignored("lists have no pages", "--limit --offset --pages"),
    **_ignored("lists have an order of their own, or --sort", "--sort-by --order-by"),
    **_ignored("a log holds all runs of the trial", "--allocation-id"),
}
_WORKSPACES = "-w --workspace --workspace-name"
_TASK = {
    **_COMMON,
    **_ignored("tasks are listed by their kind", f"{_WORKSPACES} -p --project-name"),
    **_ignored("it needs no code, and works where you are", "-c --context -i --include"),
    **_ignored("no browser is opened", "--no-browser", takes_value=False),
}
_FOLDER = {
    **_COMMON,
    **_ignored("jobs run as the user who submits", "--agent-uid --agent-gid"),
    **_ignored("jobs run as the user who submits", "--agent-user --agent-group"),
    **_ignored(
        "the configuration or the site profile sets it",
        "--checkpoint-storage-config --checkpoint-storage-config-file"
        " --default-compute-pool --default-aux-pool",
    ),
    **_ignored(_NO_SERVER, "--cluster-name"),
    **_ignored("a project has no description", "--description"),
}
IGNORED: Mapping[str, Mapping[str, Ignored]] = {
    "experiment": {
        **_COMMON,
        **_ignored("ports are open on the node", "-p --publish", takes_value=False),
    },
    "trial": _COMMON,
    "checkpoint": _ignored("files are copied from where they are", "--mode"),
    "cmd": _TASK,
    "shell": {
        **_TASK,
        **_ignored("sessions begin in your home directory", "-c --context -i --include"),
        **_ignored("the key of a shell has no passphrase", "--passphrase", takes_value=False),
        **_ignored(
            "`detslurm shell show-ssh-command ID` prints it",
            "--show-ssh-command",
            takes_value=False,
        ),
    },
    "notebook": _TASK,
    "tensorboard": _TASK,
    "job": _COMMON,
    "model": _COMMON,
    "workspace": _FOLDER,
    "project": _FOLDER,
    "template": _ignored("templates belong to the store", _WORKSPACES),
}
"""Options by group: they are left out of the commands that have no such option themselves."""
ADDED: Mapping[str, tuple[str, ...]] = {"tensorboard start": ("--in-job",)}
RENAMED: Mapping[str, Mapping[str, str]] = {"tensorboard start": {"--trial-ids": "--trial"}}
_VOLUME = dict.fromkeys(
    ("-v", "--volume"), "`bind_mounts` of the configuration mounts a directory in a container"
)
# Doing something else instead would be worse than nothing.
REFUSED: Mapping[str, Mapping[str, str]] = {
    "experiment create": {
        "--local": "`python -m detslurm.compat SCRIPT` runs a script here, as in a job",
        "--project_id": "projects have names: `--project WORKSPACE/PROJECT`",
        "--project-id": "projects have names: `--project WORKSPACE/PROJECT`",
    },
    "cmd run": _VOLUME,
    "shell start": _VOLUME,
    "notebook start": {**_VOLUME, "--preview": "`detslurm notebook config ID` prints it"},
    "trial describe": {
        "--csv": "`detslurm trial metrics ID --csv` prints the trial's metrics",
        "--metrics-summary": "`detslurm trial metrics ID` prints them, also with --csv or --json",
    },
}
PROGRAM_AFTER: Mapping[str, frozenset[str]] = {
    "cmd run": frozenset(("-d", "--detach", "--json", "-h", "--help"))
}
"""Commands whose options end before a program's words, and those options that have no value."""
_TASK_GROUPS = ("cmd", "shell", "notebook", "tensorboard")
_WAITING = "`detslurm job update ID --priority N` changes a job that waits"
_NOT_A_NODE = "nodes are the administrators': `scontrol update` changes them"
_KEPT = "logs are kept as long as their experiment: `experiment delete ID` removes both"
_WITH_EXPERIMENTS = "a folder is there while an experiment is in it: move or delete these"
NO_COMMAND: Mapping[str, str] = {
    "master": _NO_SERVER,
    "user": f"{_NO_SERVER}: users are those of the cluster",
    "u": f"{_NO_SERVER}: users are those of the cluster",
    "auth": f"{_NO_SERVER}, and nothing to log in to",
    "deploy": f"{_NO_SERVER}, and nothing to deploy",
    "dev": _NO_SERVER,
    "task": "`detslurm experiment describe ID` shows the jobs of an experiment",
    "rbac": "rights are those of the file system",
    "oauth": _NO_SERVER,
    "experiment delete-tb-files": "`experiment delete ID` removes TensorBoard files, too",
    "experiment set log-retention": _KEPT,
    "trial set": _KEPT,
    **dict.fromkeys((f"{kind} set" for kind in _TASK_GROUPS), _WAITING),
    "agent enable": _NOT_A_NODE,
    "agent disable": _NOT_A_NODE,
    "slot enable": _NOT_A_NODE,
    "slot disable": _NOT_A_NODE,
    "resource-pool bindings": "partitions and accounts decide who may use a resource pool",
    **dict.fromkeys(
        (f"{kind} {verb}" for kind in ("workspace", "project")
         for verb in ("archive", "unarchive", "delete", "edit")), _WITH_EXPERIMENTS,
    ),
    "workspace list-pools": "`detslurm resource-pool list` lists the partitions",
    "workspace bindings": "partitions and accounts decide who may use a resource pool",
    "project add-note": "experiments have notes: `detslurm experiment set notes ID TEXT`",
    "project set-note": "experiments have notes: `detslurm experiment set notes ID TEXT`",
}  # fmt: skip
_ONE_LETTER = (
    "agent", "checkpoint", "experiment", "job", "model", "project", "slot", "trial", "workspace",
)  # fmt: skip
GROUPS = {name[0]: name for name in _ONE_LETTER} | {
    "tpl": "template", "rp": "resource-pool", "command": "cmd",
    **dict(zip(_TASK_GROUPS, _TASK_GROUPS, strict=True)),
}  # fmt: skip
LISTING = {*GROUPS.values()} - {"trial"}  # trials are listed by their experiment
COMMANDS = {"ls": "list", "lt": "list-trials", "lc": "list-checkpoints"}
GROUP_COMMANDS = {"experiment unpause": "activate", "job u": "update"}
