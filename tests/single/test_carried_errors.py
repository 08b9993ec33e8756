"""16-bit sums with error feedback lose nothing: with skipped steps, under a loss scale, after a resume."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.optimizers import HalfPrecisionAggregation
from unisono.optimizers.stages.error_feedback import errors_of

STEPS = 64
CARRYING = HalfPrecisionAggregation("bfloat16", carry_error=True)
HALF_ULP = 2.0**-9  # of bfloat16, relative


def stepped(strategy, gradients, aggregator, steps=STEPS, wrap=None, variable=None):
    """The variable and the optimizer after `steps` steps of SGD(1) from 0; replica r has the gradient `gradients[r]`."""
    with strategy.scope():
        variable = variable or keras.Variable(np.zeros(len(gradients[0]), "float32"))
        optimizer = unisono.optimizers.SGD(1.0, gradient_aggregator=aggregator)
        outer = wrap(optimizer) if wrap else optimizer

    def replica():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        mine = tf.gather(tf.constant(gradients, tf.float32), index)
        scaled = mine if wrap is None else outer.scale_loss(mine)
        outer.apply_gradients([(scaled, variable)])

    run = tf.function(lambda: strategy.run(replica))
    for _ in range(steps):
        run()
    return variable, outer


def copies(strategy, variable):
    return [c.numpy() for c in strategy.experimental_local_results(variable.value)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_rounded_away_is_carried_over(dtype):
    two = helpers.mirrored(2)
    gradients = [[1 + 2.0**-12, -3 - 2.0**-13, 0.1], [0.0, 0.0, 0.0]]  # the sum needs no rounding
    exact = -STEPS * np.sum(np.array(gradients, "float32").astype("float64"), axis=0)
    bound = (HALF_ULP if dtype == "bfloat16" else 2.0**-12) * 4 + 1e-5 * np.abs(exact)
    carried, _ = stepped(two, gradients, HalfPrecisionAggregation(dtype, carry_error=True))
    lost, _ = stepped(two, gradients, HalfPrecisionAggregation(dtype))
    assert np.all(np.abs(carried.numpy() - exact) <= bound)
    assert np.any(np.abs(lost.numpy() - exact) > bound)
    first, second = copies(two, carried)
    np.testing.assert_array_equal(first, second)


def test_errors_are_those_of_each_replica_and_one_replica_rounds_nothing():
    gradients = [[1 + 2.0**-12], [1 + 2.0**-11]]
    two = helpers.mirrored(2)
    _, optimizer = stepped(two, gradients, CARRYING, steps=1)
    [error] = errors_of(optimizer)
    assert copies(two, error) == [[2.0**-12], [2.0**-11]]
    one = tf.distribute.get_strategy()
    variable, optimizer = stepped(one, gradients[:1], CARRYING, 2)
    np.testing.assert_array_equal(variable.numpy(), [-2 - 2.0**-11])
    assert [error.numpy() for error in errors_of(optimizer)] == [[0.0]]


def test_skipped_step_leaves_the_errors_and_a_loss_scale_does_not_change_them():
    two = helpers.mirrored(2)

    def wrap(inner):
        return unisono.mixed_precision.LossScaleOptimizer(
            inner, initial_scale=2.0**10, dynamic_growth_steps=3
        )

    gradients = [[1 + 2.0**-12, 0.3], [0.25, 2.0**-14]]
    variable, optimizer = stepped(two, gradients, CARRYING, wrap=wrap, steps=9)
    plain, other = stepped(two, gradients, CARRYING, steps=9)
    # The scale is a power of two and has grown.
    np.testing.assert_array_equal(variable.numpy(), plain.numpy())
    [error], [expected] = errors_of(optimizer), errors_of(other)
    np.testing.assert_array_equal(copies(two, error), copies(two, expected))
    before = copies(two, error)

    def overflow():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        optimizer.apply_gradients([(tf.where(index == 1, [np.inf, 0.0], [1.0, 1.0]), variable)])

    tf.function(lambda: two.run(overflow))()
    np.testing.assert_array_equal(copies(two, error), before)
    np.testing.assert_array_equal(variable.numpy(), plain.numpy())


def test_aggregate_gradients_carries_too():
    two = helpers.mirrored(2)
    with two.scope():
        variable = keras.Variable([0.0])
        optimizer = unisono.optimizers.SGD(1.0, gradient_aggregator=CARRYING)
        optimizer.build([variable])

    def replica():
        pairs = optimizer.aggregate_gradients([(tf.constant([1 + 2.0**-12]), variable)])
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)

    run = tf.function(lambda: two.run(replica))
    for _ in range(STEPS):
        run()
    assert abs(variable.numpy()[0] + 2 * STEPS * (1 + 2.0**-12)) <= 4 * HALF_ULP


def test_aggregator_that_is_given_too_late_is_rejected():
    optimizer = unisono.optimizers.SGD(1.0)
    variable = keras.Variable([0.0])
    optimizer.build([variable])
    optimizer.gradient_aggregator = CARRYING
    with pytest.raises(ValueError, match="pass it to the constructor"):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])


def model_on(strategy):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((4,))
        model = unisono.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, "tanh")(inputs)))
        model.compile(unisono.optimizers.Adam(0.01, gradient_aggregator=CARRYING), "mse")
    return model


def data():
    x = np.random.default_rng(1).normal(size=(45, 4)).astype("float32")
    return {"x": x, "y": x[:, :1], "batch_size": 9, "verbose": 0}


def test_resumed_training_has_the_bits_of_the_one_that_was_never_stopped(tmp_path):
    two = helpers.mirrored(2)

    def fit(*callbacks):
        model = model_on(two)
        model.fit(**data(), epochs=2, callbacks=[*callbacks])
        return model

    reference, resumed = fit(), helpers.resumed(fit, tmp_path, 8, save_freq=2)
    helpers.assert_equal(resumed.get_weights(), reference.get_weights())
    for a, b in zip(errors_of(resumed.optimizer), errors_of(reference.optimizer)):
        np.testing.assert_array_equal(copies(two, a), copies(two, b))
        assert not np.array_equal(*copies(two, a))


def test_model_is_near_that_of_float32_sums_and_its_file_holds_no_errors(tmp_path):
    two = helpers.mirrored(2)
    model = model_on(two)
    model.fit(**data(), epochs=2)
    exact = model_on(two)
    exact.optimizer.gradient_aggregator = None
    exact.fit(**data(), epochs=2)
    for a, b in zip(model.get_weights(), exact.get_weights()):
        np.testing.assert_allclose(a, b, atol=10 * 0.01 * HALF_ULP * 4)  # ten Adam steps of 0.01 each
    model.save(tmp_path / "model.keras")
    with two.scope():
        loaded = unisono.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.gradient_aggregator == CARRYING
    assert len(loaded.optimizer.variables) == len(model.optimizer.variables)
    loaded.fit(**data(), epochs=1)
