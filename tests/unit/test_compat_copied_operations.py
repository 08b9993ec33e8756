"""An update traced for one variable and copied to similar ones gives the same graph as tracing each."""

import collections
import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal

import unisono
from unisono.compat.patches import replace_functions
from unisono.compat.tensorflow_graphs import copied_operations
from unisono.compat.tensorflow_graphs.copied_operations import TracedOnce
from unisono.trainer import replacements

assert replacements  # once imported, it lists its replacements

OPTIMIZERS = {
    "sgd": lambda: unisono.optimizers.SGD(0.1),
    "sgd, momentum": lambda: unisono.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.5),
    "adam": lambda: unisono.optimizers.Adam(0.01, amsgrad=True),
    "adam, averages": lambda: unisono.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "adamw": lambda: unisono.optimizers.AdamW(0.01, gradient_accumulation_steps=2),
    "adamax": lambda: unisono.optimizers.Adamax(
        keras.optimizers.schedules.CosineDecay(0.01, 10, warmup_target=0.1, warmup_steps=2), weight_decay=0.1
    ),
    "nadam": lambda: unisono.optimizers.Nadam(0.01),
    "rmsprop": lambda: unisono.optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "adagrad": lambda: unisono.optimizers.Adagrad(0.1),
    "adadelta": lambda: unisono.optimizers.Adadelta(0.1),
    "ftrl": lambda: unisono.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "lion": lambda: unisono.optimizers.Lion(0.01),
    "lamb": lambda: unisono.optimizers.Lamb(0.01, weight_decay=0.1),
    "loss scale": lambda: unisono.mixed_precision.LossScaleOptimizer(unisono.optimizers.Adam(0.01)),
}
SHAPES = [(3, 2), (2,), (3, 2), (2,), (3, 2), ()]


@contextlib.contextmanager
def every_variable_traced(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TracedOnce, "__call__", lambda self, make, places: make())
        yield


@pytest.fixture
def copied(monkeypatch):
    """How many times operations were copied."""
    times = []
    inner = copied_operations._First.copy_for

    def copy_for(self, places):
        done = inner(self, places)
        times.append(done)
        return done

    monkeypatch.setattr(copied_operations._First, "copy_for", copy_for)
    return times


def trained(make):
    """A function that applies gradients three times: the meaning of its graph, and the final bits of all variables."""
    keras.utils.set_random_seed(1)
    with keras.name_scope(""):
        variables = [
            keras.Variable(np.random.normal(size=shape), name=f"v{i}") for i, shape in enumerate(SHAPES)
        ]
    optimizer = make()
    optimizer.build(variables)
    gradients = [tf.constant(np.random.normal(size=shape), tf.float32) for shape in SHAPES]

    @tf.function(autograph=False)
    def step(scale):
        optimizer.apply_gradients([(scale * g, v) for g, v in zip(gradients, variables)])

    with replace_functions():
        for scale in (1.0, -0.5, 2.0):
            step(tf.constant(scale))
    graph = step.get_concrete_function(tf.constant(1.0)).graph
    every = [*variables, *optimizer.variables]
    return meaning(graph, every), [np.array(v) for v in every]


def meaning(graph, variables):
    """Counts each operation with an effect, described by type, attributes, device and everything it depends on.

    Variables are named by their index, so that graphs of the same program on other variables compare equal.
    """
    places = {id(v.value.handle): number for number, v in enumerate(variables)}
    known = {id(inner): f"variable {places.get(id(outer))}" for outer, inner in graph.captures}
    said = {}

    def words(operation):
        if operation.name not in said:
            node = operation.node_def
            functions = [(k, v.func.name) for k, v in sorted(node.attr.items()) if v.HasField("func")]
            branches = [(k, meaning(graph._get_function(name).graph, [])) for k, name in functions]
            attributes = sorted(
                (k, v.SerializeToString()) for k, v in node.attr.items() if not v.HasField("func")
            )
            inputs = [known.get(id(each)) or (words(each.op), each.value_index) for each in operation.inputs]
            if branches:  # their captures are ordered by Python's memory addresses
                attributes, inputs = [], sorted(map(repr, inputs))
            waits = sorted(words(each) for each in operation.control_inputs)
            content = (operation.type, operation.device, attributes, inputs, waits, branches)
            said[operation.name] = repr(hash(repr(content)))
        return said[operation.name]

    return collections.Counter(words(o) for o in graph.get_operations() if o.op_def.is_stateful)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.short("sgd", "sgd, momentum", "adagrad", "adadelta", "lion")
def test_the_graph_is_the_one_of_a_trace_for_each_variable(name, copied, monkeypatch):
    graph, state = trained(OPTIMIZERS[name])
    assert len(copied) >= 3 and all(copied)
    with every_variable_traced(monkeypatch):
        plain, alone = trained(OPTIMIZERS[name])
    assert graph == plain and sum(graph.values()) > 3
    assert_equal(state, alone)


@pytest.mark.parametrize(
    ("replicas", "options"), [(1, {}), (1, {"jit_compile": True}), (1, {"run_eagerly": True}), (2, {})]
)
@pytest.mark.long
def test_fit_trains_the_same_bits(replicas, options, copied, monkeypatch):
    def trained():
        keras.utils.set_random_seed(1)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
        with strategy.scope():
            layers = [keras.layers.Dense(3, "tanh") for _ in range(4)]
            model = unisono.Sequential([keras.Input((3,)), *layers])
            model.compile(
                unisono.optimizers.AdamW(0.01, use_ema=True), "mse", **({"jit_compile": False} | options)
            )
        x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
        model.fit(x, x, batch_size=4, epochs=2, verbose=0)
        return [*model.get_weights(), *(np.array(v) for v in model.optimizer.variables)]

    state = trained()
    # 3 of 4 matrices and of 4 vectors, by decay, rule and averages, on each replica
    assert len(copied) == (0 if options.get("run_eagerly") else 18 * replicas) and all(copied)
    with every_variable_traced(monkeypatch):
        alone = trained()
    assert_equal(state, alone)


def each_by_one(optimizer, factors):
    """The change of two variables in one step with learning rate 1 and gradients of ones."""
    variables = [keras.Variable(np.zeros(2, "float32"), name=f"v{i}") for i in range(2)]
    optimizer.build(variables)
    step = tf.function(lambda *gradients: optimizer.apply(gradients, variables), autograph=False)
    step(tf.ones(2), tf.ones(2))
    for variable, factor in zip(variables, factors):
        np.testing.assert_array_equal(np.array(variable), [-factor] * 2)


def test_rules_of_users_are_called_for_each_variable(copied, monkeypatch):
    class Named(unisono.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            factor = 2.0 if variable.name.startswith("v1") else 1.0
            super().update_step(factor * gradient, variable, learning_rate)

    class Taking(unisono.optimizers.SGD):
        def assign_sub(self, variable, value):
            super().assign_sub(variable, value if variable.name.startswith("v0") else 3 * value)

    each_by_one(unisono.optimizers.SGD(1.0), [1, 1])
    assert copied == [True]
    each_by_one(Named(1.0), [1, 2])
    each_by_one(Taking(1.0), [1, 3])

    patched = unisono.optimizers.SGD(1.0)
    inner = patched.assign_sub
    patched.assign_sub = lambda variable, value: inner(
        variable, value * (1 if variable.name[:2] == "v0" else 5)
    )
    each_by_one(patched, [1, 5])

    rule = keras.optimizers.SGD.update_step

    @functools.wraps(rule)
    def wrapped(self, gradient, variable, learning_rate):
        rule(self, gradient * (1.0 if variable.name[:2] == "v0" else 7.0), variable, learning_rate)

    monkeypatch.setattr(keras.optimizers.SGD, "update_step", wrapped)
    each_by_one(unisono.optimizers.SGD(1.0), [1, 7])
    assert copied == [True]


def test_rates_of_users_are_asked_for_each_variable(copied):
    rate, other = tf.Variable(0.1), tf.Variable(1.0)
    optimizer = unisono.optimizers.SGD(lambda: rate)
    optimizer.build([rate, other])
    tf.function(lambda *gradients: optimizer.apply(gradients, [rate, other]), autograph=False)(0.01, 1.0)
    np.testing.assert_allclose([rate.numpy(), other.numpy()], [0.099, 0.901], rtol=1e-6)

    decay, other = tf.Variable(0.5), tf.Variable(2.0)
    optimizer = unisono.optimizers.SGD(1.0, weight_decay=decay)
    optimizer.build([decay, other])
    zeros = tf.constant(0.0), tf.constant(0.0)
    tf.function(lambda *gradients: optimizer.apply(gradients, [decay, other]), autograph=False)(*zeros)
    np.testing.assert_allclose([decay.numpy(), other.numpy()], [0.25, 1.5], rtol=1e-6)
    assert copied == []


@pytest.mark.long
def test_a_function_knows_the_variables_of_copies_and_can_be_exported(copied, tmp_path):
    weights = [keras.Variable(np.ones((2, 2), "float32"), name=f"w{i}") for i in range(3)]
    optimizer = unisono.optimizers.Adam(0.1)
    optimizer.build(weights)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.square(x * weight.value)) for weight in weights])
        optimizer.apply(tape.gradient(loss, [weight.value for weight in weights]), weights)
        return loss

    archive = keras.export.ExportArchive()
    archive.add_endpoint("step", step, input_signature=[tf.TensorSpec((2, 2), tf.float32)])
    archive.write_out(str(tmp_path), verbose=False)
    assert copied and all(copied)


def test_copies_are_on_the_devices_of_the_first(copied):
    variables = [tf.Variable(float(i)) for i in range(2)]

    @tf.function(autograph=False)
    def compute(x):
        traced = TracedOnce()
        with tf.device("CPU:1"):
            for variable in variables:
                traced(lambda v=variable: v.assign_add(v * x), [variable])

    operations = compute.get_concrete_function(tf.constant(1.0)).graph.get_operations()
    devices = collections.defaultdict(set)
    for each in operations:
        if each.type in ("ReadVariableOp", "Mul", "AssignAddVariableOp"):
            devices[each.type].add(each.device)
    assert copied == [True] and all(len(each) == 1 for each in devices.values())
    assert devices["ReadVariableOp"] == {""}, "TensorFlow reads a variable on its own device"


def test_code_is_run_where_copies_would_not_be_the_same(copied):
    variables = [tf.Variable(float(i)) for i in range(3)]
    runs = []

    def run(make, places=None):
        runs.clear()
        traced = TracedOnce()
        for variable in variables:
            traced(
                lambda v=variable: (runs.append(1), make(v)),
                [variable] if places is None else places(variable),
            )
        return len(runs)

    def waiting(v):
        with tf.control_dependencies([v.assign_add(1.0)]):
            v.assign_add(1.0)

    def branching(v):
        tf.cond(v > 0, lambda: v.assign_add(1.0), lambda: v.read_value())

    def writing_elsewhere(v):
        v.assign_add(1.0)
        elsewhere.assign_add(1.0)

    elsewhere = tf.Variable(0.0)
    add = lambda v: v.assign_add(1.0)  # noqa: E731
    found = {}

    @tf.function(autograph=False)
    def compute(unknown):
        found["plain"] = run(add)
        found["waits"] = run(waiting)
        found["branches"] = run(branching)
        found["writes elsewhere"] = run(writing_elsewhere)
        found["unknown rank"] = run(add, lambda v: [v, unknown])
        with tf.GradientTape():
            found["recorded"] = run(add)
        rows = tf.IndexedSlices(tf.ones([1]), tf.zeros([1], tf.int32))
        found["slices"] = run(add, lambda v: [v, rows])

        found["eager tensor"] = run(add, lambda v: [v, one])
        with tf.init_scope():
            found["lifted out"] = run(add)

    one = tf.constant(1.0)
    compute.get_concrete_function(tf.TensorSpec(None))
    found["eager"] = run(add)
    tf.debugging.enable_check_numerics()
    try:
        tf.function(lambda: found.update(checked=run(add)), autograph=False).get_concrete_function()
    finally:
        tf.debugging.disable_check_numerics()
    assert found.pop("plain") == 1
    assert found == dict.fromkeys(found, 3)


def test_places_in_a_branch_and_in_a_loop_are_taken_from_outside(copied):
    variables = [tf.Variable([0.0, 0.0]) for _ in range(3)]

    @tf.function(autograph=False)
    def compute(x):
        gradients = [x * number for number in (1.0, 2.0, 3.0)]

        def add():
            traced = TracedOnce()
            for variable, gradient in zip(variables, gradients):
                traced(lambda v=variable, g=gradient: v.assign_add(g * x), [variable, gradient])
            return 0

        tf.cond(x[0] > 0, add, lambda: 0)
        tf.while_loop(lambda i: i < 2, lambda i: i + 1 + add(), [0])

    compute(tf.constant([1.0, 2.0]))
    assert copied == [True] * 4
    for number, variable in enumerate(variables, 1):
        np.testing.assert_array_equal(variable, [3.0 * number, 12.0 * number])
