"""Operations of a gradient are those that a tape has made, whatever they are called."""

import pytest
import tensorflow as tf

from unisono.compat.patches import replace_functions
from unisono.compat.tensorflow_graphs.gradients import is_of_a_gradient
from unisono.compat.tensorflow_graphs.made_operations import MadeOperations
from unisono.compat.tensorflow_graphs.one_device import copy_into_graph
from unisono.trainer import replacements

assert replacements  # once imported, it lists its replacements


def graph_of(fn):
    graph = tf.__internal__.FuncGraph("step")
    with graph.as_default():
        fn(tf.compat.v1.placeholder(tf.float32, (3,)))
    return graph.get_operations()


def types(ops):
    return [op.type for op in ops if is_of_a_gradient(op)]


@pytest.mark.parametrize("scope", ["gradient_tape", "gradient_tape/", "my_gradient_tape/"])
def test_operations_with_the_names_of_a_gradient_are_none(scope):
    def fn(x):
        with tf.name_scope(scope):
            tf.tanh(x)

    assert not types(graph_of(fn))


def test_operations_of_every_gradient_are_marked_and_the_ones_between_are_not():
    def fn(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.tanh(x)
            y = tf.sin(tape.gradient(y, x))
        outer.gradient(y, x)

    ops = graph_of(fn)
    assert types(ops).count("TanhGrad") >= 1 and "Cos" in types(ops)
    assert not {"Tanh", "Sin", "Placeholder"} & {*types(ops)}


def test_a_copy_of_an_operation_of_a_gradient_is_one():
    def fn(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x)
        made = tape.gradient(y, x).op
        copy_into_graph(made, made.inputs, {})
        copy_into_graph(y.op, y.op.inputs, {})

    assert types(graph_of(fn)).count("TanhGrad") == 2 and "Tanh" not in types(graph_of(fn))


@pytest.mark.parametrize("conditional", [False, True])
def test_gradients_of_the_calls_of_a_layer_are_recorded_and_no_others(conditional):
    made, layer = MadeOperations(), tf.Module("normalization")
    layer.call = tf.tanh

    def fn(x):
        with replace_functions(), made.of_calls([layer]), tf.GradientTape() as tape:
            tape.watch(x)
            if conditional:
                y = tf.cond(x[0] > 0, lambda: layer.call(x), lambda: x)
            else:
                y = layer.call(x)
            with tf.name_scope("gradient_tape/call/"):
                y = tf.sin(y)
            tape.gradient(y, x)

    ops = graph_of(fn)
    inner = [op for graph in {id(op.graph): op.graph for op in made._operations.values()}.values()
             for op in graph.get_operations() if op in made]  # fmt: skip
    assert {"Tanh", "TanhGrad"} <= {op.type for op in inner}
    assert not {"Sin", "Cos"} & {op.type for op in [*ops, *inner] if op in made}
