"""`keras.RematScope` in Unisono's steps: the same results in a graph, and the backward pass rematerializes its inputs."""

from __future__ import annotations

import contextlib
from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from partition_in_parts import Parts

import unisono
from unisono.compat.tensorflow_graphs.gradients import is_of_a_gradient
from unisono.distribute.rematerialized_calls import calls_in
from unisono.distribute.step_context import StepContext, step_scope
from unisono.trainer.partition.memory import save_memory
from unisono.trainer.partition.program import Copy

layers = keras.layers
rng = np.random.default_rng(3)
X, Y = rng.normal(size=(21, 4, 6)), rng.normal(size=(21, 3))


class Block(layers.Layer):
    """Nested layers, with a random mask, and a call counter."""

    def __init__(self, units: int, rate: float = 0.4) -> None:
        super().__init__()
        self.normalize, self.attend = layers.LayerNormalization(), layers.MultiHeadAttention(2, 3)
        self.wide, self.narrow = layers.Dense(4 * units, "gelu"), layers.Dense(units)
        self.drop = layers.Dropout(rate, seed=4)
        self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1.0)
        x = x + self.attend(self.normalize(x), self.normalize(x), training=training)
        return x + self.drop(self.narrow(self.wide(x)), training=training)


def trained(scope: Any, mode: str | None, noise: bool, eager: bool) -> Any:
    """With `noise` there are layers that differ between replicas: masks, and averages of a replica's samples."""
    keras.config.set_floatx("float64")
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(2)
    with scope, keras.RematScope(mode, layer_names=["block", "recurrent"]):
        inputs = keras.Input((4, 6))
        hidden = Block(6, 0.4 if noise else 0.0)(inputs)
        if noise:
            recurrent = layers.GRU(3, name="recurrent", return_sequences=True)
            hidden = recurrent(layers.BatchNormalization()(hidden))
        hidden = layers.Dense(3, kernel_regularizer="l2", activity_regularizer="l2")(layers.Flatten()(hidden))
        model = unisono.Model(inputs, hidden)
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse", metrics=["mae"], run_eagerly=eager)
    history = model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history
    return [v.numpy() for v in [*model.variables, *model.optimizer.variables]], history


def test_a_fit_has_the_numbers_of_one_that_keeps_everything():
    one = contextlib.nullcontext
    expected = trained(one(), None, noise=True, eager=True)
    helpers.assert_close(trained(one(), "full", noise=True, eager=False), expected, helpers.FLOAT64)
    helpers.assert_close(trained(one(), "list_of_layers", noise=True, eager=True), expected, 0.0, "eager")


@pytest.mark.long
def test_so_has_one_on_replicas_that_hold_weights_sharded():
    strategy = unisono.distribute.sharded(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), level="weights")
    expected = trained(contextlib.nullcontext(), None, noise=False, eager=True)
    found = trained(strategy.scope(), "full", noise=False, eager=False)
    helpers.assert_close(found, expected, helpers.FLOAT64)


def backward_reads(mode: str | None, composite: bool, gradients: int = 1) -> tuple[list[Any], list[Any]]:
    """The forward-pass values of two blocks that float operations of the backward pass read; and the program's nodes."""
    with keras.RematScope(mode):
        blocks = [Block(6), Block(6)]
        model = keras.Sequential([keras.Input((4, 6)), *blocks]) if composite else None
        for block in blocks:
            block(tf.zeros((1, 4, 6)))

    def step(x: tf.Tensor) -> Any:
        with step_scope(StepContext(0, 1, 8, 8)), tf.GradientTape(persistent=True) as tape:
            for part in blocks if model is None else [model]:
                x = part(x, training=True)
            loss = tf.reduce_sum(x**2)
        return [tape.gradient(loss, blocks[0].trainable_variables) for _ in range(gradients)]

    parts = Parts(step, np.ones((8, 4, 6), "float32"))
    program = parts.program
    save_memory(program, calls_in(parts.graph), 0)
    makers = {number: node for node in program.nodes for number in node.outputs}
    late = [each for each in program.nodes if isinstance(each, Copy) and (of_a_gradient(each) or each.after)]
    for node in program.nodes:  # what is rematerialized, too
        if isinstance(node, Copy) and any(makers.get(n) in late for n in node.inputs) and node not in late:
            late.append(node)
    read = {
        n for each in late for n in each.inputs if of_numbers(each) and program.values[n].dtype.is_floating
    }
    early = [makers[n] for n in read if isinstance(makers.get(n), Copy) and makers[n] not in late]
    plain = ("ReadVariableOp", "Const", "Placeholder", "AddN")  # gradients are added outside of their scope
    return [
        each.op for each in early if each.op.type not in plain and not program.find_fixed(each)
    ], program.nodes


def of_a_gradient(node: Any) -> bool:
    return is_of_a_gradient(node.origin or node.op)


def of_numbers(node: Any) -> bool:
    return any(tensor.dtype.is_floating for tensor in node.op.outputs)


@pytest.mark.parametrize("composite", [False, True], ids=["called", "in a model"])
@pytest.mark.short("called")
def test_the_backward_pass_reads_only_what_goes_into_a_call_and_comes_out(composite):
    kept, nodes = backward_reads("full", composite)
    everything, before = backward_reads(None, composite)
    assert len(everything) > 30
    assert len(kept) <= 4, kept  # the input and the output of each block
    types = lambda each: [n.op.type for n in each if isinstance(n, Copy)]  # noqa: E731
    count = lambda each: types(each).count("Erf") + types(each).count("Softmax")  # noqa: E731
    assert count(nodes) == 2 * count(before), "each is computed twice"


@pytest.mark.long
def test_a_second_gradient_of_the_same_pass_computes_again_too():
    kept, _ = backward_reads("full", False, gradients=2)
    assert len(kept) <= 4, kept


def test_the_second_computation_waits_for_the_backward_pass():
    _, nodes = backward_reads("full", False)
    makers = {number: node for node in nodes for number in node.outputs}
    waiting = [node for node in nodes if node.after]
    assert waiting
    for node in waiting:
        assert all(of_a_gradient(makers[n]) or makers[n].op.type == "AddN" for n in node.after), node


def test_plain_keras_has_the_numbers_that_it_has_without():
    """A plain Keras model under the scope is built, where Keras' own fails, and trained as without the scope."""

    def weights(mode: str | None) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        with keras.RematScope(mode):
            plain = keras.Sequential([keras.Input((4, 6)), Block(6), layers.Dense(1, "tanh")])
        plain.compile("sgd", "mse", run_eagerly=False, jit_compile=False)
        plain.fit(X[:8], X[:8, :, :1], batch_size=4, shuffle=False, verbose=0)
        return plain.get_weights()

    helpers.assert_close(weights("full"), weights(None), helpers.FLOAT32)
