"""Programs about where values are: on parameter servers, a GPU, or the replica of a sample; see `changes_off.py`."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from typing import Any
from unittest import mock

import helpers
import keras
import numpy as np
import tensorflow as tf
from changes_off import breaks
from children import HELPERS
from step_programs import X, Y, dense, two

import unisono

NO_HANDLE = "has no attribute 'handle'"


def servers(partitioner: str = "") -> Any:
    """Start servers in this process; return a strategy, which splits variables by the partitioner, and its coordinator."""
    started: dict[str, Any] = {}
    exec(helpers.SERVERS.replace("Strategy(resolver", f"Strategy(resolver{partitioner}"), started)
    return started["strategy"], started["coordinator"]


def table_in_parts(loss_of: Any) -> Any:
    """Take a step of a custom loop with a table in two parts; return the table and what is right."""
    strategy, coordinator = servers(", tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)")
    with strategy.scope():
        optimizer = unisono.optimizers.SGD(1.0)
        table = keras.Variable(np.ones((4, 2)))

    @tf.function
    def step() -> None:
        def on_worker() -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(table)
            optimizer.apply_gradients(zip(tape.gradient(loss, [table]), [table]))

        strategy.run(on_worker)

    coordinator.schedule(step)
    coordinator.join()
    return [np.asarray(table.value)], [[[1, 1], [0, 0], [1, 1], [-1, -1]]]


@breaks("GradientTape.gradient", "distribute.experimental.ParameterServerStrategy.run", says=NO_HANDLE)
def gradient_of_a_table_in_parts() -> Any:
    return table_in_parts(lambda table: tf.reduce_sum(keras.ops.take(table, [1, 3, 3], axis=0)))


@breaks("backend_numpy.take", says="the whole table is sent")
def rows_of_a_table_in_parts() -> Any:
    """Each step would send the whole table to the worker."""

    def loss(table: Any) -> Any:
        found = tf.reduce_sum(keras.ops.take(table, [1, 3, 3], axis=0))
        kinds = [op.type for op in tf.compat.v1.get_default_graph().get_operations()]
        assert "ResourceGather" in kinds, "the whole table is sent"
        return found

    return table_in_parts(loss)


@breaks("CachingVariable.__getitem__", says="has no attribute 'assign'")
def slice_that_is_assigned() -> Any:
    strategy, _ = servers()

    class Writes(unisono.Sequential):
        def train_step(self, data: Any) -> Any:
            self.written[1:3].assign([2.0, 3.0])
            return super().train_step(data)

    with strategy.scope():
        model = Writes([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.written = tf.Variable(tf.zeros(4), trainable=False)
    x = np.ones((4, 2))
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
    return [model.written.numpy()], [[0, 2, 3, 0]]


@breaks("random_ops_util._get_key_counter", says="Cast -> StatelessRandomGetKeyCounter")
def host_that_waits_for_a_seed() -> None:
    """A step with a random layer, which TensorFlow places on two absent GPUs."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.object(sys, "argv", ["", "fit on 2"]):
        runpy.run_path(str(HELPERS / "gpu_traces.py"))
    found = json.loads(printed.getvalue().splitlines()[-1])
    assert not found["waits"], found["waits"]


class RaggedValues(unisono.Model):
    """A loss of each value of a ragged array and the target of its sample."""

    def __init__(self) -> None:
        super().__init__()
        self.out = dense()

    def call(self, x: Any) -> Any:
        return self.out(tf.reduce_sum(x, 1)[:, None])

    def compute_loss(self, x: Any = None, y: Any = None, *_: Any, **__: Any) -> Any:
        targets = tf.gather(y[:, 0], x.value_rowids())
        return tf.reduce_mean((self.out(x.values[:, None])[:, 0] - targets) ** 2)


def gathered(make: Any, x: Any) -> None:
    """Raise an error if a step of a model gathers values of its samples."""
    with two().scope():
        model = make()
        model.compile("sgd", "mse", jit_compile=False)
    found = model.explain_step(x, Y)
    assert {each.kind for each in found.collectives} == {"all-reduce"} and not found.whole, str(found)


@breaks("segment_id_ops.row_splits_to_segment_ids", says="all-gather")
def samples_of_ragged_values() -> None:
    gathered(
        RaggedValues, tf.RaggedTensor.from_row_lengths(np.arange(9.0, dtype="float32"), [2, 0, 3, 1, 2, 1])
    )


@breaks("embedding_ops.embedding_lookup_sparse_impl", says="all-gather")
def entries_of_sparse_inputs() -> None:
    make = lambda: unisono.Sequential([keras.Input((3,), sparse=True), dense()])  # noqa: E731
    gathered(make, tf.sparse.from_dense(X))
