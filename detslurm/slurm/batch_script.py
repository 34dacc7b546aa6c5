"""JobRequest -> batch script.

submitit's Slurm executor writes the same lines; a test holds both side by side. It is not asked
here, for importing it takes longer than all the rest of a submission: it brings asyncio along, and
looks up 1,600 names.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from detslurm.slurm.hostlist import compress_indices
from detslurm.slurm.request import JobRequest
from detslurm.slurm.shell_lines import command_line, prologue

# Slurm refuses comments of more than 1024 bytes; a character has up to 4.
_LONGEST_COMMENT = 250


def batch_script(request: JobRequest) -> str:
    """The whole batch script of one job, or of an array whose elements differ by their index only.

    What an element is it reads from the store, so that an array of any size is one script.
    """
    found = options(request)
    own = "".join(f"{_option_line(name, found[name])}\n" for name in sorted(found))
    # Extra options stand after ours and before any shell: the later one wins.
    extra = "".join(f"#SBATCH {line}\n" for line in extra_options(request))
    setup = "\n".join(prologue(request))
    head = _escaped(f"#!/bin/bash\n\n# Parameters\n{own}{extra}")
    return f"{head}\n# setup\n{setup}\n\n# command\n{command_line(request)}\n"


def _option_line(name: str, value: Any) -> str:
    return f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={shlex.quote(str(value))}"


def options(request: JobRequest) -> dict[str, Any]:
    """What sbatch is asked for, by the long names of its options; True for those without value."""
    lead = request.signal_lead
    found: dict[str, Any] = {
        "job-name": one_line(request.name) or "detslurm",
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "constraint": request.constraint,
        "time": request.time_minutes,
        "nodes": _nodes(request),
        "ntasks-per-node": request.ntasks_per_node,
        "ntasks": request.ntasks,
        "cpus-per-task": request.cpus_per_task,
        "gpus-per-task": request.gpus_per_task,
        "gpus": request.gpus,
        "gres": request.gres,
        "nice": request.nice,
        "comment": one_line(request.comment)[:_LONGEST_COMMENT] if request.comment else None,
        "exclude": ",".join(request.exclude) or None,
        "dependency": request.dependency,
        "chdir": request.folder,
        "output": escaped_percent(request.folder) + "/slurm-%A.out",
        "open-mode": "append",
        "requeue" if request.requeue else "no-requeue": True,
        "signal": f"B:USR1@{lead}" if lead else None,
        "array": array_option(request) if request.is_array else None,
        "hold": request.hold or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _escaped(options: str) -> str:
    """Option lines as sbatch reads them: to it a backslash is special between quotes, too."""
    return options.replace("\\", "\\\\")


def array_option(request: JobRequest) -> str:
    """What --array= takes: indices and, where asked for, the throttle."""
    throttle = f"%{request.throttle}" if request.throttle else ""
    return compress_indices(request.elements) + throttle


def extra_options(request: JobRequest) -> list[str]:
    """The user's sbatch_args, each one line, quoted again."""
    lines = [shlex.join(shlex.split(one_line(argument))) for argument in request.sbatch_args]
    return list(dict.fromkeys(line for line in lines if line))


def one_line(text: str) -> str:
    """text without control characters: a newline would end an #SBATCH line and begin a command."""
    return re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]+", " ", text).strip()


def escaped_percent(path: Path) -> str:
    """path for --output, where % begins a pattern."""
    return str(path).replace("%", "%%")


def _nodes(request: JobRequest) -> int | str:
    if request.max_nodes is None or request.max_nodes == request.nodes:
        return request.nodes
    return f"{request.nodes}-{request.max_nodes}"
