"""Launchers: start the processes of a trial, one per slot, from an entrypoint or a batch script.

A launcher of one's own starts every worker behind `python3 -m detslurm.launch.wrap_rank RANK CMD`,
sets the workers' rank and chief, ends the others when one fails and then exits with
a status other than zero, and exits with zero once all workers did.
"""
