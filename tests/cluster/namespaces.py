"""Whether tests may have mounts and host names of their own."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache


@cache
def may_unshare() -> bool:
    """Whether this process may: root may, but not in most containers (CAP_SYS_ADMIN)."""
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--uts", "--mount", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0
