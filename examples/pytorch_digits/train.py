"""Train DigitsTrial with the Trainer: in a job, or by hand with `python3 train.py --epochs 2`."""

import argparse
from pathlib import Path

import yaml
from model_def import DigitsTrial

import detslurm as det
from detslurm import pytorch


def main(epochs):
    info = det.get_cluster_info()  # None outside of a job
    if info is not None:
        hparams, latest = info.trial.hparams, info.latest_checkpoint
    else:
        config = yaml.safe_load((Path(__file__).parent / "const.yaml").read_text())
        hparams, latest = config["hyperparameters"], None
    with pytorch.init(hparams=hparams) as context:
        pytorch.Trainer(DigitsTrial(context), context).fit(
            max_length=pytorch.Epoch(epochs),
            validation_period=pytorch.Epoch(1),
            reporting_period=pytorch.Batch(10),
            latest_checkpoint=latest,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)
