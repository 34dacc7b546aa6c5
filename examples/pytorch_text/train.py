"""Train TextTrial with the Trainer, for so many batches: train.py BATCHES."""

import sys

from model_def import TextTrial

import detslurm as det
from detslurm import pytorch

AGGREGATION = 2  # batches whose gradients make one step of the optimizer


def main(batches):
    info = det.get_cluster_info()
    assert info is not None, "submit this with `detslurm submit const.yaml`"
    with pytorch.init(hparams=info.trial.hparams, aggregation_frequency=AGGREGATION) as context:
        pytorch.Trainer(TextTrial(context), context).fit(
            max_length=pytorch.Batch(batches),
            validation_period=pytorch.Batch(max(batches // 8, 1)),
            checkpoint_period=pytorch.Batch(max(batches // 4, 1)),
            latest_checkpoint=info.latest_checkpoint,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
