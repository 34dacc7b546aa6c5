"""Importance by Optuna's PED-ANOVA, added to a snapshot."""

from __future__ import annotations

from msgspec.structs import replace

from detslurm.look.document import ExperimentPart, Snapshot
from detslurm.sdk.searches.importance import Results, ped_anova


def with_ped_anova(taken: Snapshot) -> Snapshot:
    """A snapshot whose experiments have their importance by PED-ANOVA, or a problem that says why
    they don't."""
    return replace(taken, experiments=[_measured(part) for part in taken.experiments])


def _measured(part: ExperimentPart) -> ExperimentPart:
    trials = [(t.hparams, t.best) for t in part.trials if isinstance(t.best, int | float)]
    space = part.config.get("hyperparameters") or {}
    found = ped_anova(Results(space, part.smaller_is_better, trials))
    if found.problem is None:
        return replace(part, ped_anova=found.shares)
    problem = f"Importance by PED-ANOVA is left out: {found.problem}"
    return replace(part, problems=[*part.problems, problem])
