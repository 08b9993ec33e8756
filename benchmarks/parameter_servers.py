"""Measures steps per second with parameter servers, by number of workers and mode, against tf_keras in the same run."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

from benchmarks.tables import publish
from unisono.distribute.launcher.tasks import RequestedCluster, plan

_STOP_AND_GO = """
import os, signal, sys, time
while True:
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(0.16)
    os.kill(int(sys.argv[1]), signal.SIGCONT)
    time.sleep(0.04)
"""
_WAIT = 60  # ms
_LIMIT = 300  # seconds for one line
_OURS = {"asynchronous": {}, "max_staleness=3": {"max_staleness": 3}}


@contextlib.contextmanager
def servers(workers: int, count: int, slow: str):
    """Starts the processes and sets TF_CONFIG of this process. Yields a function that slows the last worker down.

    `slow`: "" (the function does nothing) or "last".
    """
    tasks = {
        task.name: task for task in plan(RequestedCluster(workers=workers, parameter_servers=count), ["-"])
    }
    os.environ.update(tasks.pop("chief").env)
    processes = {
        name: subprocess.Popen(
            task.command, env={**os.environ, **task.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for name, task in tasks.items()
    }
    slowing: list[subprocess.Popen] = []

    def slow_down() -> None:
        # In another process: a thread may wait for the GIL, held by the thread that waits for the stopped worker.
        if slow:
            pid = str(processes[f"worker-{workers - 1}"].pid)
            slowing.append(subprocess.Popen([sys.executable, "-c", _STOP_AND_GO, pid]))

    try:
        yield slow_down
    finally:
        for process in slowing:
            process.kill()
            process.wait()
        for process in processes.values():
            process.kill()
            process.wait()


def _waiting(keras):
    """A layer that returns its inputs after `_WAIT` ms, during which the worker's CPU is idle.

    TensorFlow waits twice: for the number, and for the end of the dataset.
    """
    import tensorflow as tf

    class Waiting(keras.layers.Layer):
        def call(self, x):
            sleeps = tf.raw_ops.SleepDataset(
                input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(1)),
                sleep_microseconds=tf.constant(500 * _WAIT, tf.int64),
                output_types=[tf.int64],
                output_shapes=[[]],
            )
            number = tf.data.experimental.from_variant(sleeps, tf.TensorSpec([], tf.int64))
            late = number.reduce(tf.constant(0, tf.int64), lambda s, n: n)
            return x + tf.cast(late, x.dtype)

    return Waiting()


def measure(which: str, workers: int, count: int, steps: int, slow: str, waits: bool) -> float:
    """Steps per second of one `fit` of `steps` steps, after a `fit` that compiled everything."""
    with servers(workers, count, slow) as slow_down:
        import numpy as np
        import tensorflow as tf

        x = np.random.default_rng(0).normal(size=(6400, 64)).astype("float32")
        labels = (x[:, 0] > 0).astype("int64")
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if which == "tf_keras":
            import tf_keras as keras

            strategy = tf.distribute.ParameterServerStrategy(resolver)
            sequential, adam = keras.Sequential, keras.optimizers.Adam
            data = tf.data.Dataset.from_tensor_slices((x, labels)).shuffle(6400).repeat().batch(64)
            arguments: dict = {"steps_per_epoch": steps}
        else:
            import keras

            import unisono

            strategy = unisono.distribute.ParameterServerStrategy(resolver, **_OURS[which])
            sequential, adam = unisono.Sequential, unisono.optimizers.Adam
            data, arguments = x, {"y": labels, "batch_size": 64}
        with strategy.scope():
            layers = [_waiting(keras)] if waits else []
            layers += [
                keras.layers.Dense(256, "relu"),
                keras.layers.Dense(256, "relu"),
                keras.layers.Dense(2),
            ]
            model = sequential([keras.Input((64,)), *layers])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(adam(1e-3), loss, metrics=["accuracy"])
        if which == "tf_keras":
            model.fit(data, epochs=1, verbose=0, **arguments)
            epochs = 1
        else:
            model.fit(data, epochs=3, verbose=0, **arguments)
            epochs = max(1, steps // 100)
        slow_down()
        began = time.perf_counter()
        model.fit(data, epochs=epochs, verbose=0, **arguments)
        seconds = time.perf_counter() - began
        return (steps if which == "tf_keras" else 100 * epochs) / seconds


def _in_own_process(
    which: str, workers: int, count: int, steps: int, slow: str, waits: bool = False
) -> float | None:
    """Runs `measure` in a new process; if it fails or takes too long, prints the reason and returns None."""
    command = [sys.executable, "-m", "benchmarks.parameter_servers", "--one"]
    command.append(json.dumps([which, workers, count, steps, slow, waits]))
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, env=env, **pipes)
    try:
        out, err = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        print(f"{which} with {workers} worker(s) took more than {_LIMIT} s", file=sys.stderr)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its servers, if it is still running
    if "RATE " not in out:
        print(err[-2000:], file=sys.stderr)
        return None
    return float(out.rpartition("RATE ")[2])


def main() -> None:
    """Prints the tables.

        python -m benchmarks.parameter_servers [--steps 2000] [--workers 1,2] [--servers 1]

    Each line of a table has its own cluster on this machine: a coordinator, workers and servers as processes.
    tf_keras is left out if it is not installed. In the second table, the last worker is stopped for 160 of every 200
    ms, and each step also waits 60 ms on its worker, as it would for an accelerator. Without this wait, workers on
    the same few cores would slow each other down, and the sum of their separate rates would mean nothing.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="steps of a measured run")
    parser.add_argument("--workers", default="1,2", help="numbers of workers")
    parser.add_argument("--servers", type=int, default=1, help="number of parameter servers")
    parser.add_argument("--only-slowed", action="store_true", help="skip the table of modes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        rate = measure(*json.loads(options.one))
        print(f"RATE {rate}", flush=True)
        os._exit(0)  # TensorFlow would wait for the servers
    peer = importlib.util.find_spec("tf_keras") is not None
    rows: list[list[str]] = []
    counts = [] if options.only_slowed else [int(n) for n in options.workers.split(",")]
    for workers in counts:
        base = _in_own_process("tf_keras", workers, options.servers, options.steps, "") if peer else None
        if base is not None:
            rows.append([str(workers), "tf_keras (asynchronous)", f"{base:.0f}", "1.00"])
        for mode in _OURS:
            rate = _in_own_process(mode, workers, options.servers, options.steps, "")
            if rate is not None:
                rows.append([str(workers), mode, f"{rate:.0f}", f"{rate / base:.2f}" if base else "-"])
                print(" ".join(rows[-1]), flush=True)
    publish("parameter_servers", ["workers", "mode", "steps a second", "of tf_keras'"], rows)
    _slowed(options)


def _slowed(options: argparse.Namespace) -> None:
    """Measures the modes with one slow worker."""
    print(f"\nOne worker runs at a fifth of its speed; each step waits {_WAIT} ms on its worker:")
    few = max(100, options.steps // 5)
    own = [_in_own_process("asynchronous", 1, options.servers, few, slow, True) for slow in ("", "last")]
    if None not in own:
        print(f"    alone: {own[0]:.1f} and {own[1]:.1f} steps/s, together {sum(own):.1f}")
    rows = []
    for mode in _OURS:
        rate = _in_own_process(mode, 2, options.servers, few, "last", True)
        if rate is not None:
            rows.append([mode, f"{rate:.1f}", "-" if None in own else f"{rate / sum(own):.2f}"])
            print(" ".join(rows[-1]), flush=True)
    alone = "" if None in own else f" ({own[0]:.1f} and {own[1]:.1f})"
    head = ["mode", "steps a second", f"of the sum of the workers' own{alone}"]
    publish("parameter_servers_slowed", head, rows)


if __name__ == "__main__":
    main()
