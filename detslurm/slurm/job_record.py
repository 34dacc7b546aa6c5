"""Reading `scontrol show job`, where names and comments are free text that may resemble fields;
what it shows of the options that a job was submitted with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from detslurm.slurm.limits import parse_record

_OPTIONS = {
    "JobName": "--job-name",
    "Partition": "--partition",
    "Account": "--account",
    "QOS": "--qos",
    "TimeLimit": "--time",
    "NumNodes": "--nodes",
    "NumTasks": "--ntasks",
    "CPUs/Task": "--cpus-per-task",
    "MinMemoryNode": "--mem",
    "MinMemoryCPU": "--mem-per-cpu",
    "MinTmpDiskNode": "--tmp",
    "Features": "--constraint",
    "ReqNodeList": "--nodelist",
    "ExcNodeList": "--exclude",
    "Reservation": "--reservation",
    "Licenses": "--licenses",
    "WorkDir": "--chdir",
}
_MEMORY = ("--mem", "--mem-per-cpu", "--tmp")
# Fields of generic resources, as options: all but the first take GPUs alone.
_TRES = {
    "TresPerNode": "--gres",
    "TresPerJob": "--gpus",
    "TresPerTask": "--gpus-per-task",
    "TresPerSocket": "--gpus-per-socket",
    "CpusPerTres": "--cpus-per-gpu",
    "MemPerTres": "--mem-per-gpu",
}
# Options that sbatch refuses beside them: the record has their defaults.
_IMPLIED = (
    ("CpusPerTres", "CPUs/Task"),
    ("MemPerTres", "MinMemoryCPU"),
    ("MemPerTres", "MinMemoryNode"),
)
_FLAGS = {
    ("OverSubscribe", "NO"): "--exclusive",
    ("OverSubscribe", "USER"): "--exclusive=user",
    # Either may be other than the site's default.
    ("Requeue", "1"): "--requeue",
    ("Requeue", "0"): "--no-requeue",
}
_UNSAID = ("(null)", "N/A", "", "0")
# --mem=0, all memory of the node. So has a job that asked for none, where the site has no default.
_ALL_MEMORY = ("MinMemoryNode", "0")
# Free text stands last in its line: all that follows belongs to it.
_FREE = re.compile(
    r"(?:^|\s)(JobName|(?:Admin|System)?Comment|Extra|Command|SubmitLine|WorkDir|Std(?:Err|In|Out))=(.*)"
)


def parse_job_records(text: str) -> list[dict[str, str]]:
    """The jobs in the lines of `scontrol show job`.

    A key that stands in a job's record twice is left out: a line break in a name has made it up.
    """
    records: list[dict[str, str]] = []
    twice: set[str] = set()
    for line in text.splitlines():
        if line.startswith("JobId="):
            records.append({})
            twice = set()
        if records:
            fields = _fields(line)
            twice |= fields.keys() & records[-1].keys()
            records[-1] |= fields
            for key in twice:
                records[-1].pop(key, None)
    return records


def options_of(record: Mapping[str, str]) -> list[str]:
    """A job's request, by its record, as options of sbatch."""
    gpus = _generic_resources(record)
    implied = {name for tres, name in _IMPLIED if tres in gpus}
    options = [
        f"{option}={_memory(value) if option in _MEMORY else value}"
        for name, option in _OPTIONS.items()
        if (value := record.get(name, "")) not in _UNSAID or (name, value) == _ALL_MEMORY
        if name not in implied
    ]
    per_node = record.get("NtasksPerN:B:S:C", "0").partition(":")[0]
    return [
        *options,
        *([f"--ntasks-per-node={per_node}"] if per_node.strip("0") else []),
        *(f"{_TRES[name]}={items}" for name, items in gpus.items()),
        *(flag for (name, value), flag in _FLAGS.items() if record.get(name) == value),
    ]


def _generic_resources(record: Mapping[str, str]) -> dict[str, str]:
    """Field of the record -> its value as the option takes it.

    `gres:gpu:2` up to 23.02, `gres/gpu:2` and `cpu=1,gres/gpu=2` later.
    """
    found = {}
    for name, option in _TRES.items():
        items = [item.strip() for item in record.get(name, "").split(",")]
        wanted = [item[5:].replace("=", ":") for item in items if item[:5] in ("gres:", "gres/")]
        if option != "--gres":
            wanted = [item[4:] for item in wanted if item.startswith("gpu:")]
        if wanted:
            found[name] = ",".join(wanted)
    return found


def _memory(printed: str) -> str:
    """A size of memory as options of sbatch take it, which refuse the halves that Slurm prints:
    1536M of 1.50G."""
    match = re.fullmatch(r"(\d+\.\d+)([MGTP])", printed)
    return f"{float(match[1]) * 1024:.0f}{_SMALLER[match[2]]}" if match else printed


_SMALLER = {"M": "K", "G": "M", "T": "G", "P": "T"}


def _fields(line: str) -> dict[str, str]:
    free = _FREE.search(line)
    if free is None:
        return parse_record(line)
    return {**parse_record(line[: free.start()]), free[1]: free[2].rstrip()}
