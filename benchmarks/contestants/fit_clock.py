"""Times every `fit` with a callback that reads the clock between epochs only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .task import Task, Train, arrays, dataset

LONG = 10_000  # epochs of a run that a callback stops


def train_by_fit(keras: Any, model: Any, task: Task, batch_size: int) -> Train:
    """A `Train` that calls `model.fit`.

    Args:
        keras: the package of `model`.
        model: a compiled model.
        task: selects the data and the callbacks.
        batch_size: int; samples of the global batch.
    """

    class Clock(keras.callbacks.Callback):
        def __init__(self, epochs: int) -> None:
            super().__init__()
            self.epochs = epochs
            self.seconds: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds.append(time.perf_counter() - self.began)
            self.model.stop_training = len(self.seconds) >= self.epochs

    class OnEveryBatch(keras.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches += 1

    def train(epochs: int, steps: int, goes_on: bool = False) -> list[float]:
        clock = Clock(epochs)
        others = [OnEveryBatch() for _ in range(task.callbacks)]
        options = {"epochs": LONG if goes_on else epochs, "verbose": 0, "callbacks": [*others, clock]}
        if task.input == "dataset":
            model.fit(dataset(task.model, steps), **options)
        else:
            model.fit(*arrays(task.model, steps), batch_size=batch_size, **options)
        return clock.seconds

    return train


def scope_of(tf: Any, task: Task) -> Any:
    """The scope of a MirroredStrategy over the task's logical devices; of the default strategy for one."""
    return strategy_of(tf, task).scope()


def strategy_of(tf: Any, task: Task) -> Any:
    """A MirroredStrategy over the task's logical devices; the default strategy for one."""
    if task.replicas == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(task.replicas)])


def use_logical_devices(tf: Any, replicas: int) -> None:
    """Splits the CPU into `replicas` logical devices; must be the first use of TensorFlow's devices."""
    if replicas > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * replicas
        )


Make = Callable[[str, Task], Train]
