"""Two worker processes, pinned to a core each: how much of their double work do they keep?

    python benchmarks/workers_efficiency.py [--rounds 3] [--steps 40]

Each trainer takes the same step (MLP 512-1024-1024-10, 512 rows for each worker, SGD) alone on one core, and on two
workers that sum their gradients over loopback. Efficiency is the time alone over the time together; with collectives that
cost nothing it would be 100 %. Trainers take turns in every round; medians are printed, with the spread over the rounds.

`ours` is `unisono.Model.fit`; `tensorflow` a hand-written loop of `strategy.run` and `all_reduce` in one `tf.function`;
`torch` is PyTorch's DistributedDataParallel with gloo, where PyTorch is installed. Beside them, bare loops that sum as many
bytes and compute nothing show what the transport costs at best.
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
WORDS = {
    "ours": "`unisono.Model.fit`",
    "ours_bfloat16": '`fit`, `HalfPrecisionAggregation("bfloat16")`',
    "tensorflow": "a hand-written loop on TensorFlow's collectives",
    "torch": "PyTorch's DistributedDataParallel, gloo",
}
LIMITS = {
    "bare_1": "TensorFlow, one all-reduce",
    "bare_packs": "TensorFlow, packs of 1 MiB, all at once",
    "bare_bfloat16": "TensorFlow, one all-reduce in bfloat16",
    "bare_torch": "PyTorch, gloo, one all-reduce",
}
WARM_UP = 10


def main() -> int:
    """Runs the rounds and prints the table; with `--child` it is one worker of one trainer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--trainers", default=",".join([*WORDS, *LIMITS]))
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
    here = importlib.util.find_spec("torch") is not None
    trainers = [t for t in options.trainers.split(",") if here or "torch" not in t]
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for trainer in trainers:
            for workers in (2,) if trainer in LIMITS else (1, 2):
                times.setdefault((trainer, workers), []).append(
                    measure(trainer, workers, options.steps, cores)
                )
    print(
        f"MLP {'-'.join(map(str, WIDTHS))}, {ROWS} rows for each worker, median of {options.rounds} rounds (spread)"
    )
    from benchmarks.tables import publish, spread  # not where this file is run as a child

    rows = []
    for trainer in [t for t in trainers if t in WORDS]:
        alone, together = times[trainer, 1], times[trainer, 2]
        ratios = [a / b for a, b in zip(alone, together)]
        cells = [spread(each, 1e3, "{:.1f}") for each in (alone, together)]
        rows.append([WORDS[trainer], *cells, spread(ratios, 100, "{:.0f}") + " %"])
    publish("workers_efficiency", ["trainer", "alone, ms", "together, ms", "efficiency"], rows)
    limits = [t for t in trainers if t in LIMITS]
    rows = []
    for limit in limits:
        ratios = [a / b for a, b in zip(times[limit, 2], times[limits[0], 2])]
        rows.append(
            [LIMITS[limit], spread(times[limit, 2], 1e3, "{:.1f}"), f"{statistics.median(ratios):.2f}"]
        )
    publish("all_reduce_limit", ["sums of as many numbers and nothing else", "ms", "ratio"], rows)
    return 0


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


def ours(steps: int, aggregator: str = "") -> float:
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


def bare(steps: int, packs: int = 1, dtype: str = "float32") -> float:
    """All-reduces of the gradients' bytes with nothing before or after them."""
    tf = one_core()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    size = sum((n + 1) * m for n, m in itertools.pairwise(WIDTHS))
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=0 if packs == 1 else 2**20)

    def replica(values):
        values = [tf.identity(value) for value in values]  # on this replica's device
        return tf.distribute.get_replica_context().all_reduce("sum", values, options)

    @tf.function
    def loop(count):
        values = [tf.ones([size // packs], dtype) for _ in range(packs)]
        for _ in tf.range(count):
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
    value = torch.ones(sum((n + 1) * m for n, m in itertools.pairwise(WIDTHS)))
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
    "bare_packs": lambda steps: bare(steps, packs=6),
    "bare_bfloat16": lambda steps: bare(steps, dtype="bfloat16"),
    "bare_torch": bare_torch,
}

if __name__ == "__main__":
    sys.exit(main())
