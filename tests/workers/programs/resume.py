"""A training run in which one worker receives SIGTERM, and its continuation: bitwise identical to an uninterrupted run."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import unisono


class Obedient(keras.callbacks.Callback):
    """Sends this process SIGTERM in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.fit_state.epoch == 1 and batch == 1:
            os.kill(os.getpid(), signal.SIGTERM)


class Logs(keras.callbacks.Callback):
    """The logs of every step."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append([batch, logs["loss"], logs["accuracy"]])

    def get_state(self):
        return self.logs

    def set_state(self, state):
        self.logs = list(state)


def train(strategy, backup=None, obedient=False):
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5)).astype("float32")
    y = (x @ rng.normal(size=(5, 3))).argmax(1)
    with strategy.scope():
        hidden, dropout = keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.3)
        model = unisono.Sequential([hidden, dropout, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        aggregator = unisono.optimizers.HalfPrecisionAggregation("bfloat16")
        model.compile(unisono.optimizers.Adam(gradient_aggregator=aggregator), loss, metrics=["accuracy"])
    logs = Logs()
    callbacks = [logs, keras.callbacks.EarlyStopping("val_loss", patience=3)]
    if backup is not None:
        callbacks.append(unisono.callbacks.BackupAndRestore(backup, save_freq=2))
    if obedient:
        callbacks.append(Obedient())
    options = {"validation_data": (x[:20], y[:20]), "callbacks": callbacks}
    history = model.fit(x, y, batch_size=12, epochs=3, verbose=0, **options)
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.asarray(tf.convert_to_tensor(v.value)) for v in variables]
    return values, history.history, logs.logs


def main():
    out = Path(sys.argv[1])
    strategy = unisono.distribute.auto_strategy()
    index = strategy.cluster_resolver.task_id
    expected = train(strategy)
    status = None
    try:
        train(strategy, out / "backup", obedient=index == 1)
    except SystemExit as error:
        status = error.code
    info = unisono.callbacks.latest_backup(out / "backup")
    print("left with", status, "at", info.epoch, info.step, info.status, flush=True)
    resumed = train(strategy, out / "backup")
    same = all(a.tobytes() == b.tobytes() for a, b in zip(resumed[0], expected[0], strict=True))
    history, logs = (resumed[part] == expected[part] for part in (1, 2))
    print("variables", same, "history", history, "logs", logs, flush=True)
    with contextlib.suppress(OSError):
        print("files", os.listdir(out / "backup"), flush=True)


if __name__ == "__main__":
    main()
