"""Commands that people know from other programs, and the command that does the same here.

Imported only after a command that does not exist.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from detslurm.cli.det_tables import NOTHING

# An answer, and the words that it is for: of Slurm, git, submitit, W&B, Optuna, Ray and MLflow.
_ANSWERS = {
    "`detslurm job list` lists the queue in the order in which jobs start": "squeue",
    "`detslurm experiment list --all`, and `detslurm trial describe ID` for its runs": "sacct",
    "`detslurm submit experiment.yaml` queues an experiment": "sbatch run train launch map_array",
    "`detslurm cmd run PROGRAM` runs it on a node and prints its output": "srun salloc",
    "`detslurm submit experiment.yaml` with `searcher` and `hyperparameters`": "sweep tune study",
    "`detslurm experiment cancel ID` saves first, `kill ID` ends it at once": "scancel stop",
    "`detslurm experiment describe ID` shows, `set` and `job update` change it": "scontrol",
    "`detslurm resource-pool list` lists partitions, `detslurm agent list` nodes": "sinfo pool",
    "`detslurm experiment efficiency ID` shows how busy GPUs and CPUs are": "sstat seff",
    "`detslurm experiment pause ID`": "hold",
    "`detslurm experiment activate ID` after a pause or a lost job, `continue ID` after the end": (
        "release requeue start resume restart"
    ),
    "`detslurm experiment list`": "status ps",
    "`detslurm experiment list-trials ID`": "runs",
    "`detslurm experiment logs ID --follow`": "log tail cat",
    "`detslurm experiment describe ID`": "show info inspect",
    "`detslurm experiment delete ID`": "rm remove",
    "`detslurm experiment fork ID`": "clone branch",
    "`detslurm experiment label add ID LABEL`": "tag",
    "`detslurm experiment download-model-def ID`, `detslurm trial download ID --best`": (
        "checkout restore"
    ),
    "`detslurm compare ID ID` shows what differs between experiments": "diff",
    "the code is copied with every `detslurm submit`": "commit push",
    "`detslurm site init`, or an experiment.yaml beside your code": "init",
    "`detslurm experiment config ID`, `detslurm site show`": "config",
    "`detslurm --version`": "version",
    NOTHING["auth"]: "login",
    "leave out `det`: the commands have the same names here": "det",
}
_ELSEWHERE = {word: answer for answer, words in _ANSWERS.items() for word in words.split()}

_SAME = (
    ("delete", "remove", "rm", "del"),
    ("describe", "show", "info", "inspect", "status"),
    ("kill", "stop", "cancel", "scancel"),
    ("logs", "log", "tail", "cat"),
    ("create", "new", "add"),
)


def elsewhere(word: str, rest: Sequence[str] = ()) -> str | None:
    """The answer to a word of another program; None for an unknown word.

    Args:
        word: The command that does not exist.
        rest: The words that follow it.
    """
    if word == "det" and rest:
        return f"leave out `det`: `detslurm {' '.join(rest)}`"
    return _ELSEWHERE.get(word.lower()) or NOTHING.get(word.lower())


def synonyms(word: str, names: Container[str]) -> list[str]:
    """Those of the names that mean about the same as a word."""
    families = (family for family in _SAME if word.lower() in family)
    return [name for family in families for name in family if name in names]
