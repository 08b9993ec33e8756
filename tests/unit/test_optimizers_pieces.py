"""The predefined stages compared with hand-computed numbers, the schedules, and the means for custom loops."""

import dataclasses

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono import distribute, optimizers
from unisono.distribute import global_batch_size, global_mean
from unisono.distribute.step_context import StepContext, step_scope

KERNEL = np.array([[3.0, 1.0], [4.0, 1.0]])
BIAS = np.array([12.0])


def pairs(kernel=KERNEL, bias=BIAS, weights=1.0):
    return [
        (tf.constant(kernel), tf.Variable(np.full(kernel.shape, weights))),
        (tf.constant(bias), tf.Variable(np.full(bias.shape, weights))),
    ]


def results(piece, given):
    return [g.numpy() for g, _ in piece(given)]


def test_clip_by_global_norm_scales_all_by_one_factor():
    norm = np.sqrt(9 + 16 + 1 + 1 + 144)
    kernel, bias = results(optimizers.ClipByGlobalNorm(1.0), pairs())
    np.testing.assert_allclose(kernel, KERNEL / norm, rtol=1e-14)
    np.testing.assert_allclose(bias, BIAS / norm, rtol=1e-14)


def test_short_gradients_keep_every_bit():
    for clip in (optimizers.ClipByGlobalNorm, optimizers.ClipByNorm, optimizers.ClipByValue):
        kernel, bias = results(clip(50.0), pairs())
        assert np.array_equal(kernel, KERNEL) and np.array_equal(bias, BIAS)


def test_clip_by_norm_scales_each_alone():
    own = dataclasses.make_dataclass("Own", ["own"], bases=(optimizers.ClipByNorm,), frozen=True)
    kernel, bias = results(own(1.0, 3.0), pairs())
    np.testing.assert_allclose(kernel, KERNEL / np.sqrt(27), rtol=1e-14)
    np.testing.assert_allclose(bias, [1.0], rtol=1e-14)


def test_clip_by_value_cuts_each_number():
    kernel, bias = results(optimizers.ClipByValue(2.0), pairs(kernel=-KERNEL))
    assert kernel.tolist() == [[-2.0, -1.0], [-2.0, -1.0]] and bias.tolist() == [2.0]


def test_not_finite_norm_is_not_hidden():
    for piece in (optimizers.ClipByGlobalNorm(1.0), optimizers.ClipByNorm(1.0)):
        assert not np.isfinite(results(piece, pairs(bias=np.array([np.inf])))[1]).any()


def test_adaptive_clip_compares_each_unit_with_its_weights():
    # Columns are units: gradient norms 5 and sqrt(2), weight norms sqrt(2); the bias is one unit: 12 against 1.
    kernel, bias = results(optimizers.AdaptiveClip(factor=2.0), pairs())
    np.testing.assert_allclose(kernel[:, 0], KERNEL[:, 0] / 5 * 2 * np.sqrt(2), rtol=1e-12)
    assert np.array_equal(kernel[:, 1], KERNEL[:, 1])
    np.testing.assert_allclose(bias, [2.0], rtol=1e-12)


def test_adaptive_clip_lets_zero_weights_grow():
    _, bias = results(optimizers.AdaptiveClip(factor=2.0, epsilon=0.5), pairs(weights=0.0))
    np.testing.assert_allclose(bias, [1.0])


def test_centralize_takes_the_mean_of_each_unit_and_spares_vectors():
    kernel, bias = results(optimizers.centralize, pairs())
    assert kernel.tolist() == [[-0.5, 0.0], [0.5, 0.0]] and bias.tolist() == BIAS.tolist()


def test_decayed_weights_add_the_gradient_of_the_penalty():
    kernel, bias = results(optimizers.AddDecayedWeights(0.5, min_rank=2), pairs(weights=2.0))
    assert kernel.tolist() == (KERNEL + 1).tolist() and bias.tolist() == BIAS.tolist()


def noise_of_three_updates(seed):
    v = keras.Variable(np.zeros(20_000), dtype="float64")
    optimizer = optimizers.SGD(1.0, gradient_transformers=[optimizers.GradientNoise(0.25, 1.0, seed)])
    noise = []
    for _ in range(3):
        before = np.array(v.numpy())
        optimizer.apply_gradients([(tf.zeros_like(v), v)])
        noise.append(before - np.array(v.numpy()))
    return noise


def test_gradient_noise_fades_and_depends_on_seed_and_update_alone():
    first, again, other = (noise_of_three_updates(seed) for seed in (7, 7, 8))
    for t, noise in enumerate(first):
        expected = np.sqrt(0.25 / (1 + t))
        assert abs(noise.std() - expected) < 0.02 * expected and abs(noise.mean()) < 0.02
    assert np.array_equal(first, again)
    assert not np.allclose(first[0], other[0]) and not np.allclose(first[0], first[1] * np.sqrt(2))


def test_updates_so_far_outside_of_a_transformer_is_rejected():
    with pytest.raises(RuntimeError, match="transformer"):
        optimizers.updates_so_far()


PIECES = [
    optimizers.ClipByGlobalNorm(1.0),
    optimizers.ClipByNorm(1.0),
    optimizers.ClipByValue(1.0),
    optimizers.AdaptiveClip(),
    optimizers.centralize,
    optimizers.AddDecayedWeights(0.1),
    optimizers.GradientNoise(seed=3),
]
AGGREGATORS = [optimizers.PackedAggregation(), optimizers.HalfPrecisionAggregation("bfloat16")]
AGGREGATORS += [optimizers.no_aggregation]


@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=helpers.stable_id)
def test_pieces_are_saved_with_the_optimizer(aggregator):
    optimizer = optimizers.Adam(0.1, gradient_transformers=PIECES, gradient_aggregator=aggregator)
    config = optimizers.serialize(optimizer)
    assert (config["module"], config["registered_name"]) == ("unisono.optimizers", "unisono>Adam")
    again = optimizers.deserialize(config)
    assert isinstance(again, optimizers.Adam)
    assert again.gradient_transformers == PIECES and again.gradient_aggregator == aggregator
    assert again.get_config() == optimizer.get_config()


# Schedules.


def test_scaled_rate_is_multiplied_by_the_rule():
    for given, rate in (((256, 1024), 0.4), ((256, 1024, "sqrt"), 0.2), ((256, 64), 0.025)):
        assert optimizers.schedules.scaled(0.1, *given) == pytest.approx(rate)


def test_warm_up_goes_from_the_reference_rate_to_the_scaled_one():
    schedule = optimizers.schedules.scaled(0.1, 8, 32, warmup_steps=4)
    rates = [float(schedule(step)) for step in range(6)]
    np.testing.assert_allclose(rates, [0.1, 0.175, 0.25, 0.325, 0.4, 0.4], rtol=1e-6)


def test_scaled_schedule_keeps_its_shape_and_its_settings():
    base = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    schedule = optimizers.schedules.scaled(base, 8, 16, warmup_steps=1)
    np.testing.assert_allclose([float(schedule(s)) for s in range(3)], [0.1, 0.1, 0.05], rtol=1e-6)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert again.get_config() == schedule.get_config() and float(again(2)) == float(schedule(2))
    optimizer = optimizers.SGD(schedule)
    assert optimizers.SGD.from_config(optimizer.get_config()).get_config() == optimizer.get_config()


# Means.


def test_global_mean_divides_by_samples_as_keras_losses_do():
    y, prediction, weight = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]), np.array([1.0, 0.5, 0.0])
    for reduction in ("sum_over_batch_size", "mean_with_sample_weight"):
        keras_loss = keras.losses.MeanSquaredError(reduction=reduction)(
            y[:, None], prediction[:, None], sample_weight=weight
        )
        ours = global_mean(tf.constant((y - prediction) ** 2), sample_weight=weight, reduction=reduction)
        np.testing.assert_allclose(float(ours), float(keras_loss), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 3), ()])
def test_weights_fit_values_of_more_axes(shape):
    values = np.arange(6.0).reshape(2, 3)
    weight = np.full(shape, 0.5)
    assert float(global_mean(values, weight)) == values.mean() / 2
    assert float(global_mean(values, weight, reduction="mean_with_sample_weight")) == values.mean()


def test_empty_batch_has_mean_zero_and_half_precision_is_summed_in_single():
    assert float(global_mean(tf.zeros([0]))) == 0.0
    mean = global_mean(tf.fill([5000], tf.constant(30.0, tf.float16)))
    assert mean.dtype == tf.float32 and float(mean) == 30.0


def test_mean_inside_a_step_is_that_of_one_device():
    with step_scope(StepContext(0, 1, samples=2, global_samples=8)):
        assert float(global_mean([1.0, 3.0])) == 2.0


def test_global_batch_size_counts_replicas():
    assert global_batch_size(64) == 64
    assert distribute.global_batch_size(4, tf.distribute.get_strategy()) == 4


def test_pieces_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        optimizers.ClipByNorm(1.0).clip_norm = 2.0
