"""Launchers: start the processes of a trial, one per slot, from an entrypoint or a batch script.

A launcher of one's own starts every worker behind `python3 -m detslurm.launch.wrap_rank RANK CMD`,
sets the workers' rank and chief, ends the others when one fails and then exits with
a status other than zero, and exits with zero once all workers did.

`submit` refuses a launcher whose module's docstring does not show the command: a line of four
spaces, `python3 -m detslurm.launch.NAME`, a space and arguments. Whether a package that it needs is
installed is checked only if `_NEEDS` in `sdk/submission/entrypoint.py` names the package.
"""

from detslurm._base import needs_msgspec  # noqa: F401
