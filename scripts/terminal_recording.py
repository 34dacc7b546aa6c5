"""Record README's first experiment in a terminal, as docs/images/terminal.svg.

Run it in the repository: python -m scripts.terminal_recording [FILE]. The files come from README,
and Slurm is that of SLURM_CONF, or else a cluster that the script starts. It has four nodes, and
the partitions `low` and `high` of the suite's clusters: a job in `high` takes the nodes of the
experiment. tests/docs/test_readme.py compares the recording with a new run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from detslurm.sdk import Client
from tests.cluster import Cluster, ClusterSpec, guarded
from tests.cluster.cluster import temporary_folder
from tests.cluster.waiting import wait_for
from tests.docs.pages import REPOSITORY, blocks

RECORDING = REPOSITORY / "docs" / "images" / "terminal.svg"
SUBMIT = "detslurm submit experiment.yaml --config resources.resource_pool=low"
PREEMPT = 'sbatch --partition=high --nodes=4 --exclusive --wrap="sleep 3"'
LATER = (
    "detslurm experiment wait last",
    "detslurm trial logs 1 --search run",
    "detslurm experiment list-trials last --top 3",
    "detslurm experiment plot last --height 12 --width 98",
)
LOCAL = re.compile("is usually local to one node|lives in memory")
SIZE = (30, 100)
"""Lines and columns of the terminal."""

# Rich's own form asks another host for a font.
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>text {{ font-family: ui-monospace, Menlo, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; white-space: pre }} {styles}</style>
<defs>{lines}</defs><rect width="100%" height="100%" rx="10" fill="#16191d"/>
<g transform="translate({terminal_x}, 14)">{backgrounds}{matrix}</g>
</svg>
"""


def main() -> None:
    """Write the recording to the file that the command line names."""
    target = Path(sys.argv[1]) if sys.argv[1:] else RECORDING
    with slurm(), tempfile.TemporaryDirectory(prefix="detslurm-") as folder:
        os.environ.update(DETSLURM_ROOT=f"{folder}/store", HOME=folder)
        work = Path(folder, "work")
        work.mkdir()
        for block in blocks(REPOSITORY / "README.md"):
            if block.file is not None:
                Path(work, block.file).write_text(block.text)
        target.write_text(drawn(list(session(work))))


@contextlib.contextmanager
def slurm() -> Iterator[None]:
    """The cluster that SLURM_CONF names, or one of its own."""
    if "SLURM_CONF" in os.environ:
        yield
        return
    with guarded(Cluster(ClusterSpec(cpus=2, gpus=0), temporary_folder())) as cluster:
        os.environ["SLURM_CONF"] = str(cluster.layout.slurm_conf)
        yield


def session(folder: Path) -> Iterator[str]:
    """Run the commands in `folder`; their lines and those of their output, with colours."""
    yield from shown(SUBMIT, folder)
    wait_for(saved, what="a checkpoint of each trial")
    yield "\x1b[2m# A job of higher priority takes all nodes:\x1b[0m"
    yield from shown(PREEMPT, folder)
    for command in LATER:
        yield from shown(command, folder)


def saved() -> bool:
    """Whether each of the four trials has a checkpoint."""
    trials = Client().experiment(1).list_trials()
    return len([trial for trial in trials if trial.list_checkpoints()]) == 4


def shown(command: str, folder: Path) -> Iterator[str]:
    """A command as it is typed, and what stays on the screen."""
    yield f"\x1b[1m$ {command}\x1b[0m"
    program, *words = shlex.split(command)
    argv = [sys.executable, "-m", "detslurm"] if program == "detslurm" else [program]
    # The nodes are one machine, whose disk all of them see.
    yield from (
        line for line in last_view(typed([*argv, *words], folder)) if not LOCAL.search(line)
    )


def typed(argv: list[str], folder: Path) -> str:
    """Everything that a command writes to a terminal of SIZE."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        argv, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # Linux's way to report that the command has ended
        pass
    os.close(ours)
    if process.wait():
        raise RuntimeError(f"{argv} failed:\n{written.decode()}")
    return written.decode()


def last_view(written: str) -> list[str]:
    """The lines that stay on the screen, without the states of a progress bar before its last."""
    lines: list[str] = []
    for line in written.replace("\r\n", "\n").removesuffix("\n").split("\n"):
        if "\x1b[1A" in line:  # one line up, which is then erased
            lines.pop()
        lines.append(re.split(r"\x1b\[2K|\r", line)[-1].replace("\x1b[?25h", ""))
    return lines


def drawn(lines: list[str]) -> str:
    """A picture of lines with a terminal's colours."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=SIZE[1] + 2, file=StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    return console.export_svg(code_format=_SVG, unique_id="terminal")


def text_of(svg: str) -> str:
    """The lines of a recording."""
    import html

    rows: dict[float, str] = {}
    for y, text in re.findall(r'<text [^>]*\by="([\d.]+)"[^>]*>(.*?)</text>', svg):
        rows[float(y)] = rows.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(rows[y].rstrip() for y in sorted(rows))


if __name__ == "__main__":
    main()
