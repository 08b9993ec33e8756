"""The task of a trainer: model, data, and number of replicas."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

BATCH = 32
CLASSES = 10
MODELS = ("mlp", "cnn", "transformer")
WORDS, TOKENS, WIDTH, HEADS = 1000, 32, 64, 4
SIDE = 16
FEATURES = 32


@dataclasses.dataclass(frozen=True)
class Task:
    """One setting of the comparison.

    Attributes:
        model: "mlp", "cnn" or "transformer".
        replicas: logical devices that share each batch.
        input: "arrays" (NumPy) or "dataset" (`tf.data`, shuffled, batched, prefetched).
        layers: hidden layers of the MLP.
        callbacks: number of callbacks with per-batch hooks.
    """

    model: str = "mlp"
    replicas: int = 1
    input: str = "arrays"
    layers: int = 2
    callbacks: int = 0

    def __str__(self) -> str:
        parts = [self.model, f"{self.replicas} replica{'s' * (self.replicas > 1)}", self.input]
        if self.layers != Task.layers:
            parts.append(f"{self.layers} hidden layers")
        if self.callbacks:
            parts.append(f"{self.callbacks} callbacks on every batch")
        return ", ".join(parts)


class Train(Protocol):
    """A model that is ready to train; each call continues where the previous one ended."""

    def __call__(self, epochs: int, steps: int, goes_on: bool = False) -> list[float]:
        """Trains; returns the seconds of each epoch.

        Args:
            epochs: int; number of epochs.
            steps: int; steps of an epoch.
            goes_on: bool; stop a long training run after these epochs.
        """
        ...


@functools.lru_cache(maxsize=4)
def arrays(model: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples for `steps` batches: `x` float32 (int32 for the transformer), `y` int64 `(samples,)`."""
    random = np.random.default_rng(0)
    samples = BATCH * steps
    labels = random.integers(0, CLASSES, samples)
    if model == "transformer":
        return random.integers(0, WORDS, (samples, TOKENS)).astype("int32"), labels
    shape = (samples, FEATURES) if model == "mlp" else (samples, SIDE, SIDE, 1)
    return random.normal(size=shape).astype("float32"), labels


def dataset(model: str, steps: int) -> Any:
    """The same samples as a `tf.data.Dataset` of batches."""
    import tensorflow as tf

    samples = tf.data.Dataset.from_tensor_slices(arrays(model, steps))
    return samples.shuffle(1024).batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def timed_epochs(epochs: int, one_epoch: Callable[[], None]) -> list[float]:
    """The seconds that each call of `one_epoch` takes."""
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        one_epoch()
        seconds.append(time.perf_counter() - began)
    return seconds
