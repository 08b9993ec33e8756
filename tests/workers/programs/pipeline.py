"""Trains a pipeline on the processes that the launcher started, and again in one process: `pipeline.py OUT`.

Each of the first two starts writes a file once it is training, and continues when a stage was killed.
"""

import contextlib
import json
import os
import sys
import time
import types
from pathlib import Path

import keras
import numpy as np

import unisono
from unisono.distribute.pipeline import StageError, connect
from unisono.distribute.workers import server_watch

OUT = Path(sys.argv[1])
START = int(os.environ["UNISONO_RESTART"])
ROWS, FEATURES = 26, 5


def train(pipeline, epochs=5, **fit):
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, FEATURES)), rng.normal(size=(ROWS, 2))
    with contextlib.nullcontext() if pipeline is None else pipeline.scope():
        layers = keras.layers
        first = layers.Dense(8, activation="tanh"), layers.BatchNormalization()
        second = layers.Dense(8, activation="tanh", kernel_regularizer="l2"), layers.Dropout(0.3)
        model = unisono.Sequential([keras.Input((FEATURES,)), *first, *second, layers.Dense(2)])
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, **fit).history
    return model, history, model.predict(x, verbose=0)


def clock():
    """The time in seconds, faster once the second start has lost a stage: until then stages are only slow."""
    return time.monotonic() * (1000 if (OUT / "struck-1").exists() and START == 1 else 1)


class Struck(keras.callbacks.Callback):
    """Reports that some steps are done, and waits until a stage was killed."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations > 5 + 3 * START:
            (OUT / f"training-{START}").write_text(str(os.getpid()))
            while not (OUT / f"struck-{START}").exists():
                time.sleep(0.01)


def main():
    keras.config.set_floatx("float64")
    server_watch.time = types.SimpleNamespace(monotonic=clock, sleep=time.sleep)
    devices = connect()
    kwargs = {
        "schedule": "1f1b",
        "rematerialize": True,
        "partition": [2, *[1] * (len(devices) - 2), 5 - len(devices)],
    }
    pipeline = unisono.distribute.Pipeline(devices, micro_batches=2, **kwargs)
    callbacks = [unisono.callbacks.BackupAndRestore(OUT / "backup", save_freq=1)]
    if START < 2:
        callbacks.append(Struck())
    model, history, answers = train(pipeline, callbacks=callbacks)
    homes = [variable.value.device for variable in model.weights]
    near = unisono.distribute.Pipeline(["CPU:0"] * len(devices), micro_batches=2, **kwargs)
    expected, expected_history, expected_answers = train(near)
    result = {
        "devices": devices,
        "homes": homes,
        "weights": max(
            float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), expected.get_weights())
        ),
        "answers": float(np.abs(answers - expected_answers).max()),
        "history": history == expected_history,
        "summary": pipeline.summary(),
    }
    (OUT / "result.json").write_text(json.dumps(result))


try:
    main()
except StageError as error:
    (OUT / f"lost-{START}").write_text(str(error))
    raise
