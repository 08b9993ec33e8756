"""Whole fits in the graph and under XLA, compiling included, for the rule of `trainer/run/xla/xla_rule.py`.

    python -m benchmarks.xla_rule [--steps 400 4000] [--models mlp lstm ...] [--repeat 2]

Each model runs in a process of its own. Its fits alternate, each with a new model, and the best of each backend counts.
Prints the seconds in the graph, under XLA and as `jit_compile="auto"` chose, and the ratio of the chosen to the better one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BATCH = 32
SAMPLES = 50 * BATCH


def main() -> None:
    """Run every model in a process of its own, or one model in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[400, 4000])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--here", action="store_true")
    given = parser.parse_args()
    if given.here:
        compare(given.models[0], given.steps, given.repeat)
        return
    print(
        f"{'model':16} {'steps':>6} {'graph':>8} {'XLA':>8} {'auto':>8} {'XLA/graph':>10} {'auto/better':>12}"
    )
    for name in given.models:
        counts = list(map(str, given.steps))
        command = [sys.executable, "-m", "benchmarks.xla_rule", "--here", "--models", name]
        subprocess.run([*command, "--steps", *counts, "--repeat", str(given.repeat)], check=True)


def compare(name: str, counts: list[int], repeat: int) -> None:
    """Print a line for each number of steps of one model."""
    make, data = MODELS[name]
    for jit in (False, True):
        fit_seconds(make, data(), 50, jit)
    for steps in counts:
        seconds: dict[Any, list[float]] = {False: [], True: [], "auto": []}
        for _ in range(repeat):
            for jit, known in seconds.items():
                known.append(fit_seconds(make, data(), steps, jit))
        graph, xla, auto = (min(known) for known in seconds.values())
        ratios = f"{xla / graph:10.2f} {auto / min(graph, xla):12.2f}"
        print(f"{name:16} {steps:6} {graph:8.2f} {xla:8.2f} {auto:8.2f} {ratios}", flush=True)


def fit_seconds(make: Callable[[], Any], data: Any, steps: int, jit: Any) -> float:
    """The seconds of a whole fit of a new model, tracing and compiling included."""
    import keras

    keras.backend.clear_session()
    model, loss = make()
    model.compile("adam", loss, jit_compile=jit)
    epochs = max(1, steps // 50)
    began = time.perf_counter()
    if isinstance(data, tuple):
        model.fit(*data, batch_size=BATCH, epochs=epochs, verbose=0)
    else:
        model.fit(data, epochs=epochs, verbose=0)
    return time.perf_counter() - began


def vectors(features: int = 20, targets: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Random features and targets, float32."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(SAMPLES, features)).astype("float32"), rng.normal(size=(SAMPLES, targets)).astype(
        "float32"
    )


def make_labels(shape: tuple[int, ...], classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Random float32 inputs of a shape and int labels."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(SAMPLES, *shape)).astype("float32"), rng.integers(0, classes, SAMPLES)


def tokens(length: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Random int32 tokens and int labels of two classes."""
    rng = np.random.default_rng(1)
    return rng.integers(0, words, (SAMPLES, length)).astype("int32"), rng.integers(0, 2, SAMPLES)


def as_dataset(pair: tuple[np.ndarray, np.ndarray]) -> Any:
    """A `tf.data` pipeline of the arrays."""
    import tensorflow as tf

    return (
        tf.data.Dataset.from_tensor_slices(pair)
        .shuffle(SAMPLES)
        .batch(BATCH, drop_remainder=True)
        .prefetch(2)
    )


CLASSES = "sparse_categorical_crossentropy"


def stack(
    *names_and_arguments: Any, shape: Any, loss: str = "mse", dtype: str = "float32"
) -> Callable[[], Any]:
    """Return a function that makes a sequential model of layers, each a tuple of a name and arguments."""

    def make() -> tuple[Any, str]:
        import keras

        import unisono

        layers = [
            getattr(keras.layers, name)(*rest[:-1], **rest[-1])
            if rest and isinstance(rest[-1], dict)
            else getattr(keras.layers, name)(*rest)
            for name, *rest in names_and_arguments
        ]
        return unisono.Sequential([keras.Input(shape, dtype=dtype), *layers]), loss

    return make


def transformer(blocks: int, width: int, length: int, words: int) -> Callable[[], Any]:
    """Return a function that makes an encoder with attention over tokens and a classifier."""

    def make() -> tuple[Any, str]:
        import keras

        import unisono

        inputs = keras.Input((length,), dtype="int32")
        x = keras.layers.Embedding(words, width)(inputs)
        for _ in range(blocks):
            y = keras.layers.LayerNormalization()(x)
            x = x + keras.layers.MultiHeadAttention(4, width // 4)(y, y)
            y = keras.layers.LayerNormalization()(x)
            x = x + keras.layers.Dense(width)(keras.layers.Dense(2 * width, "gelu")(y))
        x = keras.layers.GlobalAveragePooling1D()(x)
        return unisono.Model(inputs, keras.layers.Dense(2, "softmax")(x)), CLASSES

    return make


RELU = {"activation": "relu"}
SOFTMAX = ("Dense", 10, "softmax")
IMAGE_CNN = [("Conv2D", 16, 3, RELU), ("MaxPooling2D",), ("Conv2D", 32, 3, RELU), ("Flatten",), SOFTMAX]
MLP = [("Dense", 64, "relu"), ("Dense", 64, "relu"), ("Dense", 1)]
WORDS = [("Embedding", 10_000, 32), ("GlobalAveragePooling1D",), ("Dense", 2, "softmax")]
TEXT = {"dtype": "int32", "loss": CLASSES}
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "linear": (stack(("Dense", 1), shape=(20,)), vectors),
    "mlp": (stack(*MLP, shape=(20,)), vectors),
    "mlp-data": (stack(*MLP, shape=(20,)), lambda: as_dataset(vectors())),
    "mlp-deep": (stack(*[("Dense", 64, "relu")] * 20, ("Dense", 1), shape=(20,)), vectors),
    "mlp-wide": (
        stack(("Dense", 1024, "relu"), ("Dense", 1024, "relu"), SOFTMAX, shape=(256,), loss=CLASSES),
        lambda: make_labels((256,)),
    ),
    "mlp-norm": (stack(("Dense", 64), ("BatchNormalization",), ("ReLU",), *MLP, shape=(20,)), vectors),
    "mlp-dropout": (stack(("Dense", 64, "relu"), ("Dropout", 0.5), *MLP, shape=(20,)), vectors),
    "autoencoder": (
        stack(("Dense", 128, "relu"), ("Dense", 16), ("Dense", 128, "relu"), ("Dense", 256), shape=(256,)),
        lambda: (make_labels((256,))[0],) * 2,
    ),
    "cnn": (stack(*IMAGE_CNN, shape=(8, 8, 1), loss=CLASSES), lambda: make_labels((8, 8, 1))),
    "cnn-data": (
        stack(*IMAGE_CNN, shape=(28, 28, 1), loss=CLASSES),
        lambda: as_dataset(make_labels((28, 28, 1))),
    ),
    "conv1d": (
        stack(("Conv1D", 32, 5, RELU), ("GlobalMaxPooling1D",), SOFTMAX, shape=(64, 8), loss=CLASSES),
        lambda: make_labels((64, 8)),
    ),
    "lstm": (stack(("LSTM", 32), SOFTMAX, shape=(16, 8), loss=CLASSES), lambda: make_labels((16, 8))),
    "gru-data": (
        stack(("GRU", 32), SOFTMAX, shape=(16, 8), loss=CLASSES),
        lambda: as_dataset(make_labels((16, 8))),
    ),
    "embedding": (stack(*WORDS, shape=(32,), **TEXT), lambda: tokens(32, 10_000)),
    "embedding-data": (stack(*WORDS, shape=(32,), **TEXT), lambda: as_dataset(tokens(32, 10_000))),
    "transformer": (transformer(2, 64, 32, 1000), lambda: tokens(32, 1000)),
    "transformer-data": (transformer(2, 64, 32, 1000), lambda: as_dataset(tokens(32, 1000))),
}

if __name__ == "__main__":
    main()
