"""The private parts of TensorFlow that the trainer uses still exist and behave as expected."""

import numpy as np
import pytest
import tensorflow as tf

from unisono.compat.tensorflow_graphs.graphs import draws, effects, graph_for, graph_function, only_graph


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


def test_only_graph_runs_the_graph_of_a_signature_without_searching_for_it():
    traces = []

    def add(pair, steps, first=0):
        traces.append(first)
        return pair["a"] + tf.cast(steps, tf.float32), {"b": pair["b"]}

    signature = [{"b": tf.TensorSpec([None]), "a": tf.TensorSpec([])}, tf.TensorSpec([], tf.int32)]
    function = graph_function(add, input_signature=signature)
    arguments = {"a": tf.constant(1.0), "b": tf.constant([2.0, 3.0])}, tf.constant(4)
    assert only_graph(function) is function  # not traced yet
    expected = function(*arguments)
    for device in ("CPU:0", "CPU:1"):  # TensorFlow retraces for another device
        with tf.device(device):
            tf.nest.map_structure(np.testing.assert_array_equal, only_graph(function)(*arguments), expected)
    assert len(traces) == 1


def test_only_graph_leaves_alone_what_may_have_several_graphs():
    function = graph_function(lambda x: x + 1)
    function(tf.constant(1))
    assert only_graph(function) is function
    assert only_graph(len) is len


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


@pytest.mark.parametrize(
    "kind", ["RandomUniform", "Multinomial", "LogUniformCandidateSampler", "RandomDatasetV2"]
)
def test_operations_that_draw_from_internal_state_are_known_by_their_definition(kind):
    assert draws(kind)


@pytest.mark.parametrize(
    "kind", ["StatelessRandomUniformV2", "MatMul", "RandomNameOfNoOperation", "ShuffleDatasetV3"]
)
def test_other_operations_draw_nothing(kind):
    assert not draws(kind)
