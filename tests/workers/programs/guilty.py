"""A training in which one worker misbehaves within a callback as it is told: "0:stop", "1:lock"; under the launcher."""

import os
import signal
import sys
import threading
from pathlib import Path

import keras
import numpy as np

import unisono
from unisono.distribute import auto_strategy, worker_index
from unisono.distribute.workers import record

who, fault = sys.argv[1].split(":")


def recorded():
    """Whether this worker's record, which is written once a second, says where training is."""
    found = record.read(Path(os.environ["UNISONO_RECORDS"]), os.getpid())
    return found is not None and "epoch" in found.position


class Misbehaves(keras.callbacks.Callback):
    """Misbehaves after 20 steps or more."""

    def on_train_batch_end(self, batch, logs=None):
        if worker_index() == int(who) and self.model.optimizer.iterations.numpy() >= 20 and recorded():
            print("misbehaves", flush=True)
            if fault == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "exit":
                sys.exit(0)
            lock = threading.Lock()
            for _ in range(2):
                lock.acquire()


with auto_strategy().scope():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((40, 2), "float32")
model.fit(x, x[:, :1], batch_size=4, epochs=1000, verbose=0, callbacks=[Misbehaves()])
