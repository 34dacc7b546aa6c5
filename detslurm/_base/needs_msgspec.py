"""Imported first where the code of an image begins, whose Python may lack msgspec."""

import sys

try:
    import msgspec  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        f"detslurm needs msgspec 0.21 or later, and {sys.executable} (Python"
        f" {sys.version_info[0]}.{sys.version_info[1]}) has none: install msgspec for this Python,"
        " in a container into its image",
        name="msgspec",
    ) from None
