"""The `detslurm` command."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    from detslurm.cli.app import run

    return run(argv)
