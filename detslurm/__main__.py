"""`python -m detslurm`: the command line."""

import sys

from detslurm.cli import main

if __name__ == "__main__":
    sys.exit(main())
