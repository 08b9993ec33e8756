"""A run in which one worker has a given fault in a callback: "0:stop", "1:lock"; under the launcher."""

import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import keras
import numpy as np

import unisono
from unisono.distribute import auto_strategy, worker_index
from unisono.distribute.workers import peer_monitor, records

who, fault = sys.argv[1].split(":")
folder = Path(os.environ["UNISONO_RECORDS"])
os.environ["UNISONO_TIMEOUT"] = "600"  # the launcher's timeout is short: a slow worker must not count as lost
hangs = folder / "hangs"


def recorded():
    """This worker's record, which is written once a second."""
    return records.read(folder, os.getpid()) or records.Record("", 0, 0.0)


def hang():
    """Hangs; the clock of the other worker, which waits, runs faster once this worker's record says where."""

    def tell():
        while not recorded().place.startswith("hang ("):
            time.sleep(0.01)
        hangs.touch()

    threading.Thread(target=tell, daemon=True).start()
    lock = threading.Lock()
    for _ in range(2):
        lock.acquire()


class Misbehaves(keras.callbacks.Callback):
    """Has its fault after 20 steps or more."""

    def on_train_batch_end(self, batch, logs=None):
        if (
            worker_index() == int(who)
            and self.model.optimizer.iterations.numpy() >= 20
            and "epoch" in recorded().position
        ):
            print("misbehaves", flush=True)
            if fault == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "exit":
                sys.exit(0)
            hang()


peer_monitor.time = types.SimpleNamespace(
    monotonic=lambda: time.monotonic() * (1000 if hangs.exists() else 1)
)
with auto_strategy().scope():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((40, 2), "float32")
model.fit(x, x[:, :1], batch_size=4, epochs=1000, verbose=0, callbacks=[Misbehaves()])
