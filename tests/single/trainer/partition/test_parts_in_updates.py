"""Updates of weights that are divided over a mesh: every optimizer and option, writes in steps, frozen weights."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT64, OPTIMIZERS, mirrored
from meshes import check_equal, distribution_for, float64, strategy_for  # noqa: F401  (a fixture)

import unisono

L, OPTIMIZER = keras.layers, unisono.optimizers
R = np.random.default_rng(0)
X, Y, TOKENS = R.normal(size=(11, 4)), R.normal(size=(11, 4)), R.integers(0, 8, (11, 6))
EVERY = {  # each weight along an axis
    ".*up/kernel": (None, "model"), ".*up/bias": ("model",), ".*down/kernel": ("model", None), ".*norm/.*": ("model",),
}  # fmt: skip


def mlp(kind=unisono.Model, **options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    h = L.Dense(8, "tanh", name="up", **options)(inputs)
    h = L.BatchNormalization(name="norm", synchronized=True)(h)
    return kind(inputs, L.Dense(4, name="down")(h))


def trained(model, optimizer):
    model.compile(optimizer, "mse", jit_compile=False)
    logs = model.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history
    state = [v.numpy() for v in model.optimizer.variables]
    return [*logs.values(), model.predict(X, verbose=0), *model.get_weights(), *state]


def compare(make, optimizer, shape=(2, 2), layouts=EVERY):
    """Trains on one device and on a mesh; returns the latter's model."""
    expected = trained(make(), optimizer())
    with strategy_for(shape, layouts).scope():
        model = make()
        found = trained(model, optimizer())
    check_equal(found, expected, FLOAT64)
    return model


def parts_of(variable):
    return [tuple(part.shape) for part in variable._value.shards]


UPDATES = {name: lambda name=name: getattr(OPTIMIZER, name)(0.05) for name in OPTIMIZERS} | {
    "averages": lambda: OPTIMIZER.SGD(0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "averages at the end": lambda: OPTIMIZER.Adam(0.05, use_ema=True, ema_momentum=0.5),
    "decayed weights": lambda: OPTIMIZER.SGD(
        0.05, gradient_transformers=[OPTIMIZER.AddDecayedWeights(0.1)], clipnorm=0.1
    ),
    "whole gradients": lambda: OPTIMIZER.Adam(
        0.05,
        gradient_transformers=[
            OPTIMIZER.centralize,
            OPTIMIZER.AdaptiveClip(0.1),
            OPTIMIZER.GradientNoise(0.01),
        ],
        global_clipnorm=0.1,
    ),
    "accumulation": lambda: OPTIMIZER.Lamb(0.05, gradient_accumulation_steps=2, weight_decay=0.1),
    "several": lambda: OPTIMIZER.MultiOptimizer(
        lambda variable: OPTIMIZER.Lamb(0.05) if variable.ndim > 1 else OPTIMIZER.Adam(0.05, clipnorm=0.1)
    ),
    "loss scale": lambda: unisono.mixed_precision.LossScaleOptimizer(OPTIMIZER.Lamb(0.05), initial_scale=8.0),
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.short("averages")
def test_update_of_parts_is_that_of_whole_weights(name):
    model = compare(mlp, UPDATES[name], (1, 2) if name in ("Muon", "Lion") else (2, 2))
    assert parts_of(model.get_layer("up").kernel)[0] == (4, 4)


def test_noise_of_a_table_of_which_a_batch_reads_some_rows_is_that_of_one_device():
    def noisy():
        keras.utils.set_random_seed(1)
        table = L.Embedding(32, 4, name="table")
        model = unisono.Sequential([keras.Input((6,), dtype="int32"), table, L.Dense(2, name="down")])
        noise = [OPTIMIZER.GradientNoise(0.1)]
        model.compile(OPTIMIZER.SGD(0.1, gradient_transformers=noise), "mse", jit_compile=False)
        model.fit(TOKENS, TOKENS[..., None], batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()

    expected = noisy()
    with strategy_for((1, 2), {".*table/embeddings": ("model", None)}).scope():
        found = noisy()
    check_equal(found, expected)


@pytest.mark.parametrize("name", ["max_norm", "unit_norm", "non_neg"])
@pytest.mark.short("unit_norm")
def test_constraint_sees_the_whole_weight(name):
    compare(lambda: mlp(kernel_constraint=name, bias_constraint="non_neg"), lambda: OPTIMIZER.SGD(0.1))


class Moving(unisono.Model):
    """Takes its gradient at weights that it has moved, as sharpness-aware minimization does."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        moves = [0.1 * g / tf.linalg.global_norm(gradients) for g in gradients]
        for weight, move in zip(self.trainable_variables, moves):
            weight.assign_add(move)
        with tf.GradientTape() as tape:
            there = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(there, self.trainable_variables)
        for weight, move in zip(self.trainable_variables, moves):
            weight.assign_sub(move)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.get_layer("down").kernel.assign(0.99 * self.get_layer("down").kernel)
        return {"loss": loss}


@pytest.mark.long
def test_step_may_assign_divided_weights_before_and_after_the_update():
    compare(lambda: mlp(Moving), lambda: OPTIMIZER.Adam(0.05))


@pytest.mark.long
def test_step_and_layers_may_assign_weights_that_the_batch_divides():
    layouts = {
        ".*up/kernel": ("batch", "model"), ".*down/kernel": ("model", "batch"), ".*norm/moving_mean": ("batch",)
    }  # fmt: skip
    compare(lambda: mlp(Moving), lambda: OPTIMIZER.Adam(0.05), layouts=layouts)


@pytest.mark.long
def test_layer_may_assign_a_divided_weight():
    def make():
        keras.utils.set_random_seed(1)
        spectral = L.SpectralNormalization(L.Dense(8, name="up"))
        return unisono.Sequential([keras.Input((4,)), spectral, L.Dense(4, name="down")])

    compare(
        make,
        lambda: OPTIMIZER.SGD(0.05),
        layouts={".*up/kernel": (None, "model"), ".*down/kernel": ("model", None)},
    )


@pytest.mark.long
def test_frozen_weights_and_states_of_layers_have_their_layouts():
    def make():
        keras.utils.set_random_seed(1)
        up = L.Dense(8, "relu", trainable=False, name="up")
        down = L.Dense(4, name="down")
        model = unisono.Sequential(
            [keras.Input((4,)), up, L.BatchNormalization(name="norm", synchronized=True), down]
        )
        down.trainable = False
        return model

    model = compare(make, lambda: OPTIMIZER.SGD(0.05), (1, 4))
    up, norm, down = (model.get_layer(name) for name in ("up", "norm", "down"))
    assert parts_of(up.kernel)[0] == (4, 2)
    assert parts_of(down.kernel)[0] == (2, 4)
    assert parts_of(norm.moving_mean)[0] == (2,)


@pytest.mark.long
def test_statistics_of_each_replica_are_written_in_parts():
    def make():
        keras.utils.set_random_seed(1)
        norm = L.BatchNormalization(name="norm")  # not synchronized
        return unisono.Sequential([keras.Input((4,)), L.Dense(8, name="up"), norm, L.Dense(4, name="down")])

    with mirrored(2).scope():
        expected = trained(make(), OPTIMIZER.SGD(0.05))
    with strategy_for((2, 2), EVERY).scope():
        model = make()
        found = trained(model, OPTIMIZER.SGD(0.05))
    check_equal(found, expected)
    assert parts_of(model.get_layer("norm").moving_variance) == [(4,)] * 4


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
@pytest.mark.long
def test_quantized_kernels_and_lora_have_their_layouts():
    def make():
        keras.utils.set_random_seed(1)
        up, down = L.Dense(8, "relu", name="up"), L.Dense(4, name="down")
        model = unisono.Sequential([up, down])
        model.build((None, 4))
        model.quantize("int8")
        up.enable_lora(2)
        return model

    layouts = {
        ".*up/kernel": (None, "model"),
        ".*up/lora_kernel_b": (None, "model"),
        ".*down/kernel": ("model", None),
    }
    model = compare(make, lambda: OPTIMIZER.SGD(0.05), (1, 2), layouts)
    assert parts_of(model.get_layer("up")._kernel)[0] == (4, 4)


def test_model_that_was_trained_on_one_device_goes_on_on_a_mesh():
    expected, model = mlp(), mlp()
    for each in (expected, model):
        trained(each, OPTIMIZER.Adam(0.05, use_ema=True))
    expected.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    keras.distribution.set_distribution(distribution_for((2, 2), EVERY))
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    keras.distribution.set_distribution(None)
    check_equal(model.get_weights(), expected.get_weights(), FLOAT64)
    assert parts_of(model.get_layer("up").kernel)[0] == (4, 4)
    assert all(parts_of(v)[0] == (4, 4) for v in model.optimizer.variables if "up_kernel" in v.path)


@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.short("True")
def test_anomalies_in_parts_are_found_as_on_one_device(poisoned):
    def watched(model):
        model.compile(OPTIMIZER.SGD(0.05), "mse", jit_compile=False)
        x, report = X.copy(), unisono.callbacks.AnomalyReport()
        x[7:, 0] = np.nan if poisoned else x[7:, 0]
        expects = pytest.warns(unisono.callbacks.AnomalyWarning) if poisoned else contextlib.nullcontext()
        with expects:
            model.fit(x, Y, batch_size=4, shuffle=False, verbose=0, callbacks=[report])
        said = (report.report or {}).get("first"), (report.report or {}).get("gradients")
        return said, model.get_weights()

    said, expected = watched(mlp())
    with strategy_for((2, 2), EVERY).scope():
        found_said, found = watched(mlp())
    assert found_said == said
    check_equal(found, expected)
