"""Names that Determined has given up and scripts still use."""

from __future__ import annotations

import warnings


def deprecated(old: str, new: str) -> None:
    """Warn the caller of the function that calls this."""
    warnings.warn(f"{old} is called {new} now", FutureWarning, stacklevel=3)
