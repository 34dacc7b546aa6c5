#!/bin/bash
# Runs the tests that need a GPU, on one that is here: scripts/gpu.sh [pytest's arguments].
# PYTHON names a Python that has this checkout's requirements and a torch for the GPU's driver; by
# default it is .venv's. Without a GPU nothing runs and the exit status is 4: nothing was shown.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/system.sh

if [ -z "${PYTHON:-}" ]; then
    scripts/bootstrap.sh test
    PYTHON=.venv/bin/python
fi
"$PYTHON" - <<'EOF' || exit 4
import sys

import torch

if not torch.cuda.is_available():
    sys.exit(
        f"no GPU: torch {torch.__version__} (built for CUDA {torch.version.cuda}) sees none here;"
        " none of its tests ran. `nvidia-smi` shows what the driver sees, and"
        " PYTHON=/path/to/python chooses a Python with another torch"
    )
for index in range(torch.cuda.device_count()):
    print(f"GPU {index}: {torch.cuda.get_device_name(index)}, torch {torch.__version__}")
EOF
# One after the other, for they share the GPU.
exec "$PYTHON" -m pytest -n0 -m gpu tests/gpu "$@" </dev/null
