"""Keeps what pytest makes of the tests' assertions: python -m scripts.rewrite_tests.

Else each worker of the suite rewrites all of them where Python keeps no bytecode or none is there
yet. That is half of what collecting computes. pytest rewrites the modules of its plugins, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import cast

from _pytest.assertion import AssertionState, rewrite
from _pytest.config import Config

TESTS = Path(__file__).parents[1] / "tests"


def plugins() -> Iterator[Path]:
    """The modules of the packages that have registered a plugin of pytest, but not pytest's own."""
    for package in distributions():
        if any(entry.group == "pytest11" for entry in package.entry_points):
            for file in package.files or ():
                if file.suffix == ".py" and (path := Path(str(file.locate()))).exists():
                    yield path


def keep(path: Path) -> None:
    """Write the bytecode where pytest looks for it."""
    no_config, no_trace = cast(Config, None), cast(AssertionState, None)
    folder = path.parent / "__pycache__"
    target = folder / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, target) is None:
        source, code = rewrite._rewrite_test(path, no_config)
        folder.mkdir(exist_ok=True)
        rewrite._write_pyc(no_trace, code, source, target)


def main() -> None:
    """Rewrite the modules of tests and plugins on all cores."""
    paths = [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py"), *plugins()]
    with ProcessPoolExecutor() as pool:
        list(pool.map(keep, paths, chunksize=10))


if __name__ == "__main__":
    main()
