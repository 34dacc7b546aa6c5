"""Keeps what pytest makes of the tests' assertions: python -m scripts.rewrite_tests.

Else each worker of the suite rewrites all of them where Python keeps no bytecode or none is there
yet. That is half of what collecting computes.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import cast

from _pytest.assertion import AssertionState, rewrite
from _pytest.config import Config

TESTS = Path(__file__).parents[1] / "tests"


def keep(path: Path) -> None:
    """Write the bytecode where pytest looks for it."""
    no_config, no_trace = cast(Config, None), cast(AssertionState, None)
    source, code = rewrite._rewrite_test(path, no_config)
    folder = path.parent / "__pycache__"
    folder.mkdir(exist_ok=True)
    rewrite._write_pyc(no_trace, code, source, folder / (path.stem + rewrite.PYC_TAIL))


def main() -> None:
    """Rewrite the modules of tests on all cores."""
    paths = [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]
    with ProcessPoolExecutor() as pool:
        list(pool.map(keep, paths, chunksize=10))


if __name__ == "__main__":
    main()
