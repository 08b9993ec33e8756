"""LossScaleOptimizer on one device: what it computes, skips, rejects and saves."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal

from unisono import mixed_precision, optimizers
from unisono.distribute.step_context import StepContext, step_scope
from unisono.mixed_precision import LossScaleOptimizer, skipped_steps
from unisono.mixed_precision.policy import wrap_optimizer

GRADIENT = [1.0, 6.0, 7.0, 2.0]


def variable(dtype="float32"):
    return keras.Variable([1.0, 2.0, 3.0, 4.0], dtype=dtype, name="v")


def test_finite_step_is_the_inner_optimizers_step_on_the_unscaled_gradient():
    optimizer, v = LossScaleOptimizer(keras.optimizers.SGD(0.5)), variable()
    optimizer.apply([tf.constant(GRADIENT) * optimizer.initial_scale], [v])
    np.testing.assert_array_equal(v.numpy(), [0.5, -1.0, -0.5, 3.0])
    assert (int(optimizer.iterations), int(optimizer.step_counter)) == (1, 1)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_skipped_step_changes_nothing_but_scale_and_counters(bad):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    inner = keras.optimizers.Adam(schedule, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=1)
    optimizer, v = LossScaleOptimizer(inner), variable()
    optimizer.apply([tf.constant(GRADIENT) * 2.0**15], [v])
    before, rate = [x.numpy() for x in [*inner.variables, v]], float(optimizer.learning_rate)
    optimizer.apply([tf.constant([1.0, bad, 7.0, 2.0])], [v])
    assert_equal(before, [*inner.variables, v])
    assert float(optimizer.learning_rate) == rate
    assert skipped_steps.step_logs(optimizer) == {"loss_scale": 2.0**14, "skipped_steps": 1}
    assert int(optimizer.step_counter) == 0


def test_one_bad_gradient_of_several_skips_all_of_them():
    optimizer, a, b = LossScaleOptimizer(keras.optimizers.SGD(0.5)), variable(), variable()
    optimizer.apply([tf.constant(GRADIENT), tf.constant(GRADIENT) * np.nan], [a, b])
    np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_skipped_step_with_sparse_gradient():
    optimizer, table = LossScaleOptimizer(keras.optimizers.Adam()), keras.Variable(np.ones((5, 2)))
    for number in (1.0, np.inf):
        before = table.numpy()
        slices = tf.IndexedSlices(
            tf.fill([3, 2], tf.constant(number, tf.float32)), tf.constant([1, 1, 3]), [5, 2]
        )
        optimizer.apply([slices], [table])
        assert np.array_equal(before, table.numpy()) == np.isinf(number)
    assert np.isfinite(table.numpy()).all()


def test_float16_gradients_are_unscaled_in_float32():
    """2**-20 underflows in float16; scaled it does not, and the update of the float32 copy receives it."""
    seen = []
    seeing = lambda pairs: seen.append(pairs[0][0]) or pairs  # noqa: E731
    optimizer = LossScaleOptimizer(optimizers.SGD(1.0, gradient_transformers=[seeing]))
    v = variable("float16")
    optimizer.apply([tf.constant([2.0**-5] * 4, tf.float16)], [v])
    assert seen[0].dtype == tf.float32
    np.testing.assert_array_equal(seen[0], [2.0**-20] * 4)


def test_gradients_that_underflow_without_scaling_survive_with_it():
    v = variable()

    def gradient(optimizer):
        with tf.GradientTape() as tape:
            small = tf.cast(v.value, tf.float16) * tf.constant(1e-4, tf.float16)
            loss = tf.reduce_sum(tf.cast(small, tf.float32)) * 1e-5
            loss = optimizer.scale_loss(loss)
        return tape.gradient(loss, v.value)

    np.testing.assert_array_equal(gradient(keras.optimizers.SGD()), [0.0] * 4)
    scaled = gradient(LossScaleOptimizer(keras.optimizers.SGD())) / 2.0**15
    np.testing.assert_allclose(scaled, [1e-9] * 4, rtol=2**-10)


def test_transformers_and_clipping_see_unscaled_gradients_and_never_overflow():
    seen = []
    inner = optimizers.SGD(
        1.0, global_clipnorm=1.0, gradient_transformers=[lambda pairs: seen.append(pairs[0][0]) or pairs]
    )
    optimizer, v = LossScaleOptimizer(inner), variable()
    optimizer.apply([tf.constant([3.0, 4.0, 0.0, 0.0]) * 2.0**15], [v])
    np.testing.assert_array_equal(seen[0], [3.0, 4.0, 0.0, 0.0])
    np.testing.assert_allclose(v.numpy(), [0.4, 1.2, 3.0, 4.0], rtol=1e-6)


@pytest.mark.parametrize("in_graph", [False, True])
def test_minimize_scales_and_unscales(in_graph):
    optimizer, v = LossScaleOptimizer(optimizers.SGD(0.5)), variable()

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v.value * tf.constant(GRADIENT))
        optimizer.minimize(loss, [v], tape=tape)
        optimizer.minimize(lambda: tf.reduce_sum(v.value * tf.constant(GRADIENT)), [v])

    (tf.function(step) if in_graph else step)()
    np.testing.assert_array_equal(v.numpy(), np.array([1, 2, 3, 4]) - np.array(GRADIENT))
    assert int(optimizer.iterations) == 2


def test_apply_gradients_returns_the_count_of_applied_steps():
    optimizer, v = LossScaleOptimizer(optimizers.SGD(0.5)), variable()
    counts = [int(optimizer.apply_gradients([(tf.constant(GRADIENT) * x, v)])) for x in (1, np.inf, 1)]
    assert counts == [1, 1, 2]


def test_scale_loss_widens_float16_but_not_float64():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD())
    scaled = optimizer.scale_loss(tf.constant(60000.0, tf.float16))
    assert scaled.dtype == tf.float32 and np.isfinite(scaled)
    assert optimizer.scale_loss(tf.constant(1.0, tf.float64)).dtype == tf.float64
    assert float(optimizer.scale_loss(1.0)) == 2.0**15


def test_scale_follows_the_rule_and_the_limits():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(), 4.0, 2, min_scale=2.0, max_scale=8.0)
    v, scales = variable(), []
    for number in [1, 1, 1, 1, 1, np.inf, np.inf, np.inf, 1, 1]:
        optimizer.apply([tf.constant([number] * 4, tf.float32)], [v])
        scales.append(float(optimizer.dynamic_scale))
    assert scales == [4, 8, 8, 8, 8, 4, 2, 2, 2, 4]


def test_fixed_scale_skips_but_never_moves():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(), 128, 1, min_scale=128, max_scale=128)
    v = variable()
    for number in [1, np.inf, 1]:
        optimizer.apply([tf.constant([number] * 4, tf.float32)], [v])
    assert skipped_steps.step_logs(optimizer) == {"loss_scale": 128.0, "skipped_steps": 1}


@pytest.mark.parametrize("bad_call", [0, 1, 2])
def test_overflow_in_one_accumulated_call_skips_the_whole_update_once(bad_call):
    """Like one large batch: nothing is applied or counted, the scale is halved once, and the next update is clean."""
    optimizer = LossScaleOptimizer(optimizers.Adam(0.5, gradient_accumulation_steps=3))
    v, expected_v = variable(), variable()
    expected = LossScaleOptimizer(optimizers.Adam(0.5, gradient_accumulation_steps=3))
    for i in range(3):
        optimizer.apply([tf.constant(GRADIENT) * (np.inf if i == bad_call else 2.0**15)], [v])
    np.testing.assert_array_equal(v.numpy(), [1, 2, 3, 4])
    assert (int(optimizer.iterations), int(optimizer.inner_optimizer._iterations)) == (0, 0)
    assert skipped_steps.step_logs(optimizer) == {"loss_scale": 2.0**14, "skipped_steps": 1}
    for i in range(3):
        optimizer.apply([tf.constant(GRADIENT) * 2.0**14 * i], [v])
        expected.apply([tf.constant(GRADIENT) * 2.0**15 * i], [expected_v])
    np.testing.assert_array_equal(v.numpy(), expected_v.numpy())
    assert_equal(optimizer.inner_optimizer.variables, expected.inner_optimizer.variables)
    assert int(optimizer.step_counter) == 1


def test_accumulation_without_overflow_moves_the_scale_once_an_update():
    optimizer = LossScaleOptimizer(optimizers.SGD(0.5, gradient_accumulation_steps=2), dynamic_growth_steps=3)
    v = variable()
    for _ in range(6):
        optimizer.apply([tf.constant(GRADIENT)], [v])
    assert float(optimizer.dynamic_scale) == 2.0**16
    assert int(optimizer.iterations) == 3


def test_plain_keras_loss_scale_optimizer_becomes_ours_with_its_state():
    theirs, v = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), 64.0, 5), variable()
    theirs.build([v])
    theirs.dynamic_scale.assign(32.0)
    ours = wrap_optimizer(theirs, keras.Model())
    assert ours is theirs and isinstance(ours, LossScaleOptimizer)
    ours.apply([tf.constant(GRADIENT) * np.nan], [v])
    ours.apply([tf.constant(GRADIENT) * 16.0], [v])
    np.testing.assert_array_equal(v.numpy(), [0.5, -1.0, -0.5, 3.0])
    assert skipped_steps.step_logs(ours) == {"loss_scale": 16.0, "skipped_steps": 1}


def test_wrap_optimizer_asks_the_policy():
    sgd = keras.optimizers.SGD
    wrap = wrap_optimizer
    mixed = keras.Model(dtype="mixed_float16")
    assert isinstance(wrap(sgd(), mixed), LossScaleOptimizer)
    assert not isinstance(wrap(sgd(), mixed, auto_scale_loss=False), LossScaleOptimizer)
    assert not isinstance(wrap(sgd(), keras.Model(dtype="mixed_bfloat16")), LossScaleOptimizer)
    assert wrap(None, mixed) is None
    head = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2, dtype="mixed_float16"), keras.layers.Dense(1)]
    )
    assert isinstance(wrap(sgd(), head), LossScaleOptimizer)
    with mixed_precision.policy_scope("mixed_float16", loss_scale=None):
        assert not isinstance(wrap(sgd(), keras.Model()), LossScaleOptimizer)
    with mixed_precision.policy_scope("mixed_float16", loss_scale=512):
        fixed = wrap(sgd(), keras.Model())
    assert fixed.rule.is_fixed and float(fixed.dynamic_scale) == 512


def test_check_progress_stops_after_the_limit_and_names_the_layer():
    optimizer, v = LossScaleOptimizer(keras.optimizers.SGD(), min_scale=2.0**-100), variable()
    for _ in range(49):
        optimizer.apply([tf.constant(GRADIENT) * np.nan], [v])
    skipped_steps.check_progress(optimizer)
    optimizer.apply([tf.constant(GRADIENT) * np.nan], [v])
    words = r"last 50 steps were skipped.*2\.91038e-11 \(the limit is 50\)\. The layer at scale 5\.8.*float32"
    with pytest.raises(mixed_precision.LossScaleError, match=words):
        skipped_steps.check_progress(optimizer, lambda scale: f"The layer at scale {scale}.")
    optimizer.apply([tf.constant(GRADIENT)], [v])
    skipped_steps.check_progress(optimizer)


def test_check_progress_stops_at_the_floor_but_not_with_a_fixed_scale():
    v = variable()
    falling = LossScaleOptimizer(keras.optimizers.SGD(), 8.0, min_scale=2.0)
    fixed = LossScaleOptimizer(keras.optimizers.SGD(), 8.0, min_scale=8.0, max_scale=8.0)
    for _ in range(2):
        skipped_steps.check_progress([falling, fixed, keras.optimizers.SGD()])
        falling.apply([tf.constant(GRADIENT) * np.nan], [v])
        fixed.apply([tf.constant(GRADIENT) * np.nan], [v])
    skipped_steps.check_progress(fixed)
    with pytest.raises(mixed_precision.LossScaleError, match=r"last 2 steps.*its floor is 2\)"):
        skipped_steps.check_progress(falling)


def test_step_logs_of_none_one_and_several():
    assert skipped_steps.step_logs(None) == skipped_steps.step_logs(keras.optimizers.SGD()) == {}
    two = [LossScaleOptimizer(keras.optimizers.SGD(), name=name) for name in ("a", "b")]
    assert list(skipped_steps.step_logs(two)) == [
        "a_loss_scale", "a_skipped_steps", "b_loss_scale", "b_skipped_steps",
    ]  # fmt: skip


def test_configuration_round_trip_and_what_keras_expects_of_it():
    plain = LossScaleOptimizer(keras.optimizers.SGD(0.5), 3.0, 2, name="scaled").get_config()
    assert set(plain) == {"name", "inner_optimizer", "initial_scale", "dynamic_growth_steps"}
    assert keras.optimizers.LossScaleOptimizer.from_config(dict(plain)).initial_scale == 3.0
    limited = LossScaleOptimizer(keras.optimizers.SGD(0.5), 3.0, 2, min_scale=1.0, max_scale=4.0)
    config = keras.optimizers.serialize(limited)
    assert config["module"] == "keras.optimizers"
    again = optimizers.deserialize(config)
    assert type(again) is LossScaleOptimizer and again.rule == limited.rule
    assert keras.optimizers.LossScaleOptimizer.from_config(dict(config["config"])).initial_scale == 3.0


def test_optimizer_in_a_file_is_ours_in_our_scope_and_keras_own_elsewhere():
    saved = keras.optimizers.serialize(LossScaleOptimizer(keras.optimizers.SGD(), min_scale=4.0))
    assert type(keras.optimizers.deserialize(copy.deepcopy(saved))) is keras.optimizers.LossScaleOptimizer
    assert "LossScaleOptimizer" not in keras.saving.get_custom_objects()
    ours = optimizers.deserialize(copy.deepcopy(saved))
    assert type(ours) is LossScaleOptimizer and ours.min_scale == 4.0
    assert copy.deepcopy(ours).min_scale == 4.0


@pytest.mark.parametrize("accumulation", [None, 3])
def test_state_round_trip_and_keras_layout(accumulation):
    def build(v=None):
        optimizer = LossScaleOptimizer(keras.optimizers.Adam(gradient_accumulation_steps=accumulation))
        optimizer.build([variable() if v is None else v])
        return optimizer

    v, store = variable(), {}
    optimizer = build(v)
    for number in [1, 1, 1, np.nan, np.nan, 1, 1, np.inf]:
        optimizer.apply([tf.constant(GRADIENT) * number], [v])
    optimizer.save_own_variables(store)
    again = build()
    again.load_own_variables(store)
    assert_equal(optimizer.variables, again.variables)
    third = build()
    third.set_weights(optimizer.get_weights())
    assert_equal(optimizer.variables, third.variables)


def test_plain_keras_reads_our_state_and_we_read_theirs():
    ours, v, store = LossScaleOptimizer(keras.optimizers.Adam()), variable(), {}
    for number in [1, np.nan, 1]:
        ours.apply([tf.constant(GRADIENT) * number], [v])
    ours.save_own_variables(store)
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    theirs.build([v])
    theirs.load_own_variables(store)
    assert (float(theirs.dynamic_scale), int(theirs.step_counter), int(theirs.iterations)) == (2.0**14, 1, 2)
    store.clear()
    theirs.save_own_variables(store)
    again = LossScaleOptimizer(keras.optimizers.Adam())
    again.build([v])
    again.load_own_variables(store)
    assert (float(again.dynamic_scale), int(again.skipped_steps), int(again.iterations)) == (2.0**14, 1, 2)


def test_float8_style_variables_take_their_gradient_as_it_is():
    optimizer, v = LossScaleOptimizer(keras.optimizers.SGD(0.5)), variable()
    v.overwrite_with_gradient = True
    optimizer.apply([tf.constant(GRADIENT)], [v])
    np.testing.assert_array_equal(v.numpy(), GRADIENT)


def test_checkpoint_of_tensorflow_holds_scale_and_counters(tmp_path):
    optimizer, v = LossScaleOptimizer(keras.optimizers.Adam()), variable()
    optimizer.apply([tf.constant(GRADIENT) * np.nan], [v])
    path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "c"))
    again = LossScaleOptimizer(keras.optimizers.Adam())
    again.build([variable()])
    tf.train.Checkpoint(optimizer=again).restore(path)
    assert skipped_steps.step_logs(again) == {"loss_scale": 2.0**14, "skipped_steps": 1}


def test_step_divides_by_the_scale_that_it_multiplied_with():
    """Another worker may change the scale between the loss of a step and its gradients."""
    step = StepContext(replica_id=0, num_replicas=1, samples=4, global_samples=4)
    optimizer, v = LossScaleOptimizer(keras.optimizers.SGD(0.5)), variable()
    with step_scope(step):
        optimizer.scale_loss(1.0)
        optimizer.dynamic_scale.assign(2.0)
        optimizer.apply([tf.constant(GRADIENT) * 2.0**15], [v])
    np.testing.assert_array_equal(v.numpy(), [0.5, -1.0, -0.5, 3.0])
    assert [bool(all_finite) for all_finite in step.finite_checks] == [True]
