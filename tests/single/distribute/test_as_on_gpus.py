"""Steps traced as for GPUs, so that the host never blocks, and computed on CPUs match a single replica on a CPU."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from custom_step import CustomStep
from helpers import FLOAT32, assert_close, mirrored
from xla_trials import take_for_gpus

import unisono
from unisono.distribute import replicas
from unisono.distribute.hardware import devices
from unisono.optimizers.stages import aggregators, user_code

RANDOM = np.random.default_rng(7)
# Not divisible by the batch size 6, which is not divisible by 4 replicas.
TOKENS = RANDOM.integers(0, 9, (22, 5)).astype("int32")
LABELS = RANDOM.integers(0, 3, 22).astype("int32")
IMAGES = RANDOM.normal(size=(22, 4, 4, 1)).astype("float32")
L = keras.layers


@pytest.fixture
def as_on_gpus(monkeypatch):
    """Traces steps as for GPUs; returns the sparse gradients whose duplicate rows were merged."""
    take_for_gpus(monkeypatch, modules=(devices, replicas, user_code))
    merged, original = [], aggregators.merge_rows
    monkeypatch.setattr(aggregators, "merge_rows", lambda given: merged.append(given) or original(given))
    return merged


def text(rows, cls=unisono.Model):
    tokens = keras.Input((None,), dtype="int32")
    x = L.Embedding(rows, 4, mask_zero=True)(tokens)
    x = L.Dense(4, "tanh")(x)  # batch size and sequence length are unknown
    return cls(tokens, L.Dense(3)(L.GlobalAveragePooling1D()(x)))


def picture():
    image = keras.Input((4, 4, 1))
    x = L.LayerNormalization()(L.Conv2D(2, 3, padding="same")(image))
    return unisono.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def scaled(**options):
    return unisono.mixed_precision.LossScaleOptimizer(unisono.optimizers.Adam(0.02, **options))


CASES = {
    "more words than tokens": (lambda: text(1000), unisono.optimizers.Adam, {}),
    "fewer words than tokens": (lambda: text(9), unisono.optimizers.Adam, {}),
    "slices clipped": (lambda: text(1000), unisono.optimizers.SGD, {"momentum": 0.9, "global_clipnorm": 0.1}),
    "scaled": (lambda: text(1000), scaled, {"gradient_accumulation_steps": 2}),
    "own logs": (lambda: text(1000, CustomStep), unisono.optimizers.Adam, {}),
    "scaled averages": (picture, scaled, {"use_ema": True, "ema_overwrite_frequency": 3}),
}


def trained(strategy, make, optimizer, options):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make()
        own = type(model) is CustomStep
        metrics = [] if own else ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(**options), loss, metrics=metrics, jit_compile=False)
    x = IMAGES if model.input_shape[1:] == (4, 4, 1) else TOKENS
    data = tf.data.Dataset.from_tensor_slices((x, LABELS)).batch(6)
    history = model.fit(data, epochs=2, verbose=0).history
    return [v.numpy() for v in model.variables], history, [v.numpy() for v in model.optimizer.variables]


@pytest.mark.short("slices clipped")
@pytest.mark.parametrize("name", CASES)
def test_steps_made_as_for_gpus_give_the_numbers_of_one_replica(name, request):
    expected = trained(tf.distribute.get_strategy(), *CASES[name])
    merged = request.getfixturevalue("as_on_gpus")
    for strategy in (mirrored(2), tf.distribute.OneDeviceStrategy("CPU:1")):
        assert_close(trained(strategy, *CASES[name]), expected, FLOAT32, name)
    assert merged


@pytest.mark.short("weights")
@pytest.mark.parametrize("level", ["optimizer", "weights"])
def test_skipped_step_with_sharded_state_leaves_what_was_accumulated(level, request):
    """The branches of gradient accumulation run in separate threads; the guard must hold there too."""
    images = IMAGES.copy()
    images[9] = np.nan  # in the second batch, whose update is due

    def fit():
        keras.utils.set_random_seed(3)
        strategy = unisono.distribute.sharded(mirrored(2), level)
        with strategy.scope():
            model = picture()
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(scaled(gradient_accumulation_steps=2), loss, jit_compile=False)
        model.fit(images, LABELS, batch_size=6, epochs=2, verbose=0, shuffle=False)
        return model.get_weights(), model.optimizer.skipped_steps.numpy()

    expected = fit()
    assert expected[1] == 2
    request.getfixturevalue("as_on_gpus")
    assert_close(fit(), expected, FLOAT32)


def test_skipped_update_of_a_custom_loop_drops_what_was_accumulated(request):
    def weights():
        variable = keras.Variable([1.0, 2.0])
        optimizer = scaled(gradient_accumulation_steps=2)
        apply = tf.function(lambda gradient: optimizer.apply([gradient], [variable]))
        for number in (-90.0, np.nan, 2.0, 4.0):
            apply(tf.constant([number, 1.0]))
        return variable.numpy()

    expected = weights()
    request.getfixturevalue("as_on_gpus")
    np.testing.assert_array_equal(weights(), expected)
