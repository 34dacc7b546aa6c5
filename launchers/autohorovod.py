"""Start one Horovod process per slot; with a single slot run the script without Horovod.

    python3 -m detslurm.launch.autohorovod [[OPTIONS...] --] (--trial TRIAL)|(SCRIPT...)

It is the same as `detslurm.launch.horovod --autohorovod`.
"""

from __future__ import annotations

import sys

from detslurm.exec.signals import exit_with
from detslurm.launch import horovod

if __name__ == "__main__":
    exit_with(horovod.main(sys.argv[1:], auto=True, usage=__doc__))
