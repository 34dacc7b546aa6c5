"""mypy over the package as it is installed: `launchers/`, `sdk/` and `templates/` in their places.

setup.cfg maps these folders into the package; mypy doesn't follow the hooks that an editable
install uses for that. So it gets a tree of links that looks like an installed copy.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TREE = REPOSITORY / ".lint"
COMMAND = "detslurm_command.py"
CHECKED = ("tests", "benchmarks", "scripts")


def package_folders() -> dict[str, str]:
    """Package name -> folder, from `package_dir` in setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(REPOSITORY / "setup.cfg")
    lines = parser["options"]["package_dir"].strip().splitlines()
    pairs = (line.partition("=") for line in lines)
    return {name.strip(): folder.strip() for name, _, folder in pairs}


def lay_out() -> list[str]:
    """Make the tree anew; the folders in it to check."""
    folders = package_folders()
    top = folders.pop("detslurm")
    for stale in (TREE / "detslurm", TREE / COMMAND, *(TREE / name for name in CHECKED)):
        _remove(stale)
    package = TREE / "detslurm"
    package.mkdir(parents=True)
    for entry in (REPOSITORY / top).iterdir():
        (package / entry.name).symlink_to(entry)
    for name, folder in folders.items():
        link = package / name.removeprefix("detslurm.")
        if not link.is_symlink():
            link.symlink_to(REPOSITORY / folder)
    present = [name for name in CHECKED if any((REPOSITORY / name).rglob("*.py"))]
    for name in present:
        (TREE / name).symlink_to(REPOSITORY / name)
    (TREE / COMMAND).symlink_to(REPOSITORY / COMMAND)
    return ["detslurm", COMMAND, *present]


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def main() -> int:
    """Run mypy in the tree; its exit code."""
    targets = lay_out()
    argv = [sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "setup.cfg")]
    argv += ["--explicit-package-bases", *sys.argv[1:], *targets]
    return subprocess.run(argv, cwd=TREE, env=os.environ | {"MYPYPATH": ""}).returncode


if __name__ == "__main__":
    sys.exit(main())
