"""Runs one worker of one trainer for `workers_efficiency`, pinned to a core, and prints its seconds per step."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time

SAMPLES, WARM_UP = 512, 10
WIDTHS: tuple[int, ...] = ()


def main() -> None:
    """Runs one trainer, in the environment of a worker. The script imports nothing from its parent.

    CORE=0 python benchmarks/worker_loops.py ours --widths 512-1024-1024-10 --steps 40
    """
    global WIDTHS
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trainer", choices=CHILDREN)
    parser.add_argument("--widths", required=True, help="units of the layers, such as 512-1024-10")
    parser.add_argument("--steps", type=int, required=True, help="steps of a measured run")
    options = parser.parse_args()
    WIDTHS = tuple(map(int, options.widths.split("-")))
    os.sched_setaffinity(0, {int(os.environ["CORE"])})
    print(json.dumps({"seconds": CHILDREN[options.trainer](options.steps)}), flush=True)


def numbers() -> int:
    """The number of values that a step all-reduces."""
    return sum((n + 1) * m for n, m in itertools.pairwise(WIDTHS))


def data():
    """NumPy arrays with one worker's samples, the same on all workers."""
    import numpy as np

    random = np.random.default_rng(0)
    return random.normal(size=(SAMPLES, WIDTHS[0])).astype("float32"), random.integers(
        0, WIDTHS[-1], size=SAMPLES
    )


def one_core():
    """TensorFlow with one thread, as PyTorch with OMP_NUM_THREADS=1."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf


def ours(steps: int, aggregator: str = "") -> float:
    tf = one_core()
    import keras
    import numpy as np

    import unisono

    class Clock(keras.callbacks.Callback):
        def steps_until_call(self, step):
            return WARM_UP - step if step < WARM_UP else steps

        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 == WARM_UP:
                self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds = (time.perf_counter() - self.began) / (ends - WARM_UP)

    strategy = unisono.distribute.auto_strategy()
    x, y = data()
    count = strategy.num_replicas_in_sync
    x, y = np.concatenate([x] * count), np.concatenate([y] * count)
    stage = unisono.optimizers.HalfPrecisionAggregation(aggregator) if aggregator else None
    with strategy.scope():
        layers = [keras.layers.Dense(width, activation="relu") for width in WIDTHS[1:-1]]
        model = unisono.Sequential([keras.Input((WIDTHS[0],)), *layers, keras.layers.Dense(WIDTHS[-1])])
        model.compile(
            unisono.optimizers.SGD(0.01, gradient_aggregator=stage),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
            steps_per_execution=WARM_UP,
        )
    clock = Clock()
    batches = tf.data.Dataset.from_tensors((x, y)).repeat()
    ends = WARM_UP + steps - steps % WARM_UP
    model.fit(batches, steps_per_epoch=ends, shuffle=False, verbose=0, callbacks=[clock])
    return clock.seconds


def tensorflow(steps: int) -> float:
    tf = one_core()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x, y = map(tf.constant, data())
    with strategy.scope():
        shapes = itertools.pairwise(WIDTHS)
        variables = [
            tf.Variable(v) for n, m in shapes for v in (tf.random.normal([n, m], stddev=0.04), tf.zeros([m]))
        ]

    def replica(x, y):
        with tf.GradientTape() as tape:
            h = x
            for i in range(0, len(variables), 2):
                h = h @ variables[i] + variables[i + 1]
                h = tf.nn.relu(h) if i < len(variables) - 2 else h
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, h))
        gradients = tape.gradient(loss, variables)
        gradients = tf.distribute.get_replica_context().all_reduce("mean", gradients)
        for variable, gradient in zip(variables, gradients):
            copy = strategy.experimental_local_results(variable)[0]
            copy.assign_sub(0.01 * gradient)

    @tf.function
    def loop(count):
        for _ in tf.range(count):
            strategy.run(replica, args=(x, y))

    loop(tf.constant(WARM_UP))
    began = time.perf_counter()
    loop(tf.constant(steps))
    return (time.perf_counter() - began) / steps


def torch(steps: int) -> float:
    import torch

    torch.set_num_threads(1)
    count = int(os.environ["WORLD_SIZE"])
    pairs = list(itertools.pairwise(WIDTHS))
    layers = []
    for n, m in pairs:
        layers += [torch.nn.Linear(n, m), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    if count > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = map(torch.from_numpy, data())
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            began = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    seconds = (time.perf_counter() - began) / steps
    if count > 1:
        torch.distributed.destroy_process_group()
    return seconds


def bare(
    steps: int, packs: int = 1, dtype: str = "float32", collective: str = "reduce", piece: int = 64 * 1024
) -> float:
    """All-reduces as many bytes as the gradients have, without computation, in messages of `piece` bytes."""
    tf = one_core()
    from unisono.compat.tensorflow_private.clusters import send_in_pieces
    from unisono.compat.tensorflow_private.strategies import all_gather, all_to_all, launchers_of

    send_in_pieces(piece)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    count, [launcher] = strategy.num_replicas_in_sync, launchers_of(strategy)
    size = numbers() // (packs * count) * count

    def gathered(value):
        return tf.add_n(tf.split(all_gather(launcher, value), count))

    def scattered(value):
        mine = tf.add_n(tf.unstack(all_to_all(launcher, tf.reshape(value, [count, -1]))))
        return all_gather(launcher, mine)

    collectives = {"reduce": launcher.all_reduce, "gather": gathered, "scatter": scattered}

    def replica(values):
        return [collectives[collective](tf.identity(value)) for value in values]  # on this replica's device

    @tf.function
    def loop(times):
        values = [tf.ones([size], dtype) for _ in range(packs)]
        for _ in tf.range(times):
            sums = strategy.run(replica, args=(values,))
            values = [0.5 * total for total in sums]  # the next sum needs this one
        return values

    loop(tf.constant(WARM_UP))
    began = time.perf_counter()
    loop(tf.constant(steps))
    return (time.perf_counter() - began) / steps


def bare_torch(steps: int) -> float:
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    value = torch.ones(numbers())
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            began = time.perf_counter()
        torch.distributed.all_reduce(value)
        value *= 0.5
    seconds = (time.perf_counter() - began) / steps
    torch.distributed.destroy_process_group()
    return seconds


CHILDREN = {
    "ours": ours,
    "ours_bfloat16": lambda steps: ours(steps, "bfloat16"),
    "tensorflow": tensorflow,
    "torch": torch,
    "bare_1": bare,
    "bare_4096": lambda steps: bare(steps, piece=4096),
    "bare_packs": lambda steps: bare(steps, packs=6),
    "bare_gather": lambda steps: bare(steps, collective="gather"),
    "bare_scatter": lambda steps: bare(steps, collective="scatter"),
    "bare_bfloat16": lambda steps: bare(steps, dtype="bfloat16"),
    "bare_torch": bare_torch,
}

if __name__ == "__main__":
    sys.exit(main())
