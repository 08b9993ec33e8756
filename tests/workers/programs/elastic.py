"""A worker of an elastic launch: `elastic.py OUT EPOCHS [eager] [mesh] [alone]` trains in float64, prints place and weights.

With "mesh", weights are divided over pairs of devices, and over all workers. With "alone" the first attempt waits for no
other machine, though the timeout of later attempts is long.

Before an epoch for which there is a file OUT/hold-EPOCH it waits until that is gone.
"""

import os
import signal
import sys
import time

import keras
import numpy as np

import unisono

out, epochs = sys.argv[1], int(sys.argv[2])
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(1)
if "mesh" in sys.argv:
    keras.distribution.initialize()
    replicas = len(keras.distribution.list_devices()) // 2
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((replicas, 2), ("batch", "model")))
    layouts["dense/kernel"], layouts["dense_1/kernel"] = ("batch", "model"), ("model", None)
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    keras.distribution.set_distribution(distribution)
if "alone" in sys.argv and os.environ.get("UNISONO_RESTART") == "0":
    os.environ["UNISONO_TIMEOUT"] = "1"
strategy = unisono.distribute.auto_strategy()
with strategy.scope():
    model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(unisono.optimizers.Adam(0.1), "mse", jit_compile=False, run_eagerly="eager" in sys.argv)
x = np.random.default_rng(1).normal(size=(20, 4))
place = f"{unisono.distribute.worker_index()} of {unisono.distribute.num_workers()}"


class Holds(keras.callbacks.Callback):
    """Says where training is, and waits while the test holds it; says meanwhile whether SIGTERM has come."""

    def on_epoch_begin(self, epoch, logs=None):
        print(f"epoch {epoch} as {place}", flush=True)
        handle = signal.signal(signal.SIGTERM, lambda *given: print("SIGTERM", flush=True) or handle(*given))
        while os.path.exists(f"{out}/hold-{epoch}"):
            time.sleep(0.02)
        signal.signal(signal.SIGTERM, handle)


model.fit(
    x,
    x[:, :1],
    batch_size=5,
    epochs=epochs,
    verbose=0,
    callbacks=[Holds(), unisono.callbacks.BackupAndRestore(f"{out}/backup")],
)
weights = np.concatenate([w.ravel() for w in model.get_weights()])
print("joined", place, weights.tobytes().hex(), flush=True)
