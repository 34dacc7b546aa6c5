"""Record which checkpoints and model versions a task uses."""

from __future__ import annotations

import logging
import time
from typing import Any

from detslurm._base.display import Displayed
from detslurm.store import ExperimentDir, StoreError, TrialDir
from detslurm.store.records import CheckpointUsed

logger = logging.getLogger("detslurm.core")


class UsageReports(Displayed):
    """Record which checkpoints and model versions this trial uses: `core.experimental`.

    The chief's reports are recorded with the checkpoint, once for each trial; those of workers are
    ignored, and so are those of a script that is not recorded.
    """

    def __init__(self, trial: TrialDir | None = None, *, is_chief: bool = True) -> None:
        self._trial = trial if is_chief else None

    def _facts(self) -> dict[str, Any]:
        return {"trial": self._trial and self._trial.id}

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """Record that this trial uses `checkpoint`, a result of `client.get_checkpoint()`;
        `checkpoint describe` shows it.
        """
        self._record(checkpoint.experiment_id, checkpoint.uuid)

    def report_task_using_model_version(self, model_version: Any) -> None:
        """Record that this trial uses `model_version`, a result of `Model.get_version()`;
        `model describe --version` and `checkpoint describe` show it.
        """
        row = model_version.row
        self._record(
            row.experiment, row.uuid, model=model_version.model_name, version=model_version.version
        )

    def _record(
        self, experiment_id: int, uuid: str, model: str | None = None, version: int | None = None
    ) -> None:
        trial = self._trial
        if trial is None:
            return
        fact = CheckpointUsed(
            uuid=uuid, trial=trial.id, model=model, version=version, time=time.time()
        )
        store = ExperimentDir.at(trial.experiment_path).store
        try:
            experiment = store.experiment(experiment_id)
            if not any(_is_same(fact, plain) for plain in experiment.facts()):
                experiment.append(fact)
        except StoreError as err:  # such as of another user's experiment: the task goes on
            logger.warning("the use of checkpoint %s can't be recorded: %s", uuid, err)


def _is_same(fact: CheckpointUsed, plain: dict[str, Any]) -> bool:
    wanted = {"type": "checkpoint_used", "uuid": fact.uuid, "trial": fact.trial}
    wanted |= {"model": fact.model, "version": fact.version}
    return all(plain.get(name) == value for name, value in wanted.items())
