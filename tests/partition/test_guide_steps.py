"""Custom training steps from guides: three uneven replicas, the last one finally empty, against one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT64, assert_close, mirrored, scope
from partition.guide_steps import IMAGES, STEPS, TOKENS, Normalized, RaggedText, T
from traced_steps import record_traced_steps

pytestmark = pytest.mark.usefixtures("float64")


def _fitted(kind, strategy, batches):
    keras.utils.set_random_seed(1)
    with scope(strategy):
        model = kind()
        model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    history = model.fit(batches, epochs=1, verbose=0).history
    return history, [w.numpy() for w in model.weights]


def _batches(kind, data):
    if kind is RaggedText:
        data = (tf.RaggedTensor.from_tensor(TOKENS, [n % 5 + 1 for n in range(len(TOKENS))]), *data[1:])
    return tf.data.Dataset.from_tensor_slices(tuple(data)).batch(5)


def _communicated(program):
    """The number of gathered and of reduced tensors."""
    sharded = [program.values[n.source].label.is_sharded for n in program.nodes if program.communicates(n)]
    return sum(sharded), len(sharded) - sum(sharded)


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.kind.__name__)
@pytest.mark.falls_back
def test_step_matches_one_device_and_communicates_as_little(step, monkeypatch):
    steps = record_traced_steps(monkeypatch)
    batches = _batches(step.kind, step.data)
    history, weights = _fitted(step.kind, mirrored(3), batches)
    expected_history, expected = _fitted(step.kind, None, batches)
    assert_close(history, expected_history, 10 * FLOAT64, "logs")
    assert_close(weights, expected, 10 * FLOAT64, "weights")
    found = [_communicated(each.program) for each in steps]
    assert found == ([] if step.reduced is None else [(step.gathered, step.reduced)])


@pytest.mark.long
def test_replica_without_samples_adds_nothing_to_batch_statistics():
    batches = tf.data.Dataset.from_tensor_slices((IMAGES[:2], T[:2])).batch(2)
    assert_close(
        _fitted(Normalized, mirrored(3), batches), _fitted(Normalized, mirrored(2), batches), FLOAT64
    )


@pytest.mark.long
def test_logs_of_batch_statistics_are_those_that_are_written():
    batches = tf.data.Dataset.from_tensor_slices((IMAGES, T)).batch(5)
    logs, weights = _fitted(Normalized, mirrored(3), batches)
    moving = weights[4]
    found = [logs[name][-1] for name in ("moving", "first", "all")]
    assert_close(found, [moving.mean(), moving[0], np.linalg.norm(moving + 1.0)], FLOAT64)
