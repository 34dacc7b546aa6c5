"""The shortest proof on newer Slurms and Pythons, where `make test-versions` has left them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "versions.sh"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
CANCELED = "tests/e2e/test_sites.py::TestWhereThePreemptedAreCancelled"
SHORTEST = (
    f"{CANCELED}::test_a_successor_goes_on",
    f"{CANCELED}::test_the_state_is_known_without_accounting",
    "tests/e2e/test_main_job.py::test_digits_is_preempted_in_mid_epoch",
)


@pytest.mark.parametrize("test", SHORTEST)
def test_the_shortest_proof_names_tests_that_exist(test: str) -> None:
    """Also where there is no other Debian to run them."""
    file, *_, name = test.split("::")
    assert f"def {name}(" in (REPOSITORY / file).read_text()


def recipe() -> str:
    """What a Debian is made of today, as its script says it."""
    [line] = re.findall(r"^recipe=.*$", SCRIPT.read_text(), re.MULTILINE)
    said = ["bash", "-c", f'{line}; echo "$recipe"']
    done = subprocess.run(said, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("debian", ["trixie", "sid"])
def test_newer_slurm_and_python(debian: str) -> None:
    """The main job is preempted and goes on, and scancel ends a job, in both modes."""
    if os.geteuid():
        pytest.skip("newer Slurms: only root can enter their Debians")
    installed = CACHE / "detslurm" / "debian" / debian / "installed"
    if not installed.exists():
        pytest.skip(f"newer Slurms: no Debian {debian} here; `make test-versions` makes it")
    if installed.read_text().strip() != recipe():
        pytest.skip(f"newer Slurms: Debian {debian} is out of date; `make test-versions` renews it")
    done = subprocess.run(
        [SCRIPT, debian, "--", "-q", "-n0", *SHORTEST],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert " passed" in done.stdout and " skipped" not in done.stdout
