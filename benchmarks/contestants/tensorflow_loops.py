"""Hand-written TensorFlow loops with Keras' layers, Keras' Adam and a loss, and nothing else.

Arrays are on the device, indexed in a new order each epoch. Each replica takes its part of a batch; Adam sums the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from . import keras_models
from .fit_clock import strategy_of, use_logical_devices
from .task import BATCH, Task, Train, arrays, dataset, timed_epochs

prepare = use_logical_devices


def make(name: str, task: Task) -> Train:
    """A new model of `task` and its loop, not yet traced."""
    step = _step(strategy_of(tf, task), task, jit=name == "tf_graph_xla")
    if name == "tf_step":
        one = tf.function(step, autograph=False)
        return _step_by_step(one, task)
    if task.input == "dataset":
        return _over_dataset(step, task)
    return _over_arrays(step, task, jit=name == "tf_xla")


def step_of(model: Any) -> Callable[[Any, Any], Any]:
    """A hand-written step of Adam for a classifier; it returns the sum of the losses divided by `BATCH`."""
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    variables = model.trainable_variables

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply_gradients(zip(gradients, variables))
        return loss

    return step


def _step(strategy: Any, task: Task, jit: bool) -> Callable[[Any, Any], Any]:
    """One step on a global batch; returns its loss."""
    with strategy.scope():
        step = step_of(keras_models.build(keras, task))
    if jit:
        step = tf.function(step, autograph=False, jit_compile=True)
    if task.replicas == 1:
        return step
    samples = BATCH // task.replicas

    def on_replica(x: Any, y: Any) -> Any:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * samples
        return step(x[first : first + samples], y[first : first + samples])

    return lambda x, y: strategy.reduce("SUM", strategy.run(on_replica, args=(x, y)), axis=None)


def _step_by_step(one: Any, task: Task) -> Train:
    def epoch(steps: int) -> None:
        loss = None
        if task.input == "dataset":
            for x, y in dataset(task.model, steps):
                loss = one(x, y)
        else:
            xs, ys = arrays(task.model, steps)
            order = np.random.permutation(len(xs))
            for i in range(steps):
                indices = order[i * BATCH : (i + 1) * BATCH]
                loss = one(tf.constant(xs[indices]), tf.constant(ys[indices]))
        assert loss is not None and np.isfinite(loss.numpy())

    return lambda epochs, steps, goes_on=False: timed_epochs(epochs, lambda: epoch(steps))


def _over_arrays(step: Any, task: Task, jit: bool) -> Train:
    spec = [tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in arrays(task.model, 1)]
    order_spec = tf.TensorSpec([None], tf.int64)

    @tf.function(
        autograph=False, jit_compile=jit, input_signature=[*spec, order_spec, tf.TensorSpec([], tf.int32)]
    )
    def run(xs: Any, ys: Any, order: Any, steps: Any) -> Any:
        def body(i: Any, _: Any) -> Any:
            indices = tf.gather(order, i * BATCH + tf.range(BATCH))
            return i + 1, step(tf.gather(xs, indices), tf.gather(ys, indices))

        return tf.while_loop(lambda i, _: i < steps, body, (tf.constant(0), tf.constant(0.0)))[1]

    on_device: dict[int, Any] = {}

    def epoch(steps: int) -> None:
        if steps not in on_device:
            on_device[steps] = [tf.constant(a) for a in arrays(task.model, steps)]
        order = tf.constant(np.random.permutation(steps * BATCH))
        assert np.isfinite(run(*on_device[steps], order, tf.constant(steps)).numpy())

    return lambda epochs, steps, goes_on=False: timed_epochs(epochs, lambda: epoch(steps))


def _over_dataset(step: Any, task: Task) -> Train:
    @tf.function(autograph=False)
    def run(iterator: Any, steps: Any) -> Any:
        def body(i: Any, _: Any) -> Any:
            return i + 1, step(*iterator.get_next())

        return tf.while_loop(lambda i, _: i < steps, body, (tf.constant(0), tf.constant(0.0)))[1]

    def epoch(steps: int) -> None:
        assert np.isfinite(run(iter(dataset(task.model, steps)), tf.constant(steps)).numpy())

    return lambda epochs, steps, goes_on=False: timed_epochs(epochs, lambda: epoch(steps))
