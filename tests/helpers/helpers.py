"""Helpers shared by tests of several folders."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import unisono
from unisono.callbacks.backup.files import store
from unisono.distribute.workers import places
from unisono.mixed_precision import hardware
from unisono.trainer.inputs import GivenData, Reading, Source, make_source

# The summation order differs between 1 and R replicas. float32 keeps 24 bits of each partial sum, and a few steps of
# Adam amplify the difference.
FLOAT32 = 1e-5
# The same in float64 (53 bits), where only the summation order may differ.
FLOAT64 = 1e-12
# Seconds after which a thread that was asked to end counts as hanging.
GRACE = 120.0
OPTIMIZERS = sorted(
    name
    for name, cls in vars(keras.optimizers).items()
    if isinstance(cls, type)
    and issubclass(cls, keras.optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
)
# The beginning of a program: three workers and two parameter servers in one process share its threads. With fewer threads
# than workers they would deadlock.
SERVERS = """
import keras, numpy as np, tensorflow as tf
from unisono import mixed_precision, optimizers
from unisono.distribute.workers.addresses import free_ports

addresses = [f"localhost:{port}" for port in free_ports(5)]
spec = tf.train.ClusterSpec({"worker": addresses[:3], "ps": addresses[3:]})
threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
servers = [
    tf.distribute.Server(spec, job_name=job, task_index=i, protocol="grpc", config=threads)
    for job in ("worker", "ps") for i in range(spec.num_tasks(job))
]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
"""


def mirrored(num_replicas: int) -> tf.distribute.Strategy:
    """A MirroredStrategy of any size in one process.

    The default collectives abort if strategies of different sizes share a process; ReductionToOneDevice works.
    """
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_replicas)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def strategy(name: str) -> tf.distribute.Strategy | None:
    """A strategy by name: none, one, mirrored1 to mirrored4, central2."""
    if name == "none":
        return None
    if name == "one":
        return tf.distribute.OneDeviceStrategy("CPU:1")
    kind, count = name[:-1], int(name[-1])
    if kind == "mirrored":
        return mirrored(count)
    return tf.distribute.experimental.CentralStorageStrategy([f"CPU:{i}" for i in range(count)], "CPU:0")


class Batches(keras.utils.PyDataset):
    """A sequence of batches."""

    def __init__(self, batches: Any, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


class Iterable:
    """A list of batches that can only be iterated over."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def source_of(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    strategy: tf.distribute.Strategy | None = None,
    **how: Any,
) -> Source:
    """The source of an input, under the current strategy by default."""
    strategy = strategy or tf.distribute.get_strategy()
    return make_source(GivenData(x, y, sample_weight, batch_size, steps_per_epoch), Reading(strategy, **how))


def next_batch(source: Any) -> Any:
    """The next batch of a `trainer.inputs.Source`; None at the end of the epoch."""
    chunk = source.take(1)
    if chunk is None:
        return None
    batch = chunk.batch(0)
    if batch is None:
        source.note_drawn(0)
    return batch


def scope(strategy: tf.distribute.Strategy | None) -> Any:
    """The strategy's scope, or a null context."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def assert_close(actual: Any, expected: Any, tolerance: float, what: str = "") -> None:
    """Compares nests of arrays, relative to the largest absolute value of each array."""
    for index, (a, b) in enumerate(zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True)):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape, f"{what}[{index}]: shape {a.shape}, expected {b.shape}"
        scale = max(1e-3, float(np.max(np.abs(b), initial=0.0)))
        worst = float(np.max(np.abs(a - b), initial=0.0))
        assert np.isfinite(a).all() == np.isfinite(b).all(), f"{what}[{index}]: {a}, expected {b}"
        assert worst <= tolerance * scale, f"{what}[{index}]: differs by {worst:.3g} of {scale:.3g}"


def assert_equal(actual: Any, expected: Any, what: str = "") -> None:
    """Compares nests of arrays or variables bit for bit; NaN equals NaN."""
    for index, (a, b) in enumerate(zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True)):
        np.testing.assert_array_equal(np.array(a), np.array(b), err_msg=f"{what}[{index}]")


def copies_are_equal(variables: Any, strategy: tf.distribute.Strategy) -> bool:
    """Whether the copies of every mirrored variable are bitwise identical."""
    for variable in variables:
        copies = [c.numpy() for c in strategy.experimental_local_results(variable.value)]
        if any(not np.array_equal(copies[0], c, equal_nan=True) for c in copies[1:]):
            return False
    return True


def train(
    make_model: Callable[[], Any], data: Any, strategy: Any = None, fit: Any = None, **compile: Any
) -> tuple[Any, dict[str, Any]]:
    """Trains a new model under a strategy or its name; returns it and its history.

    `data` is one input, or (x, y) or (x, y, sample_weight). `compile` has the optimizer's class or a function that makes
    one, so that each model has its own; by default SGD(0.1) and "mse".
    """
    strategy = globals()["strategy"](strategy) if isinstance(strategy, str) else strategy
    keras.utils.set_random_seed(1)
    with scope(strategy):
        model = make_model()
        made = {name: value() for name, value in compile.items() if name == "optimizer" and callable(value)}
        model.compile(**{"optimizer": unisono.optimizers.SGD(0.1), "loss": "mse", **compile, **made})
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    given = {"epochs": 2, "shuffle": False, "verbose": 0, "sample_weight": weights, **(fit or {})}
    return model, model.fit(x, y, **given).history


def compare(
    make_model: Callable[[], Any],
    data: Any,
    strategies: Any = ("mirrored2", "mirrored3"),
    tolerance: float = FLOAT32,
    **arguments: Any,
) -> None:
    """Asserts that history, weights and optimizer state under each strategy are those of one device; see `train`."""
    one, expected = train(make_model, data, **arguments)
    for each in strategies:
        model, history = train(make_model, data, each, **arguments)
        assert_close(history, expected, tolerance, f"{each}: history")
        assert_close(model.variables, one.variables, tolerance, f"{each}: variables")
        assert_close(model.optimizer.variables, one.optimizer.variables, tolerance, f"{each}: optimizer")


def as_in_new_process(monkeypatch: Any) -> None:
    """Lets Unisono forget what it has warned of, and which fits have finished."""
    for module, name in ((places, "_warned"), (hardware, "_warned"), (store, "_finished")):
        monkeypatch.setattr(module, name, type(getattr(module, name))())


class Clock:
    """Replaces the module `time` in one of our modules: advances when that sleeps or a test sets `now`, never by itself."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def time(self) -> float:
        return self.now

    __call__ = monotonic = perf_counter = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def set_clock(monkeypatch: Any, clock: Clock, *modules: Any) -> None:
    """Gives modules of ours a clock as `time`."""
    for module in modules:
        monkeypatch.setattr(module, "time", clock)


class Stop(Exception):
    """Interrupts a training run."""


class StopAt(keras.callbacks.Callback):
    """Raises `Stop` after the n-th step overall; its hook is not called for other steps."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stop


def resumed(train: Callable[..., Any], folder: Any, nth: int, **options: Any) -> Any:
    """What `train(*callbacks)` returns, called again after it was interrupted at the n-th step."""
    backup = functools.partial(unisono.callbacks.BackupAndRestore, folder, **{"save_freq": 1, **options})
    with contextlib.suppress(Stop):
        train(backup(), StopAt(nth))
        raise AssertionError("was not interrupted")
    return train(backup())


def descend(loss_of: Callable[[], Any], optimizer: Any, weights: Any) -> Any:
    """Applies the gradient of `loss_of()`, and returns the loss."""
    with tf.GradientTape() as tape:
        loss = loss_of()
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss


class GradientsOfItsOwn:
    """A custom step that takes gradients from its own tape; a mixin to put before a model class."""

    def train_step(self: Any, data: Any) -> Any:
        x, y = data[:2]
        loss = descend(lambda: self.loss_of(x, y), self.optimizer, self.trainable_variables)
        return self.logs_of(loss, x)

    def loss_of(self: Any, x: Any, y: Any) -> Any:
        return self.compute_loss(x, y, self(x, training=True))

    def logs_of(self: Any, loss: Any, x: Any) -> Any:
        return {"loss": loss}


class TwoLayers(unisono.Model):
    """A hidden layer and an output, with another layer between them."""

    def __init__(self, between: Any = keras.layers.Identity) -> None:
        super().__init__()
        self.first, self.between = keras.layers.Dense(6, activation="tanh"), between()
        self.last = keras.layers.Dense(2)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.last(self.between(self.first(x), training=training))


def stable_id(value: Any) -> str:
    """A parameter as text without memory addresses, so that all test processes agree on test ids."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def threads_since(threads: set[threading.Thread]) -> list[threading.Thread]:
    """The live Python threads that are not in `threads`, except those that end soon.

    A pipeline's iterator may wait a minute for its tuner when it is deleted; see `compat.tensorflow_private.tf_data`.
    """
    new = [t for t in threading.enumerate() if t not in threads and not _belongs_to_tensorflow(t)]
    new = [thread for thread in new if thread.name != "unisono end of an iterator"]
    for thread in new:
        thread.join(GRACE)
    return [thread for thread in new if thread.is_alive()]


@contextlib.contextmanager
def in_threads(*functions: Any) -> Iterator[None]:
    """Runs functions next to the block, each in a thread, and waits for them at its end."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _belongs_to_tensorflow(thread: threading.Thread) -> bool:
    """Whether a thread is from TensorFlow's pools and called Python once: Python knows neither its name nor its end."""
    return isinstance(thread, threading._DummyThread)


def open_files() -> set[str]:
    """The paths of the files that this process has open, but for the fonts that matplotlib keeps."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:  # closed in the meantime: the descriptor of this listing
            continue
        ignored = target.startswith(("/dev/", "/proc/")) or "/mpl-data/fonts/" in target
        if target.startswith("/") and not ignored:
            found.add(target)
    return found


def graphs_of(graph: Any) -> Iterator[Any]:
    """A graph, and the graphs of the loops and functions in it."""
    yield graph
    for operation in graph.get_operations():
        for name in ("body", "f"):
            function = operation.node_def.attr[name].func.name if name in operation.node_def.attr else ""
            if function and graph._get_function(function) is not None:
                yield from graphs_of(graph._get_function(function).graph)
