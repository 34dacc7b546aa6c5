"""One of several ranks: python -m tests.pytorch.deepspeed.ranks SCENARIO FOLDER."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.pytorch.deepspeed import background, scenarios


def main() -> None:
    """Run a scenario of `tests.pytorch.deepspeed.scenarios`, or all of `background`, and write what
    it returns."""
    name = sys.argv[1]
    result = background.everything() if name == "background" else getattr(scenarios, name)()
    text = json.dumps(result, default=lambda array: array.tolist())
    (Path(sys.argv[2]) / f"rank{os.environ['RANK']}.json").write_text(text)


if __name__ == "__main__":
    main()
