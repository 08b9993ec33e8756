"""Equal operations on scalars and small constants are created once, and only those."""

import collections
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from custom_step import CustomStep
from helpers import assert_equal, in_threads

import unisono
from unisono.compat.patches import replace_functions
from unisono.compat.tensorflow_graphs import equal_operations
from unisono.compat.tensorflow_graphs.copied_operations import TracedOnce
from unisono.compat.tensorflow_graphs.equal_operations import reuse_equal_operations
from unisono.trainer import replacements

assert replacements  # once imported, it lists its replacements


def types_of(fn, *args):
    """The number of operations of each type in the graph of `fn`."""
    with replace_functions():
        graph = tf.function(fn, autograph=False).get_concrete_function(*args).graph
    return collections.Counter(operation.type for operation in graph.get_operations())


def powers(x, number=3):
    return [tf.pow(tf.constant(0.9), tf.cast(x, tf.float32) + 1.0) for _ in range(number)]


def test_the_same_scalars_are_computed_once():
    def shared(x):
        with reuse_equal_operations():
            return powers(x)

    assert types_of(powers, tf.constant(1))["Pow"] == 3
    found = types_of(shared, tf.constant(1))
    assert (found["Pow"], found["Cast"], found["AddV2"], found["Const"]) == (1, 1, 1, 2)


def test_what_is_no_scalar_draws_or_differs_is_made_anew():
    def compute(x):
        with reuse_equal_operations():
            vectors = [tf.constant([1.0, 2.0]) * tf.reshape(x, [1]) for _ in range(2)]
            large = [tf.constant([1.0] * 65) for _ in range(2)]
            draws = [tf.random.uniform(()) for _ in range(2)]
            others = [x * tf.constant(2.0), x * tf.constant(3.0)]
            return vectors, large, draws, others

    found = types_of(compute, tf.constant(1.0))
    assert (found["Mul"], found["RandomUniform"]) == (4, 2)
    # two vectors in one, [1] in one, two large ones, the shape of the draws, 2 and 3
    assert found["Const"] == 7


def test_what_waits_for_something_else_runs_elsewhere_or_is_recorded_is_made_anew():
    def compute(x, y):
        with reuse_equal_operations():
            a = tf.square(x)
            with tf.control_dependencies([y]):
                b = tf.square(x)
            with tf.device("CPU:1"):
                c = tf.square(x)
            with tf.GradientTape() as tape:
                d = tf.constant(3.0)
                tape.watch(d)
                e = d * tf.constant(3.0)
            return a, b, c, tape.gradient(e, d)

    one = tf.constant(1.0)
    assert types_of(compute, one, one)["Square"] == 3
    with replace_functions():
        assert float(tf.function(compute)(one, one)[3]) == 3.0


def test_other_threads_and_graphs_have_their_own():
    inside, ended = threading.Event(), threading.Event()
    found = []

    def other():
        inside.wait()
        found.append(types_of(powers, tf.constant(1))["Pow"])
        ended.set()

    def compute(x):
        with reuse_equal_operations():
            first = powers(x)
            inside.set()
            ended.wait()
            branch = tf.cond(x > 0, lambda: powers(x)[0], lambda: powers(x)[0])
            return first, branch

    with in_threads(other):
        assert types_of(compute, tf.constant(1))["Pow"] == 1
    assert found == [3]


def trained(model, optimizer):
    """The number of operations of each type in a step, and the weights after two steps."""
    model.compile(optimizer, "mse", jit_compile=False)
    x = np.arange(24, dtype="float32").reshape(8, 3)
    model.fit(x, x, batch_size=4, verbose=0, shuffle=False)
    library = model.train_function.graph().as_graph_def(add_shapes=False).library
    found = collections.Counter(node.op for each in library.function for node in each.node_def)
    return found, [*model.get_weights(), *map(np.array, model.optimizer.variables)]


def on_two_replicas(**options):
    keras.utils.set_random_seed(1)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        layers = [make() for make in (lambda: keras.layers.Dense(3), keras.layers.BatchNormalization) * 3]
        model = unisono.Sequential([keras.Input((3,)), *layers])
        return trained(model, unisono.optimizers.SGD(0.01, **options))


def reuse_nothing(monkeypatch):
    monkeypatch.setattr(equal_operations, "_PURE", frozenset())


@pytest.mark.long
def test_bias_corrections_of_adam_are_computed_once_for_all_variables(monkeypatch):
    def on_one_device():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(3) for _ in range(3)]
        return trained(unisono.Sequential([keras.Input((3,)), *layers]), unisono.optimizers.AdamW(0.01))

    found, state = on_one_device()
    assert found["Pow"] == 2
    reuse_nothing(monkeypatch)
    monkeypatch.setattr(TracedOnce, "__call__", lambda self, make, places: make())
    plain, alone = on_one_device()
    assert plain["Pow"] == 12
    assert_equal(state, alone)


@pytest.mark.long
def test_backward_passes_and_sums_of_a_step_name_each_shape_once(monkeypatch):
    found, state = on_two_replicas()
    reuse_nothing(monkeypatch)
    plain, alone = on_two_replicas()
    assert found["Const"] < 0.6 * plain["Const"]
    assert found["Reshape"] == plain["Reshape"] and found["MatMul"] == plain["MatMul"]
    assert_equal(state, alone)


@pytest.mark.long
def test_step_of_two_replicas_has_twice_the_operations_of_one_device():
    def operations_under(strategy):
        with strategy.scope():
            layers = [make() for make in (lambda: keras.layers.Dense(3), keras.layers.LayerNormalization) * 3]
            inputs = keras.Input((3,))
            model = CustomStep(inputs, keras.Sequential(layers)(inputs))
            return sum(trained(model, unisono.optimizers.SGD(0.01))[0].values())

    one = operations_under(tf.distribute.get_strategy())
    two = operations_under(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    assert two < 2.3 * one  # 2.1, from the collectives; with no-op reshapes 3.0


@pytest.mark.long
def test_tape_in_a_transformer_tells_equal_constants_apart():
    def as_it_is(pairs):
        one, other = tf.constant(1.0), tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch(one)
            product = one * other
        factor = tape.gradient(product, one)  # 2, if both were the same constant
        return [(gradient * factor, variable) for gradient, variable in pairs]

    (_, found), (_, expected) = on_two_replicas(gradient_transformers=[as_it_is]), on_two_replicas()
    assert_equal(found, expected)
