"""Another name of `detslurm.sdk.client`."""

import sys

from detslurm.sdk import client

sys.modules[__name__] = client
