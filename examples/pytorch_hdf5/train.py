"""Train ImagesTrial with the Trainer, for so many epochs: train.py EPOCHS."""

import sys

from model_def import ImagesTrial

import detslurm as det
from detslurm import pytorch


def main(epochs):
    info = det.get_cluster_info()
    assert info is not None, "submit this with `detslurm submit const.yaml`"
    with pytorch.init(hparams=info.trial.hparams) as context:
        pytorch.Trainer(ImagesTrial(context), context).fit(
            max_length=pytorch.Epoch(epochs),
            validation_period=pytorch.Epoch(1),
            reporting_period=pytorch.Batch(20),
            latest_checkpoint=info.latest_checkpoint,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
