"""Commands that people know from other programs, and what does the same here.

Imported only after a command that does not exist.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

_ELSEWHERE = {
    # Slurm
    "squeue": "`detslurm job list` lists the queue in the order in which jobs start",
    "sacct": "`detslurm experiment list --all`, and `detslurm trial describe ID` for its runs",
    "sbatch": "`detslurm submit experiment.yaml` queues an experiment",
    "srun": "`detslurm submit experiment.yaml --follow` runs it and prints its log",
    "salloc": "`detslurm submit experiment.yaml --follow` runs it and prints its log",
    "scancel": "`detslurm experiment cancel ID` saves first, `kill ID` ends it at once",
    "scontrol": "`detslurm experiment describe ID` shows, `set` and `job update` change it",
    "sinfo": "`detslurm resource-pool list` lists partitions, `detslurm agent list` nodes",
    "sstat": "`detslurm experiment efficiency ID` shows how busy GPUs and CPUs are, and memory",
    "seff": "`detslurm experiment efficiency ID` shows how busy GPUs and CPUs were, and memory",
    "requeue": "`detslurm experiment activate ID` queues again what lost its job",
    "hold": "`detslurm experiment pause ID`",
    "release": "`detslurm experiment activate ID`",
    # Determined
    "det": "leave out `det`: the commands have the same names here",
    "master": "there is no server: `detslurm doctor` checks what takes its place",
    "user": "there is no server: users are those of the cluster",
    "auth": "there is no server, and nothing to log in to",
    "login": "there is no server, and nothing to log in to",
    "deploy": "there is no server: `detslurm doctor` says whether all is set up",
    "notebook": "there is no server: start Jupyter in a job, and use `detslurm.sdk` in it",
    "shell": "`srun --pty bash` gives a shell on a node",
    "cmd": "`detslurm submit` runs a command as an experiment: `entrypoint` is any command",
    "command": "`detslurm submit` runs a command as an experiment: `entrypoint` is any command",
    "task": "`detslurm experiment describe ID` shows the jobs of an experiment",
    "rbac": "there is no server: rights are those of the file system",
    "pool": "`detslurm resource-pool list`: resource pools are partitions",
    "version": "`detslurm --version`",
    # git, and what else has versions
    "log": "`detslurm experiment logs ID`, or `detslurm experiment list` for what there was",
    "status": "`detslurm experiment list`",
    "diff": "`detslurm compare ID ID` shows what differs between experiments",
    "clone": "`detslurm experiment fork ID`",
    "branch": "`detslurm experiment fork ID`",
    "tag": "`detslurm experiment label add ID LABEL`",
    "checkout": "`detslurm experiment download-model-def ID`, `detslurm trial download ID --best`",
    "commit": "the code is copied with every `detslurm submit`",
    "push": "the code is copied with every `detslurm submit`",
    "restore": "`detslurm trial download ID --latest` copies a checkpoint",
    # submitit, W&B, Optuna, Ray, MLflow, a shell
    "map_array": "`detslurm submit experiment.yaml` with a searcher; `detslurm.sdk` in Python",
    "sweep": "`detslurm submit experiment.yaml` with `searcher` and `hyperparameters`",
    "tune": "`detslurm submit experiment.yaml` with `searcher` and `hyperparameters`",
    "study": "`detslurm submit experiment.yaml` with `searcher` and `hyperparameters`",
    "run": "`detslurm submit experiment.yaml`",
    "runs": "`detslurm experiment list-trials ID`",
    "train": "`detslurm submit experiment.yaml`",
    "launch": "`detslurm submit experiment.yaml`",
    "start": "`detslurm submit experiment.yaml`, `detslurm experiment activate ID`",
    "stop": "`detslurm experiment cancel ID` saves first, `kill ID` ends it at once",
    "resume": "`detslurm experiment activate ID` after a pause, `continue ID` after the end",
    "restart": "`detslurm experiment continue ID`, or `rerun ID` from scratch",
    "rm": "`detslurm experiment delete ID`",
    "remove": "`detslurm experiment delete ID`",
    "ps": "`detslurm experiment list --state ACTIVE`",
    "top": "`detslurm experiment list --state ACTIVE`",
    "tail": "`detslurm experiment logs ID --follow`",
    "cat": "`detslurm experiment logs ID`",
    "show": "`detslurm experiment describe ID`",
    "info": "`detslurm experiment describe ID`",
    "inspect": "`detslurm experiment describe ID`",
    "init": "`detslurm site init`, or an experiment.yaml beside your code",
    "config": "`detslurm experiment config ID`, `detslurm site show`",
}

_SAME = (
    ("delete", "remove", "rm", "del"),
    ("describe", "show", "info", "inspect", "status"),
    ("kill", "stop", "cancel", "scancel"),
    ("logs", "log", "tail", "cat"),
    ("create", "new", "add"),
)


def elsewhere(word: str, rest: Sequence[str] = ()) -> str | None:
    """What a word of another program is called here; None if it is not known.

    Args:
        word: The command that does not exist.
        rest: The words that follow it.
    """
    answer = _ELSEWHERE.get(word.lower())
    if answer is None:
        return None
    if word == "det" and rest:
        return f"leave out `det`: `detslurm {' '.join(rest)}`"
    return answer


def synonyms(word: str, names: Container[str]) -> list[str]:
    """Those of the names that mean about the same as a word."""
    families = (family for family in _SAME if word.lower() in family)
    return [name for family in families for name in family if name in names]
