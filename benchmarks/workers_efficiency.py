"""Two worker processes, pinned to a core each: how much of their double work do they keep?

    python benchmarks/workers_efficiency.py [--rounds 3] [--steps 40]

Each trainer takes the same step (MLP 512-1024-1024-10, 512 rows for each worker, SGD) alone on one core, and on two
workers that sum their gradients over loopback. Efficiency is the time alone over the time together; with collectives that
cost nothing it would be 100 %. Trainers take turns in every round; medians are printed, with the spread over the rounds.

`ours` is `unisono.Model.fit`; `tensorflow` a hand-written loop of `strategy.run` and `all_reduce` in one `tf.function`;
`torch` is PyTorch's DistributedDataParallel with gloo, where PyTorch is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time

ROWS, WIDTHS = 512, (512, 1024, 1024, 10)
WARM_UP = 10


def main() -> int:
    """Runs the rounds and prints the table; with `--child` it is one worker of one trainer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--trainers", default="ours,tensorflow,torch")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        os.sched_setaffinity(0, {int(os.environ["CORE"])})
        print(json.dumps({"seconds": CHILDREN[options.child](options.steps)}), flush=True)
        return 0
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("workers_efficiency: two cores are needed", file=sys.stderr)
        return 1
    trainers = [t for t in options.trainers.split(",") if t != "torch" or importlib.util.find_spec("torch")]
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for trainer in trainers:
            for workers in (1, 2):
                times.setdefault((trainer, workers), []).append(
                    measure(trainer, workers, options.steps, cores)
                )
    print(
        f"MLP {'-'.join(map(str, WIDTHS))}, {ROWS} rows for each worker, median of {options.rounds} rounds (spread)"
    )
    print(f"{'trainer':12}{'alone, ms':>18}{'together, ms':>18}{'efficiency':>12}")
    for trainer in trainers:
        alone, together = times[trainer, 1], times[trainer, 2]
        share = statistics.median(alone) / statistics.median(together)
        print(f"{trainer:12}{in_words(alone):>18}{in_words(together):>18}{share:>12.0%}")
    return 0


def in_words(seconds: list[float]) -> str:
    """Median and spread in milliseconds."""
    return f"{1e3 * statistics.median(seconds):.1f} ({1e3 * (max(seconds) - min(seconds)):.1f})"


def measure(trainer: str, workers: int, steps: int, cores: list[int]) -> float:
    """Seconds a step of the slowest worker."""
    from unisono.distribute.launcher.tasks import Layout, plan
    from unisono.distribute.workers.addresses import free_ports

    script = [os.path.abspath(__file__), "--child", trainer, "--steps", str(steps)]
    port = str(free_ports(1)[0])
    processes = []
    for index, task in enumerate(plan(Layout(workers=workers), script)):
        env = {
            **os.environ,
            **task.env,
            "CORE": str(cores[index]),
            "RANK": str(index),
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "OMP_NUM_THREADS": "1",
        }
        processes.append(subprocess.Popen(task.command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        answers = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return max(json.loads(answer.strip().splitlines()[-1])["seconds"] for answer in answers)


def data():
    """One worker's rows, the same on all: NumPy arrays."""
    import numpy as np

    random = np.random.default_rng(0)
    return random.normal(size=(ROWS, WIDTHS[0])).astype("float32"), random.integers(0, WIDTHS[-1], size=ROWS)


def one_core():
    """TensorFlow with one thread, as PyTorch with OMP_NUM_THREADS=1."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    return tf


def ours(steps: int) -> float:
    tf = one_core()
    import keras
    import numpy as np

    import unisono

    class Clock(keras.callbacks.Callback):
        def steps_to_wake(self, step):
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
    with strategy.scope():
        layers = [keras.layers.Dense(width, activation="relu") for width in WIDTHS[1:-1]]
        model = unisono.Sequential([keras.Input((WIDTHS[0],)), *layers, keras.layers.Dense(WIDTHS[-1])])
        model.compile(
            unisono.optimizers.SGD(0.01),
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


CHILDREN = {"ours": ours, "tensorflow": tensorflow, "torch": torch}

if __name__ == "__main__":
    sys.exit(main())
