"""A loop of collectives in which worker 1 has a given fault; the survivors print what they see."""

import contextlib
import os
import pathlib
import signal
import sys
import time
import types

import tensorflow as tf

import unisono  # noqa: F401  guards the strategy below
from unisono.distribute.workers import peer_monitor
from unisono.distribute.workers.peer_monitor import monitored_collective

fault = sys.argv[2]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
worker = int(strategy.cluster_resolver.task_id)


@tf.function
def step(x):
    def on_replica(x):
        return tf.distribute.get_replica_context().all_reduce("sum", tf.identity(x))

    return strategy.run(on_replica, args=(x,))


def misbehave():
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "sleeps":
        time.sleep(1000)
    if fault == "raises":
        raise ValueError("my own mistake")


for number in range(60):
    if number == 50:
        print("at step 50", flush=True)
        if fault == "sleeps":
            peer_monitor.time = types.SimpleNamespace(monotonic=lambda: 20 * time.monotonic())
        if worker == 1:
            while "at step 50" not in (pathlib.Path(sys.argv[1]) / "0.out").read_text():
                time.sleep(0.01)  # worker 0 may still be in the previous step's collective
            misbehave()
    try:
        with monitored_collective(ran_before=number > 0):
            step(tf.constant(1.0))
    except tf.errors.OpError as error:
        print(f"lost: {type(error).__name__}: {error}", flush=True)
        with contextlib.suppress(Exception):
            strategy.extended.dispose()
        raise
print("done", flush=True)
