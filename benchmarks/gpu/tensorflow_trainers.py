"""`fit` of Unisono and Keras, and a hand-written TensorFlow loop: each returns the seconds of its rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from .keras_models import build
from .task import Task

ROUNDS = 3


def set_precision(precision: str) -> None:
    """Sets the dtype policy, and whether float32 products may use TensorFloat-32."""
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    half = precision in ("bfloat16", "float16")
    keras.config.set_dtype_policy(f"mixed_{precision}" if half else "float32")


def loss() -> Any:
    """The loss between class numbers and logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit(task: Task, ours: bool) -> list[float]:
    """Seconds of each measured epoch of `fit`, without the first two, which compile."""
    import unisono

    set_precision(task.precision)
    model = build(task, unisono.Model if ours else None)
    optimizer = unisono.optimizers.Adam(1e-4) if ours else keras.optimizers.Adam(1e-4)
    model.compile(optimizer, loss())
    x, y = task.arrays()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(task.size.batch, drop_remainder=True).repeat()
    source = {"x": data.prefetch(4), "steps_per_epoch": task.steps}
    clock = EpochClock()
    model.fit(**source, epochs=2 + ROUNDS, verbose=0, callbacks=[clock])  # pyright: ignore
    return clock.seconds[2:]


class EpochClock(keras.callbacks.Callback):
    """Records the seconds of each epoch; its loss is on the host at its end, so its work is done."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Records the time."""
        self.seconds.append(time.perf_counter() - self._began)


def loop(task: Task) -> list[float]:
    """Seconds of each round of a hand-written loop: one compiled step, batches on the device."""
    set_precision(task.precision)
    model, loss_of = build(task), loss()
    optimizer: Any = keras.optimizers.Adam(1e-4)
    if task.precision == "float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss_of(y, model(x, training=True))
            scaled = optimizer.scale_loss(value)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return value

    x, y = task.arrays()
    size = task.size.batch
    batches = [(tf.constant(x[i : i + size]), tf.constant(y[i : i + size])) for i in (0, size)]
    return rounds(task.steps, lambda i: step(*batches[i % 2]), float)


def rounds(steps: int, step: Callable[[int], Any], wait: Callable[[Any], Any]) -> list[float]:
    """Seconds of each round of `steps` calls; `wait` returns when a call's work is done."""
    for i in range(3):
        wait(step(i))
    seconds = []
    for _ in range(ROUNDS):
        began, last = time.perf_counter(), None
        for i in range(steps):
            last = step(i)
        wait(last)
        seconds.append(time.perf_counter() - began)
    return seconds


def peak_bytes() -> int | None:
    """TensorFlow's peak memory on the GPU in bytes; None without a GPU."""
    if not tf.config.list_physical_devices("GPU"):
        return None
    return tf.config.experimental.get_memory_info("GPU:0")["peak"]
