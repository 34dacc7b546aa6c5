"""Fine-tune a small transformer, as Hugging Face's run_*.py do."""

from dataclasses import dataclass, field

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ModelArguments:
    hidden_size: int = field(default=32, metadata={"help": "Width of the model."})
    num_layers: int = field(default=1, metadata={"help": "Number of its layers."})


class Sequences(torch.utils.data.Dataset):
    """The label is the most frequent of the first ten tokens."""

    def __init__(self, split):
        made = torch.Generator().manual_seed(len(split))
        rows = 1500 if split == "train" else 300
        self.labels = torch.randint(10, (rows,), generator=made)
        self.tokens = torch.randint(17, (rows, 64), generator=made)
        self.tokens[:, ::3] = self.labels[:, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def compute_metrics(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    config = BertConfig(
        vocab_size=17,
        hidden_size=model_args.hidden_size,
        num_hidden_layers=model_args.num_layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=10,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=Sequences("train"),
        eval_dataset=Sequences("validation"),
        compute_metrics=compute_metrics,
    )
    if training_args.do_train:
        last = get_last_checkpoint(training_args.output_dir)
        print("resuming from", last, flush=True)
        trainer.train(resume_from_checkpoint=last)
    if training_args.do_eval:
        trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
