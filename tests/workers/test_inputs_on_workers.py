"""Every kind of input on real workers, and on replicas that share one copy of the weights, matches a single device."""

import importlib.util
import sys
from pathlib import Path

import helpers
import numpy as np
import pytest
import tensorflow as tf

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "programs" / "inputs.py"
TOLERANCE = 2e-5  # float32: another summation order than on one device


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("inputs", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules["inputs"] = module  # TensorFlow looks up the source of functions
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def one_device(program):
    return program.run(tf.distribute.get_strategy(), eager=True)


def check_two_workers(start_workers, program, cases, one_device):
    run = start_workers("inputs", count=2, arguments=[cases])
    run.succeed()
    for index in range(2):
        found = dict(np.load(run.out / f"worker-{index}.npz"))
        assert len(found) == 4 * len(getattr(program, cases))
        assert program.differences(found, one_device, TOLERANCE) == []


@pytest.mark.long
def test_every_kind_of_input_on_two_workers_gives_the_results_of_one_device(
    start_workers, program, one_device
):
    check_two_workers(start_workers, program, "CASES", one_device)


@pytest.mark.long
def test_more_kinds_of_input_on_two_workers_give_the_results_of_one_device(start_workers, program):
    more = program.run(tf.distribute.get_strategy(), program.MORE_CASES, eager=True)
    check_two_workers(start_workers, program, "MORE_CASES", more)


@pytest.mark.long
def test_inputs_with_shared_weights_give_the_results_of_one_device(program, one_device):
    found = program.run(helpers.strategy("central2"), program.SHARED_CASES, eager=True)
    assert len(found) == 4 * len(program.SHARED_CASES)
    assert program.differences(found, one_device, TOLERANCE) == []
