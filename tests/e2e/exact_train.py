"""A training that imports next to nothing, and of which every number depends on all before."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

EPOCH, LAST = 47, 6 * 47


class Model:
    """A weight that learns, and the random numbers that it learns from."""

    def __init__(self, seed: int) -> None:
        self.step, self.weight, self.numbers = 0, 0.0, random.Random(seed)

    def train_batch(self) -> dict[str, float]:
        x = self.numbers.gauss(0.0, 1.0)
        error = (self.weight - 3.0) * x
        self.weight -= 0.02 * error * x
        self.step += 1
        return {"loss": error * error}

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([self.step, self.weight, self.numbers.getstate()]))

    def load(self, path: Path) -> None:
        self.step, self.weight, (version, words, rest) = json.loads(path.read_text())
        self.numbers.setstate((version, tuple(words), rest))


def main(core: Any, info: Any) -> None:
    """Train; each run but the last waits at a step of its own until it is to leave."""
    model, held = Model(info.trial.trial_seed), dict(enumerate(info.user_data["held"], 1))
    if info.latest_checkpoint:
        with core.checkpoint.restore_path(info.latest_checkpoint) as path:
            model.load(path / "model.json")

    def save() -> None:
        with core.checkpoint.store_path({"steps_completed": model.step}) as (path, _):
            model.save(path / "model.json")

    while model.step < LAST:
        metrics = model.train_batch()
        if model.step % 10 == 0:
            core.train.report_training_metrics(model.step, metrics)
        if model.step % EPOCH == 0:
            core.train.report_validation_metrics(model.step, {"weight": model.weight})
            save()
        stop = core.preempt.should_preempt()
        while model.step == held.get(info.trial._trial_run_id) and not stop:
            time.sleep(0.01)
            stop = core.preempt.should_preempt()
        if stop:
            if model.step % EPOCH:
                save()
            return


if __name__ == "__main__":
    import detslurm as det

    with det.core.init() as core:
        main(core, det.get_cluster_info())
