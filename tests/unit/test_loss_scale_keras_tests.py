"""Keras' own tests of its LossScaleOptimizer hold for ours."""

import unittest

import pytest

from unisono.compat.serialization import our_classes
from unisono.mixed_precision import LossScaleOptimizer

theirs = pytest.importorskip(
    "keras.src.optimizers.loss_scale_optimizer_test", reason="this Keras is installed without its tests"
)


def test_keras_own_tests_hold(monkeypatch):
    monkeypatch.setattr(theirs, "LossScaleOptimizer", LossScaleOptimizer)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(theirs.LossScaleOptimizerTest)
    result = unittest.TestResult()
    with our_classes():
        suite.run(result)
    assert not result.failures and not result.errors, result.failures + result.errors
    assert result.testsRun >= 20
