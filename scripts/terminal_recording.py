"""Record README's first experiment in a terminal, as docs/images/terminal.svg.

Run it in the repository: python -m scripts.terminal_recording [FILE]. The files come from README,
and the experiment runs on this machine, in a store that is deleted in the end unless
DETSLURM_ROOT names another one. tests/docs/test_readme.py compares the recording with a new run.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from tests.docs.pages import REPOSITORY, blocks

RECORDING = REPOSITORY / "docs" / "images" / "terminal.svg"
COMMANDS = (
    "submit experiment.yaml",
    "experiment wait last",
    "experiment list-trials last --top 3",
    "experiment plot last --height 12 --width 98",
)
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
    with tempfile.TemporaryDirectory(prefix="detslurm-") as folder:
        os.environ.setdefault("DETSLURM_ROOT", f"{folder}/store")
        work = Path(folder, "work")
        work.mkdir()
        for block in blocks(REPOSITORY / "README.md"):
            if block.file is not None:
                Path(work, block.file).write_text(block.text)
        target.write_text(drawn(list(session(work))))


def session(folder: Path) -> Iterator[str]:
    """Run the commands in `folder`; their lines and those of their output, with colours."""
    for command in COMMANDS:
        yield f"\x1b[1m$ detslurm {command}\x1b[0m"
        yield from last_view(typed([sys.executable, "-m", "detslurm", *command.split()], folder))


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
