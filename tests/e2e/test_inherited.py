"""What a job takes from the shell that submitted it, its setup and its site; what it does not."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import Desk

pytestmark = pytest.mark.cluster


def test_a_failing_line_of_the_setup_is_the_end_and_shown(desk: Desk, site: Cluster) -> None:
    """By every command that shows why nothing came; none advises what would fail again."""
    conda = desk.write("bin/conda", "#!/bin/sh\necho CondaError: run conda init >&2\nexit 1\n")
    conda.chmod(0o755)
    setup = f"slurm.setup=[set -eu, export PATH={conda.parent}:$PATH, conda activate gone]"
    number = desk.submit(desk.project("print('trained')"), setup)
    site.wait_state(desk.job(number), "FAILED")
    for command in ("wait", "logs", "logs -f", "describe"):
        done = desk.run("e", *command.split(), str(number), check=False)
        shown = done.stdout + done.stderr
        assert "CondaError: run conda init" in shown, command
        assert "slurm.setup, line 3, failed on n" in shown, command
        assert "activate`" not in shown and "e activate" not in shown, command
    assert desk.outcomes(number) == []
