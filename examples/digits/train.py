"""Train a small network on scikit-learn's digits; stops and goes on anywhere without a trace.

Everything that training depends on (weights, optimizer, random numbers, position in the epoch) is
in the checkpoint, so a run that was interrupted ends with the same bits as one that was not.
"""

import time

import torch
from sklearn.datasets import load_digits
from torch import nn

import detslurm as det

REPORT_EVERY = 10  # batches


def load_data():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[300:], order[:300]
    return (images[train], labels[train]), (images[test], labels[test])


def build_model(channels):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(2 * channels * 16, 10),
    )


def epoch_batches(count, batch_size, seed, epoch):
    generator = torch.Generator().manual_seed(seed * 1000 + epoch)
    return torch.randperm(count, generator=generator).split(batch_size)


@torch.no_grad()
def evaluate(model, images, labels):
    model.eval()
    output = model(images)
    model.train()
    return {
        "loss": nn.functional.cross_entropy(output, labels).item(),
        "accuracy": (output.argmax(1) == labels).float().mean().item(),
    }


def save(core_context, model, optimizer, step):
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "step": step,
    }
    with core_context.checkpoint.store_path({"steps_completed": step}) as (path, _):
        torch.save(state, path / "state.pt")


def restore(core_context, model, optimizer, storage_id):
    with core_context.checkpoint.restore_path(storage_id) as path:
        state = torch.load(path / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return state["step"]


def main(core_context, info):
    hparams, seed = info.trial.hparams, info.trial.trial_seed
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    (images, labels), test = load_data()
    model = build_model(hparams["channels"])
    optimizer = torch.optim.Adam(model.parameters(), lr=hparams["learning_rate"])

    step = 0
    if info.latest_checkpoint is not None:
        step = restore(core_context, model, optimizer, info.latest_checkpoint)
        print(f"going on after batch {step}")

    per_epoch = len(epoch_batches(len(labels), hparams["batch_size"], seed, 0))
    for op in core_context.searcher.operations():
        while step < op.length * per_epoch:
            epoch, position = divmod(step, per_epoch)
            batch = epoch_batches(len(labels), hparams["batch_size"], seed, epoch)[position]
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(hparams["seconds_per_batch"])
            step += 1

            if step % REPORT_EVERY == 0:
                core_context.train.report_training_metrics(step, {"loss": loss.item()})
            if step % per_epoch == 0:
                metrics = evaluate(model, *test)
                print(f"epoch {epoch + 1}: accuracy {metrics['accuracy']:.3f}")
                core_context.train.report_validation_metrics(step, metrics)
                op.report_progress(epoch + 1)
                save(core_context, model, optimizer, step)
            if core_context.preempt.should_preempt():
                if step % per_epoch != 0:
                    save(core_context, model, optimizer, step)
                return
        op.report_completed(evaluate(model, *test)["accuracy"])


if __name__ == "__main__":
    info = det.get_cluster_info()
    assert info is not None, "submit this with `detslurm submit experiment.yaml`"
    with det.core.init() as core_context:
        main(core_context, info)
