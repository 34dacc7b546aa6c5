"""JobRequest -> batch script, through submitit's Slurm executor."""

from __future__ import annotations

import os
import re
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import SlurmExecutor

from detslurm.config.sbatch_args import last_given
from detslurm.slurm.hostlist import compress_indices
from detslurm.slurm.request import JobRequest
from detslurm.slurm.shell_lines import command_line, prologue

# Slurm refuses comments of more than 1024 bytes; a character has up to 4.
_LONGEST_COMMENT = 250


class BatchExecutor(SlurmExecutor):  # type: ignore[misc]
    """submitit's executor for one array whose elements differ by their index only.

    submitit pickles a function per element and waits between submissions; our elements read what
    they are from the store, so that an array of any size is one script and one sbatch.
    """

    def __init__(self, request: JobRequest) -> None:
        super().__init__(folder=escaped_percent(request.folder), python="python3")
        self.request = request
        self.update_parameters(**parameters(request))

    @classmethod
    def affinity(cls) -> int:
        """Scripts can be written where Slurm is not installed (--dry-run)."""
        return 2

    def script(self) -> str:
        """The whole batch script."""
        text: str = self._make_submission_file_text(command_line(self.request), uid="")
        extra = "".join(f"#SBATCH {line}\n" for line in extra_options(self.request))
        # Extra options stand after ours and before any shell: the later one wins.
        head, mark, body = text.partition("\n# setup\n")
        if not self.request.signal_lead:  # else submitit's own signal and its lead were asked for
            lines = head.splitlines(keepends=True)
            head = "".join(line for line in lines if not line.startswith("#SBATCH --signal="))
        head, extra = _escaped(head), _escaped(extra)
        # Users may run submitit themselves inside a trial; it must not take the job for its own.
        return head + extra + mark + body.replace("export SUBMITIT_EXECUTOR=slurm\n", "", 1)


def _node_output() -> str:
    """A new name on the node's own memory, where Slurm can always open a job's output.

    The end of it is drawn, because all users of the node may make names there.
    """
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else "/tmp"
    return f"{folder}/detslurm-{uuid.uuid4().hex[:12]}-"


def parameters(request: JobRequest) -> dict[str, Any]:
    """The executor's parameters; None leaves an option out."""
    output = _node_output()
    return {
        "job_name": one_line(request.name) or "detslurm",
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "constraint": request.constraint,
        "time": request.time_minutes,
        "nodes": _nodes(request),
        "ntasks_per_node": request.ntasks_per_node,
        "cpus_per_task": request.cpus_per_task,
        "gpus_per_task": request.gpus_per_task,
        "gres": request.gres,
        "comment": one_line(request.comment)[:_LONGEST_COMMENT] if request.comment else None,
        "exclude": ",".join(request.exclude) or None,
        "dependency": request.dependency,
        "wckey": None,
        "stderr_to_stdout": True,
        "use_srun": False,
        # Open it stays: a job that is killed leaves nothing there.
        "setup": [f'rm -f {output}"$SLURM_JOB_ID"', *prologue(request)],
        "additional_parameters": {"output": f"{output}%j", **_additional(request)},
    }


def _additional(request: JobRequest) -> dict[str, Any]:
    options: dict[str, Any] = {
        "chdir": request.folder,
        "open-mode": "append",
        "requeue" if request.requeue else "no-requeue": True,
    }
    if request.signal_lead:
        options["signal"] = f"B:USR1@{request.signal_lead}"
    if request.is_array:
        options["array"] = array_option(request)
    for name in ("ntasks", "gpus", "nice"):
        if getattr(request, name) is not None:
            options[name] = getattr(request, name)
    if request.hold:
        options["hold"] = True
    return options


def _escaped(options: str) -> str:
    """Option lines as sbatch reads them: to it a backslash is special between quotes, too."""
    return options.replace("\\", "\\\\")


def array_option(request: JobRequest) -> str:
    """The value of --array=: indices and, where asked for, the throttle."""
    throttle = f"%{request.throttle}" if request.throttle else ""
    return compress_indices(request.elements) + throttle


def extra_options(request: JobRequest) -> list[str]:
    """The user's sbatch_args, each one line, quoted again; lists go on with what we ask for."""
    lines = [shlex.join(shlex.split(one_line(argument))) for argument in request.sbatch_args]
    return [*dict.fromkeys(line for line in lines if line), *_joined(request)]


def _joined(request: JobRequest) -> Iterator[str]:
    ours = (  # with what can't be joined: the name of a file, alternatives to conditions
        ("gres", None, request.gres, "none"),
        ("exclude", "x", ",".join(request.exclude), "/"),
        ("dependency", "d", request.dependency, "?"),
    )
    for name, letter, own, apart in ours:
        theirs = last_given(request.sbatch_args, name, letter)
        if own and theirs and apart not in theirs:
            yield shlex.join([f"--{name}={own},{theirs}"])


def one_line(text: str) -> str:
    """text without control characters: a newline would end an #SBATCH line and begin a command."""
    return re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]+", " ", text).strip()


def escaped_percent(path: Path) -> str:
    """path for submitit's own --output, where % begins a pattern."""
    return str(path).replace("%", "%%")


def _nodes(request: JobRequest) -> int | str:
    if request.max_nodes is None or request.max_nodes == request.nodes:
        return request.nodes
    return f"{request.nodes}-{request.max_nodes}"
