"""A Keras script with argparse; BackupAndRestore goes on where a run was interrupted."""

import argparse
import json

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=0.01)
parser.add_argument("--units", type=int, default=32)
parser.add_argument("--epochs", type=int, default=40)
args = parser.parse_args()

rng = np.random.default_rng(0)
y = rng.integers(10, size=1800)
x = rng.normal(size=(10, 64))[y] + 2 * rng.normal(size=(1800, 64))
model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(args.units, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(args.learning_rate),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
json_logging = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: print(json.dumps({"epoch": epoch, **logs}), flush=True)
)
model.fit(
    x[:1500],
    y[:1500],
    epochs=args.epochs,
    validation_data=(x[1500:], y[1500:]),
    callbacks=[keras.callbacks.BackupAndRestore("checkpoints/backup"), json_logging],
    verbose=0,
)
