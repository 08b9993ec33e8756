"""A worker that finds its cluster itself: trains, and prints its place and the bits of its weights, also into a file."""

import os
import pathlib
import sys

import keras
import numpy as np

import unisono
from unisono.distribute.workers import joining

if sys.argv[2:] == ["gone"]:  # worker 1 exits after the rendezvous, before TensorFlow starts

    def meet_and_end(place, *arguments):
        peers = meet(place, *arguments)
        return peers if place.rank == 0 else os._exit(5)

    joining.meet, meet = meet_and_end, joining.meet

keras.utils.set_random_seed(1)
strategy = unisono.distribute.auto_strategy()
with strategy.scope():
    model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    model.compile(unisono.optimizers.SGD(0.1), "mse", jit_compile=False)
x = np.random.default_rng(1).normal(size=(10, 4)).astype("float32")
callbacks = [unisono.callbacks.BackupAndRestore(sys.argv[2])] if len(sys.argv) > 2 else []


class Dies(keras.callbacks.Callback):
    """Kills the last worker in the second epoch of the first attempt."""

    def on_epoch_begin(self, epoch, logs=None):
        last = unisono.distribute.worker_index() == unisono.distribute.num_workers() - 1
        if epoch == 1 and last and os.environ.get("UNISONO_RESTART") == "0":
            os.kill(os.getpid(), 9)


model.fit(
    x,
    x[:, :1],
    batch_size=5,
    epochs=3,
    shuffle=False,
    verbose=0,
    callbacks=[*callbacks, Dies()] if callbacks else [],
)
place = f"{unisono.distribute.worker_index()} of {unisono.distribute.num_workers()}"
weights = np.concatenate([w.ravel() for w in model.get_weights()])
line = f"joined {place} {weights.tobytes().hex()}"
print(line, flush=True)
pathlib.Path(sys.argv[1], f"joined-{place[0]}").write_text(
    line
)  # `mpirun` may join the lines of two processes
