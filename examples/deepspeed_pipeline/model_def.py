"""A classifier of digits, cut into stages that run on different slots."""

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

from detslurm import pytorch
from detslurm.pytorch.deepspeed import DeepSpeedTrial, overwrite_deepspeed_config


def layers(width):
    """What each slot builds only its stage of."""
    return [
        LayerSpec(nn.Linear, 64, width),
        LayerSpec(nn.ReLU),
        LayerSpec(nn.Linear, width, width),
        LayerSpec(nn.ReLU),
        LayerSpec(nn.Linear, width, 10),
    ]


class PipelineTrial(DeepSpeedTrial):
    def __init__(self, context):
        self.context = context
        config = overwrite_deepspeed_config(
            "ds_config.json", context.get_hparams().get("overwrite_deepspeed_args", {})
        )
        model = PipelineModule(
            layers(context.get_hparam("width")),
            num_stages=context.get_hparam("stages"),
            loss_fn=nn.functional.cross_entropy,
        )
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        self.engine = context.wrap_model_engine(engine)
        images, labels = load_digits(return_X_y=True)
        self.train_data, self.test_data = random_split(
            TensorDataset(torch.tensor(images / 16).float(), torch.tensor(labels)),
            [1536, 261],
            torch.Generator().manual_seed(0),
        )

    def build_training_data_loader(self):
        return self.loader(self.train_data, shuffle=True)

    def build_validation_data_loader(self):
        return self.loader(self.test_data)

    def loader(self, data, **options):
        size = self.context.get_train_micro_batch_size_per_gpu()
        return pytorch.DataLoader(data, batch_size=size, drop_last=True, **options)

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        """The engine takes all micro-batches of a batch from the iterator."""
        return {"loss": self.engine.train_batch(dataloader_iter)}

    def evaluate_batch(self, dataloader_iter, batch_idx):
        return {"validation_loss": self.engine.eval_batch(dataloader_iter)}
