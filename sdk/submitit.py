"""submitit with detslurm's executor, for scripts that `from detslurm.sdk import submitit`.

Everything else is submitit's own.
"""

from submitit import JobEnvironment, helpers

from detslurm.sdk.functions.executor import Executor
from detslurm.sdk.functions.job import FunctionJob

AutoExecutor = Executor
Job = FunctionJob

__all__ = ["AutoExecutor", "Executor", "Job", "JobEnvironment", "helpers"]
