"""Measures samples per second for each kind of input, against a hand-written loop over the same input."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from benchmarks.tables import publish, spread
from unisono.trainer.inputs import GivenData, Reading, Source, make_source

BATCH = 64
STEPS = 50
ROUNDS = 7


def source_of(x: Any, y: Any = None, batch_size: int | None = None, **how: Any) -> Source:
    """The source that `fit` makes of its arguments."""
    return make_source(GivenData(x, y, batch_size=batch_size), Reading(tf.distribute.get_strategy(), **how))


class Batches(keras.utils.PyDataset):
    """Slices of arrays."""

    def __init__(self, x: np.ndarray, y: np.ndarray, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.x, self.y = x, y

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return self.x[i * BATCH : (i + 1) * BATCH], self.y[i * BATCH : (i + 1) * BATCH]


class Working(Batches):
    """Slices of arrays, with work on each that NumPy does without Python's lock."""

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = super().__getitem__(i)
        return np.sqrt(np.sin(x) ** 2 + 1), y


class EachBatch:
    """An iterable without a length."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return (self.batches[i] for i in range(len(self.batches)))


Kind = tuple[Callable[[], Any], Callable[[], Iterable[Any]] | tf.data.Dataset]


def kinds(x: np.ndarray, y: np.ndarray, folder: pathlib.Path) -> dict[str, Kind]:
    """Kind of input -> (a function that makes `fit`'s source, the data of the hand-written loop)."""
    np.save(folder / "x.npy", x)
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    order = np.random.default_rng(1).permutation(len(x))
    slices = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(BATCH).prefetch(2)
    batches, working = Batches(x, y), Working(x, y)
    count = len(batches)

    def gathered(x: Any) -> Iterable[Any]:
        indices = (order[i * BATCH : (i + 1) * BATCH] for i in range(count))
        return ((x[each], y[each]) for each in indices)

    result: dict[str, Kind] = {
        "tf.data": (lambda: source_of(slices), slices),
        "tf.data, shuffled": (lambda: source_of(shuffled), shuffled),
        "arrays": (lambda: source_of(x, y, batch_size=BATCH), lambda: EachBatch(batches)),
        "arrays, shuffled": (lambda: source_of(x, y, batch_size=BATCH, shuffle=True), lambda: gathered(x)),
        "arrays too large to be copied": (
            lambda: source_of(x, y, batch_size=BATCH, resident_bytes=0),
            lambda: EachBatch(batches),
        ),
        "memory-mapped": (
            lambda: source_of(mapped, y, batch_size=BATCH),
            lambda: EachBatch(Batches(mapped, y)),
        ),
        "memory-mapped, shuffled": (
            lambda: source_of(mapped, y, batch_size=BATCH, shuffle=True),
            lambda: gathered(mapped),
        ),
        "`PyDataset`": (lambda: source_of(batches), lambda: EachBatch(batches)),
        "`PyDataset` with work": (lambda: source_of(working), lambda: EachBatch(working)),
        "`PyDataset` with work, 2 workers": (
            lambda: source_of(Working(x, y, workers=2)),
            lambda: EachBatch(working),
        ),
        "another iterable": (lambda: source_of(EachBatch(batches)), lambda: EachBatch(batches)),
    }
    try:
        import torch
    except ImportError:
        return result
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    batches_of_loader = lambda: ((a.numpy(), b.numpy()) for a, b in loader)  # noqa: E731
    return {
        **result,
        "PyTorch's `DataLoader`, in one process": (lambda: source_of(loader), batches_of_loader),
    }


def total(batch: Any) -> Any:
    """The sum of all numbers in a batch."""
    return tf.add_n([tf.reduce_sum(tf.cast(leaf, tf.float32)) for leaf in tf.nest.flatten(batch)])


def compiled_loop(chunk: Any) -> Any:
    """The loop over a chunk as the trainer compiles it; it adds up all numbers."""

    def run(inputs: Any, steps: tf.Tensor) -> Any:
        result = 0.0
        for i in tf.range(steps):
            result += total(chunk.reader(inputs, i))
        return result

    return tf.function(run, input_signature=[chunk.signature, tf.TensorSpec([], tf.int32)])


def by_source(make: Callable[[], Any]) -> Callable[[int], None]:
    """A function that reads one epoch as `fit` does."""
    source = make()
    loops: dict[Any, Any] = {}

    def epoch(number: int) -> None:
        source.begin_epoch(number)
        value = None
        while (chunk := source.take(STEPS)) is not None:
            key = chunk.reader, chunk.open_ended
            if key not in loops:
                loops[key] = compiled_loop(chunk)
            value = loops[key](chunk.inputs, tf.constant(chunk.steps))
        float(value)

    return epoch


def hand_written(data: Any) -> Callable[[int], None]:
    """A function that reads one epoch with a hand-written loop."""
    if isinstance(data, tf.data.Dataset):

        @tf.function
        def in_graph() -> Any:
            result = 0.0
            for batch in data:
                result += total(batch)
            return result

        return lambda number: float(in_graph())
    step = tf.function(lambda x, y: total((x, y)), reduce_retracing=True)

    def epoch(number: int) -> None:
        for x, y in data():
            value = step(tf.convert_to_tensor(x), tf.convert_to_tensor(y))
        float(value)

    return epoch


def main(samples: int = 20_000) -> None:
    """Prints a table. Run it with `python -m benchmarks.feeding [SAMPLES]`.

    `fit`'s input reads batches of 32 x 32 x 3 images in a compiled loop over the steps of a chunk, and adds up every
    number. The hand-written loop does the same: in the graph for `tf.data`, and otherwise in Python with a compiled
    function for each batch. Both take turns. The table has the rate of the hand-written loop, and the median and
    quartiles of the ratio.
    """
    random = np.random.default_rng(0)
    x = random.random((samples, 32, 32, 3), dtype=np.float32)
    y = random.integers(0, 10, samples)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, data) in kinds(x, y, pathlib.Path(folder)).items():
            epochs = [by_source(make), hand_written(data)]
            times: list[list[float]] = [[], []]
            for turn in range(ROUNDS + 1):
                for which in (0, 1) if turn % 2 else (1, 0):
                    began = time.perf_counter()
                    epochs[which](turn)
                    times[which].append(time.perf_counter() - began)
            (ours, hand) = (each[1:] for each in times)  # the first epoch compiles
            ratios = spread([b / a for a, b in zip(ours, hand)])
            lines.append([name, spread([samples / b for b in hand], 1e-3, "{:,.0f}"), ratios])
            print(" ".join(lines[-1]), flush=True)
    publish(
        "feeding",
        ["kind of input", "hand-written loop, 1,000 samples per second", "`fit`'s input, of that"],
        lines,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
