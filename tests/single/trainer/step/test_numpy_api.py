"""NumPy code (`tf.experimental.numpy`) in every part of training matches TensorFlow's own operations."""

import json
import pathlib

import helpers
import numpy_program
import pytest
import tensorflow as tf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected():
    one = tf.distribute.get_strategy()
    return {"fit": numpy_program.train(one, numpy=False), "loop": numpy_program.custom_loop(one, numpy=False)}


@pytest.mark.parametrize(("replicas", "jit_compile"), [(1, False), (2, True)])
@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`")
@pytest.mark.long
def test_numpy_code_trains_as_operations_do(replicas, jit_compile, expected):
    found = numpy_program.train(numpy_program.mirrored(replicas), numpy=True, jit_compile=jit_compile)
    helpers.assert_close(found, expected["fit"], helpers.FLOAT32, f"{replicas} replicas, XLA {jit_compile}")


@pytest.mark.long
def test_numpy_arrays_of_tensorflow_are_inputs_as_any_other(expected):
    found = numpy_program.train(numpy_program.mirrored(2), numpy=True, arrays=True)
    helpers.assert_close(found, expected["fit"], helpers.FLOAT32)


def test_gradient_tape_goes_through_numpy_code_in_a_custom_loop(expected):
    found = numpy_program.custom_loop(numpy_program.mirrored(3), numpy=True)
    helpers.assert_close(found, expected["loop"], helpers.FLOAT32)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("promotion", ["float32", "float64"])
def test_training_holds_with_numpy_behaviour_switched_on(promotion, expected, forked, tmp_path):
    # It cannot be switched off again, so the test needs its own process.
    program = pathlib.Path(numpy_program.__file__)
    printed = forked.run(program, promotion, folder=tmp_path)
    for name, found in json.loads(printed.splitlines()[-1]).items():
        right = expected["loop" if name.startswith("loop") else "fit"]
        helpers.assert_close(found, right, helpers.FLOAT32, name)
