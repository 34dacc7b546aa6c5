"""One of several ranks: python -m tests.pytorch.deepspeed.ranks SCENARIO FOLDER."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.pytorch.deepspeed import scenarios


def main() -> None:
    """Run a scenario of `tests.pytorch.deepspeed.scenarios` and write what it returns."""
    result = getattr(scenarios, sys.argv[1])()
    text = json.dumps(result, default=lambda array: array.tolist())
    (Path(sys.argv[2]) / f"rank{os.environ['RANK']}.json").write_text(text)


if __name__ == "__main__":
    main()
