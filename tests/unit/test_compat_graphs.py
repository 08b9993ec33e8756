"""What the trainer touches of TensorFlow without its promise is still there, and still what we take it for."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono.compat.graphs import (
    bytes_kept_for_backward,
    effects,
    first_graph,
    graph_for,
    graph_function,
    only_graph,
)
from unisono.compat.pruning import depends_on_inputs, prune_to
from unisono.compat.variables import plain_variable


def test_many_functions_of_one_line_are_not_warned_about(caplog):
    for value in range(12):
        graph_function(lambda x, value=value: x + value)(tf.constant(1))
    assert not [record for record in caplog.records if "retracing" in record.message]
    assert graph_function(lambda x: x)._omit_frequent_tracing_warning


def test_python_code_is_not_converted():
    seen = []

    def run(x):
        if x is None:
            return tf.constant(0)
        seen.append(type(x).__name__)
        return x + 1

    assert int(graph_function(run)(tf.constant(1))) == 2
    assert seen == ["SymbolicTensor"]


def test_first_graph_is_known_after_a_trace():
    function = graph_function(lambda x: tf.square(x))
    assert first_graph(function) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(tf.constant(2.0))
    assert "Square" in {operation.type for operation in first_graph(function).get_operations()}
    assert first_graph(print) is None


def test_traces_are_counted():
    function = graph_function(lambda x: x, reduce_retracing=True)
    function(tf.constant(1))
    assert function.experimental_get_tracing_count() == 1


def test_plain_variable_belongs_to_no_strategy():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        assert isinstance(tf.Variable(1.0), tf.distribute.DistributedValues)
        variable = plain_variable(tf.constant(1))
        assert not isinstance(variable, tf.distribute.DistributedValues)
        assert int(variable.assign_add(1)) == 2


def test_effects_are_what_does_more_than_compute():
    variable = tf.Variable(1.0)
    found = []

    def run(x):
        with effects() as made:
            y = tf.square(x)
            variable.assign(y)
        found.extend(operation.type for operation in made)
        return y

    graph_function(run)(tf.constant(2.0))
    assert "AssignVariableOp" in found and "Square" not in found
    with effects() as made:
        variable.assign(2.0)
    assert made == []


def test_only_graph_runs_the_graph_of_a_signature_without_looking_for_it():
    traces = []

    def add(pair, steps, first=0):
        traces.append(first)
        return pair["a"] + tf.cast(steps, tf.float32), {"b": pair["b"]}

    signature = [{"b": tf.TensorSpec([None]), "a": tf.TensorSpec([])}, tf.TensorSpec([], tf.int32)]
    function = graph_function(add, input_signature=signature)
    arguments = {"a": tf.constant(1.0), "b": tf.constant([2.0, 3.0])}, tf.constant(4)
    assert only_graph(function) is function  # not traced yet
    expected = function(*arguments)
    for device in ("CPU:0", "CPU:1"):  # for TensorFlow a reason to trace again
        with tf.device(device):
            tf.nest.map_structure(np.testing.assert_array_equal, only_graph(function)(*arguments), expected)
    assert len(traces) == 1


def test_only_graph_leaves_alone_what_may_have_several_graphs():
    function = graph_function(lambda x: x + 1)
    function(tf.constant(1))
    assert only_graph(function) is function
    assert only_graph(len) is len


def test_reshaped_numbers_are_kept_once_for_the_backward_pass():
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            grown = tf.exp(x)  # whose gradient needs its result, as that of the square does, in another shape
            loss = tf.reduce_sum(tf.square(tf.reshape(grown, [32])))
        return tape.gradient(loss, x)

    traced = graph_function(run).get_concrete_function(tf.TensorSpec([4, 8]))
    assert bytes_kept_for_backward(traced.graph) == 32 * 4


def test_graph_for_runs_the_graph_of_arguments_that_came_before():
    traces = []

    def add(nest, other):
        traces.append(nest)
        return nest["a"] + 1, None if other is None else other * 2

    function = graph_function(add, reduce_retracing=True)
    arguments = [
        ({"a": tf.ones(rows)}, other) for rows in (2, 3, 4) for other in (None, tf.ones(2), tf.ones((2, 1)))
    ]
    expected = [function(*given) for given in arguments]
    count = len(traces)
    for _ in range(3):
        for given, wanted in zip(arguments, expected):
            found = graph_for(function, given)(*given)
            tf.nest.map_structure(np.testing.assert_array_equal, found, wanted)
    assert len(traces) == count
    ragged = tf.ragged.constant([[1], [2, 3]])
    for _ in range(2):
        assert graph_for(function, ({"a": ragged}, None)) is function


def test_a_pruned_function_computes_what_it_returns_and_nothing_else():
    counter, weight = tf.Variable(0.0), tf.Variable(3.0)

    def step(x):
        counter.assign_add(1.0)
        return {"product": x * weight, "drawn": tf.random.stateless_uniform([2], [1, 2])}

    pruned = prune_to(step, [tf.TensorSpec([None], tf.float32)])
    found = pruned(tf.constant([1.0, 2.0]))
    np.testing.assert_array_equal(found["product"], [3.0, 6.0])
    weight.assign(4.0)
    np.testing.assert_array_equal(pruned(tf.constant([1.0]))["product"], [4.0])
    assert pruned.draws_numbers and found["drawn"].shape == (2,)
    assert float(counter) == 0.0
    assert prune_to(lambda x: {}, [tf.TensorSpec([], tf.float32)])(tf.constant(1.0)) == {}


def test_what_is_read_after_a_write_is_what_was_there_before():
    counter = tf.Variable(2.0)
    pruned = prune_to(lambda x: x + counter.assign_add(x), [tf.TensorSpec([], tf.float32)])
    assert pruned(tf.constant(3.0)) == 5.0 and float(counter) == 2.0


def test_what_depends_on_a_side_effect_cannot_be_pruned():
    def calls_python(x):
        return x + tf.numpy_function(lambda a: a, [x], tf.float32)

    with pytest.raises(RuntimeError, match="leaves a trace: PyFunc"):
        prune_to(calls_python, [tf.TensorSpec([], tf.float32)])


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: tf.nn.sampled_softmax_loss(
            tf.ones([9, 2]), tf.zeros([9]), tf.constant([[1], [2]]), x, 3, 9
        ),
        lambda x: tf.debugging.check_numerics(x, "not finite"),
        lambda x: keras.ops.ctc_loss([[1], [2]], tf.ones([2, 3, 4]) * x[0, 0], [1, 1], [3, 3]),
    ],
    ids=["sampled softmax", "check_numerics", "ctc_loss"],
)
def test_operations_that_only_seem_to_leave_a_trace_are_pruned(loss):
    pruned = prune_to(loss, [tf.TensorSpec([2, 2], tf.float32)])
    assert np.isfinite(pruned(tf.ones([2, 2]))).all()


def test_a_loop_draws_nothing():
    def counted(x):
        return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (0, x))[1]

    pruned = prune_to(counted, [tf.TensorSpec([], tf.float32)])
    assert pruned(tf.constant(1.0)) == 8.0 and not pruned.draws_numbers


def test_what_variables_and_constants_alone_make_depends_on_no_input():
    variable, constant = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    rows = iter(tf.data.Dataset.from_tensors([5.0, 6.0]).repeat())
    found = {}

    @tf.function(autograph=False)
    def run(given):
        with tf.control_dependencies([given + 1.0]):  # waits for an input, and is computed of none
            same = tf.boolean_mask(variable + constant, [True, False])
        read = next(rows)

        def body(i, total):
            found["in a loop"], found["total of a loop"] = (
                depends_on_inputs(same * 2.0),
                depends_on_inputs(total),
            )
            found["given, in a loop"] = depends_on_inputs(given * 2.0)
            return i + 1, total + same

        tf.while_loop(lambda i, total: i < 2, body, (0, same))
        found.update({"same": depends_on_inputs(same), "read": depends_on_inputs(read * 2.0)})
        found["given"] = depends_on_inputs(same + tf.reduce_sum(given))
        return same

    run(tf.constant([7.0, 8.0]))
    of_none = [name for name, depends in found.items() if not depends]
    assert of_none == ["in a loop", "same"] and len(found) == 6
    assert not depends_on_inputs(constant)
