"""Gradient accumulation with a call counter on the host matches the counter on the device bit for bit."""

import keras
import numpy as np
import pytest
from helpers import assert_equal, mirrored, train

import unisono
from unisono.optimizers.stages.accumulation import CallsOnHost

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(44, 4)).astype("float32")
Y = RANDOM.normal(size=(44, 1)).astype("float32")
WITH_OVERFLOW = Y.copy()
WITH_OVERFLOW[17] = 1e30  # in the fifth micro-batch


def adam(steps=3):
    return unisono.optimizers.Adam(0.01, gradient_accumulation_steps=steps)


def several():
    three, two = adam(3), adam(2)
    return unisono.optimizers.MultiOptimizer(lambda v: two if v.path.endswith("bias") else three)


def scaled():
    return unisono.mixed_precision.LossScaleOptimizer(adam())


def several_scaled():
    """A skipped step counts for none of the inner optimizers."""
    return unisono.mixed_precision.LossScaleOptimizer(several())


class MovesTheCount(keras.callbacks.Callback):
    """Changes the count between two compiled calls, as restoring an optimizer does."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.optimizer._iterations.assign_add(1)


def trained(optimizer, y=Y, replicas=1, callbacks=(), **options):
    def make():
        return unisono.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])

    compiled = {"optimizer": optimizer, "jit_compile": False, "steps_per_execution": 4, **options}
    fit = {"batch_size": 4, "callbacks": [each() for each in callbacks]}
    model, _ = train(make, (X, y), mirrored(2) if replicas == 2 else None, fit, **compiled)
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def counted(monkeypatch):
    """The traced steps for which the host knew the call counts."""
    known, original = [], CallsOnHost.next

    def next(self):
        known.append(original(self))
        return known[-1]

    monkeypatch.setattr(CallsOnHost, "next", next)
    return known


@pytest.mark.short("adam-1-options1")
@pytest.mark.parametrize(
    ("optimizer", "counts", "options"),
    [
        (adam, 1, {"replicas": 2}),
        (adam, 1, {"callbacks": [MovesTheCount]}),
        (several, 2, {}),
        (scaled, 1, {"y": WITH_OVERFLOW}),
        (several_scaled, 2, {"y": WITH_OVERFLOW}),
        (scaled, 1, {"y": WITH_OVERFLOW, "replicas": 2}),
    ],
)
def test_calls_known_on_the_host_give_the_bits_of_those_known_on_the_device(
    optimizer, counts, options, monkeypatch
):
    known = counted(monkeypatch)
    on_host = trained(optimizer, **options)
    assert {len(calls) for calls in known} == {counts}
    monkeypatch.setattr(CallsOnHost, "next", lambda self: {})
    assert_equal(on_host, trained(optimizer, **options))


def test_calls_of_an_optimizer_of_the_users_own_are_counted_by_the_device_alone(monkeypatch):
    known = counted(monkeypatch)
    trained(lambda: type("Own", (unisono.optimizers.Adam,), {})(0.01, gradient_accumulation_steps=3))
    assert known and not any(known)
