"""Records the packages of the process that trains, where the submission could not see them."""

from __future__ import annotations

import logging

from detslurm.store import ExperimentDir, StoreError, TrialDir

logger = logging.getLogger("detslurm.core")

runs_code = True
"""Whether this process has the Python of the code: that of a run's recorder may be another."""


def note_software(trial: TrialDir, run: int) -> None:
    """Record the software of this process, unless it is known already. Never an error."""
    if not runs_code:
        return
    from detslurm.store import provenance, software_here

    try:
        experiment = ExperimentDir.at(trial.experiment_path)
        provenance.note_software(experiment, software_here(), trial.id, run)
    except (StoreError, OSError, ValueError) as err:  # or a name that is no text
        logger.debug("the packages of run %d are not recorded: %s", run, err)
