"""On one device every optimizer matches plain Keras over 20 steps, with and without its options."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono import optimizers

SHAPES = [(4, 3), (3,), (2, 3, 4)]
STEPS = 20
# The same formulas with another order of operations; a tolerance for float64 after 20 steps. Muon computes in float32 in
# Keras (it multiplies by its float32 learning rate), and its chaotic Newton-Schulz iteration amplifies the difference.
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}

SGD_LIKE = {"SGD": {"momentum": 0.9, "nesterov": True}, "RMSprop": {"momentum": 0.9, "centered": True}}
EVERYTHING = {"weight_decay": 0.01, "clipnorm": 0.5, "use_ema": True, "ema_overwrite_frequency": 3}


def make_variables(dtype):
    numbers = np.random.default_rng(1)
    return [keras.Variable(numbers.normal(size=s), dtype=dtype, name=f"v{i}") for i, s in enumerate(SHAPES)]


def gradients_of(step, dtype):
    numbers = np.random.default_rng(100 + step)
    return [tf.constant(numbers.normal(size=s), dtype) for s in SHAPES]


def train(optimizer, dtype, in_graph):
    variables = make_variables(dtype)

    def apply(*gradients):
        optimizer.apply_gradients(zip(gradients, variables))

    function = tf.function(apply) if in_graph else apply
    for step in range(STEPS):
        function(*gradients_of(step, dtype))
    return [v.numpy() for v in [*variables, *optimizer.variables]]


@pytest.mark.short("RMSprop-everything", "SGD-everything")
@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("name", helpers.OPTIMIZERS)
def test_optimizer_equals_keras_after_20_steps(name, options):
    dtype = "float32" if name == "Muon" else "float64"
    options = {**options, **SGD_LIKE.get(name, {})}
    expected = train(getattr(keras.optimizers, name)(**options), dtype, in_graph=False)
    ours = getattr(optimizers, name)(**options)
    assert isinstance(ours, getattr(keras.optimizers, name)) and isinstance(ours, optimizers.Optimizer)
    actual = train(ours, dtype, in_graph=bool(options.get("use_ema")))
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    "options",
    [
        {"clipvalue": 0.3},
        {"global_clipnorm": 0.5},
        {"loss_scale_factor": 8.0},
        {"gradient_accumulation_steps": 2},
        {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)},
        {"use_ema": True, "ema_momentum": 0.5},
        {"amsgrad": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_option_equals_keras(options):
    expected = train(keras.optimizers.Adam(**options), "float64", in_graph=False)
    actual = train(optimizers.Adam(**options), "float64", in_graph=False)
    if "gradient_accumulation_steps" in options:
        # the accumulated gradient, which Keras does not have, after a whole number of updates
        assert actual.pop() == 0.0
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_subclasses_of_keras_stay_subclasses():
    assert issubclass(optimizers.AdamW, optimizers.Adam)
    assert issubclass(optimizers.Adam, optimizers.Optimizer)
    assert not issubclass(keras.optimizers.Adam, optimizers.Optimizer)


def test_variable_excluded_from_weight_decay_does_not_decay():
    a, b = keras.Variable([1.0], name="kernel"), keras.Variable([1.0], name="bias")
    optimizer = optimizers.SGD(1.0, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.apply_gradients([(tf.zeros([1]), a), (tf.zeros([1]), b)])
    assert (a.numpy()[0], b.numpy()[0]) == (0.5, 1.0)


def test_constraint_is_applied_after_the_update():
    v = keras.Variable([1.0, -2.0])
    v.constraint = keras.constraints.NonNeg()
    optimizers.SGD(1.0).apply_gradients([(tf.constant([2.0, -3.0]), v)])
    np.testing.assert_array_equal(v.numpy(), [0.0, 1.0])


@pytest.mark.parametrize("values", [([7.0],), ([7.0], [3.0]), ([7.0], [])])
def test_float8_style_variable_takes_its_gradient_as_value(values):
    v, amax = keras.Variable([1.0]), keras.Variable([0.5])
    amax.overwrite_with_gradient = True
    steps = len(values) if len(values) > 1 else None
    optimizer = optimizers.SGD(1.0, gradient_accumulation_steps=steps, loss_scale_factor=2.0)
    for written in values:
        optimizer.apply_gradients([(tf.constant([2.0]), v), *((tf.constant([a]), amax) for a in written)])
    assert (v.numpy()[0], amax.numpy()[0]) == (0.0, 7.0)
