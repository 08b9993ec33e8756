"""Keras' own tests of its LossScaleOptimizer hold for ours."""

import unittest

import keras
import pytest

from unisono.mixed_precision import LossScaleOptimizer

theirs = pytest.importorskip(
    "keras.src.optimizers.loss_scale_optimizer_test", reason="this Keras is installed without its tests"
)


def test_keras_own_tests_hold(monkeypatch):
    monkeypatch.setattr(theirs, "LossScaleOptimizer", LossScaleOptimizer)
    monkeypatch.setitem(keras.saving.get_custom_objects(), "LossScaleOptimizer", LossScaleOptimizer)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(theirs.LossScaleOptimizerTest)
    result = unittest.TestResult()
    suite.run(result)
    assert not result.failures and not result.errors, result.failures + result.errors
    assert result.testsRun >= 20
