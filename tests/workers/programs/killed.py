"""A training run whose workers kill themselves as specified ("0:5 1:11": in attempt 0 the chief after 5 steps, ...)."""

import hashlib
import os
import signal
import sys

import keras
import numpy as np

import unisono
from unisono.distribute import auto_strategy, is_chief, worker_index

out, backup, kills = sys.argv[1], sys.argv[2], sys.argv[3:]
attempt = int(os.environ.get("UNISONO_RESTART", "0"))


class Killed(keras.callbacks.Callback):
    """Kills this worker without warning."""

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        if f"{attempt}:{worker_index()}:{step}" in kills:
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(5)
random = np.random.default_rng(0)
x, y = random.normal(size=(44, 6)).astype("float32"), random.integers(0, 3, size=44)
with auto_strategy().scope():
    hidden, normal = keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization()
    model = unisono.Sequential(
        [keras.Input((6,)), hidden, normal, keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
callbacks = [Killed(), unisono.callbacks.BackupAndRestore(backup, save_freq=2)]
history = model.fit(x, y, batch_size=10, epochs=3, verbose=2, callbacks=callbacks)
bits = [w.numpy().tobytes() for w in [*model.variables, *model.optimizer.variables]]
if is_chief():
    print("loss", history.history["loss"])
    with open(f"{out}/result", "w") as file:
        file.write(f"{hashlib.sha256(b''.join(bits)).hexdigest()} {history.history}")
