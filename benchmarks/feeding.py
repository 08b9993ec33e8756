"""Rows a second by kind of input, against plain `tf.data`: is feeding the bottleneck?

Reads batches of 32 x 32 x 3 images by every kind of source as the training loop does (a compiled loop over the steps of
a chunk that touches every number), and by a `tf.data` pipeline of slices in the same loop. Prints the median rate of some
epochs and the ratio to `tf.data`. Run it on a quiet machine: `python benchmarks/feeding.py [ROWS]`.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from unisono.trainer.inputs import make_source

BATCH = 64
STEPS = 50
EPOCHS = 5


class Batches(keras.utils.PyDataset):
    """Slices of arrays."""

    def __init__(self, x: np.ndarray, y: np.ndarray, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.x, self.y = x, y

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return self.x[i * BATCH : (i + 1) * BATCH], self.y[i * BATCH : (i + 1) * BATCH]


def kinds(x: np.ndarray, y: np.ndarray, folder: pathlib.Path) -> dict[str, Callable[[], Any]]:
    """A maker for every kind of source."""
    np.save(folder / "x.npy", x)
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    slices = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    batches = Batches(x, y)
    result = {
        "tf.data": lambda: make_source(slices),
        "arrays": lambda: make_source(x, y, batch_size=BATCH),
        "arrays, shuffled": lambda: make_source(x, y, batch_size=BATCH, shuffle=True),
        "streamed arrays": lambda: make_source(x, y, batch_size=BATCH, resident_bytes=0),
        "memory-mapped": lambda: make_source(mapped, y, batch_size=BATCH),
        "memory-mapped, shuffled": lambda: make_source(mapped, y, batch_size=BATCH, shuffle=True),
        "PyDataset": lambda: make_source(batches),
        "PyDataset, 2 threads": lambda: make_source(Batches(x, y, workers=2)),
        "iterable": lambda: make_source(list_of(batches)),
    }
    try:
        import torch
    except ImportError:
        return result
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    return {**result, "torch DataLoader": lambda: make_source(loader)}


def list_of(batches: Batches) -> Any:
    """An iterable that is no list."""

    class Iterable:
        def __iter__(self) -> Any:
            return (batches[i] for i in range(len(batches)))

    return Iterable()


def compiled_loop(chunk: Any) -> Any:
    """The loop over a chunk, as the trainer compiles it: adds up every number."""

    def total(batch: Any) -> Any:
        return tf.add_n([tf.reduce_sum(tf.cast(leaf, tf.float32)) for leaf in tf.nest.flatten(batch)])

    def run(inputs: Any, steps: tf.Tensor) -> Any:
        result = 0.0
        for i in tf.range(steps):
            result += total(chunk.reader(inputs, i))
        return result

    return tf.function(run, input_signature=[chunk.signature, tf.TensorSpec([], tf.int32)])


def rate(make: Callable[[], Any], rows: int) -> float:
    """The median rows a second of some epochs; the first is for compiling."""
    source = make()
    loops: dict[Any, Any] = {}
    rates = []
    for epoch in range(EPOCHS + 1):
        start = time.perf_counter()
        source.begin_epoch(epoch)
        value = None
        while (chunk := source.take(STEPS)) is not None:
            loop = loops.setdefault(chunk.reader, None) or loops.setdefault(
                (chunk.reader, 1), compiled_loop(chunk)
            )
            value = loop(chunk.inputs, tf.constant(chunk.steps))
        float(value)
        rates.append(rows / (time.perf_counter() - start))
    source.close()
    return statistics.median(rates[1:])


def main(rows: int = 20_000) -> None:
    """Prints a table."""
    random = np.random.default_rng(0)
    x = random.random((rows, 32, 32, 3), dtype=np.float32)
    y = random.integers(0, 10, rows)
    with tempfile.TemporaryDirectory() as folder:
        makers = kinds(x, y, pathlib.Path(folder))
        base = 0.0
        print(f"{rows} rows of {x[0].nbytes} bytes, batches of {BATCH}, {STEPS} steps a call")
        for name, make in makers.items():
            found = rate(make, rows)
            base = base or found
            print(f"{name:26s} {found:12,.0f} rows/s   {found / base:5.2f} of tf.data", flush=True)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
