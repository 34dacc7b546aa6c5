"""`python -m detslurm.cli`."""

import sys

from detslurm.cli import main

sys.exit(main())
