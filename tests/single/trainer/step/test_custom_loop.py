"""The custom loop of the guide matches the losses and weights of a single device and of `fit`, step by step."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from custom_loop import shared_out

import unisono
from unisono.distribute import global_batch_size, global_mean

STEPS, ROWS = 4, 7  # the batch size is not divisible by 2, 3 or 4
OPTIONS = {"learning_rate": 0.05, "global_clipnorm": 0.5, "weight_decay": 0.01}


def batch(step, dtype):
    numbers = np.random.default_rng(step)
    x = numbers.normal(size=(ROWS, 3)).astype(dtype)
    y = numbers.integers(0, 2, size=(ROWS,))
    weight = numbers.uniform(0, 2, size=(ROWS,)).astype(dtype)
    return x, y, weight


def build(model_class=keras.Sequential):
    keras.utils.set_random_seed(5)
    return model_class([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)])


def loop(strategy, dtype, weighted, in_graph=True):
    """The losses of each step and the final weights."""
    with strategy.scope():
        model, optimizer = build(), unisono.optimizers.Adam(**OPTIONS)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def replica_step(x, y, weight):
        with tf.GradientTape() as tape:
            losses = loss_fn(y, model(x, training=True))
            loss = global_mean(losses, sample_weight=weight if weighted else None)
        optimizer.minimize(loss, model.trainable_variables, tape=tape)
        return loss

    def train_step(*parts):
        return strategy.reduce("SUM", strategy.run(replica_step, args=parts), axis=None)

    function = tf.function(train_step, reduce_retracing=True) if in_graph else train_step
    losses = []
    for step in range(STEPS):
        parts = [shared_out(strategy, array) for array in batch(step, dtype)]
        losses.append(float(function(*parts)))
    assert helpers.copies_are_equal([*model.trainable_variables, *optimizer.variables], strategy)
    return losses, model.get_weights()


def fit(dtype, weighted):
    """The same with `train_on_batch` on a single device."""
    model = build(unisono.Sequential)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(unisono.optimizers.Adam(**OPTIONS), loss, run_eagerly=True)
    losses = []
    for step in range(STEPS):
        x, y, weight = batch(step, dtype)
        model.reset_metrics()
        losses.append(float(model.train_on_batch(x, y, sample_weight=weight if weighted else None)))
    return losses, model.get_weights()


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loop_equals_fit_on_one_device(dtype, weighted):
    keras.config.set_floatx(dtype)
    expected = fit(dtype, weighted)
    tolerance = helpers.FLOAT32 if dtype == "float32" else helpers.FLOAT64
    for replicas in (1, 2, 3, 4):
        actual = loop(helpers.mirrored(replicas), dtype, weighted, in_graph=replicas % 2 == 1)
        helpers.assert_close(actual[0], expected[0], helpers.FLOAT32, "losses")  # `fit` logs in float32
        helpers.assert_close(actual[1], expected[1], tolerance, "weights")


@pytest.mark.long
def test_loop_under_central_storage_and_in_eager_mode():
    expected = fit("float32", weighted=True)
    for strategy, in_graph in ((helpers.strategy("central2"), True), (helpers.mirrored(2), False)):
        actual = loop(strategy, "float32", weighted=True, in_graph=in_graph)
        helpers.assert_close(actual[1], expected[1], helpers.FLOAT32, "weights")


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_global_mean_of_uneven_and_empty_replicas(replicas):
    strategy = helpers.mirrored(replicas)
    values, weights = np.array([1.0, 5.0, 3.0, 2.0]), np.array([1.0, 0.0, 0.5, 2.0])
    cuts = {1: [4], 2: [0, 4], 3: [1, 0, 3]}[replicas]
    bounds = np.cumsum([0, *cuts])

    def mean(reduction, weight):
        def on_replica():
            r = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.range(tf.gather(bounds, r), tf.gather(bounds, r + 1))
            w = None if weight is None else tf.gather(weight, rows)
            return global_mean(tf.gather(values, rows), w, reduction)

        return float(strategy.reduce("SUM", strategy.run(on_replica), axis=None))

    assert mean("sum_over_batch_size", None) == pytest.approx(values.mean(), rel=1e-12)
    assert mean("sum_over_batch_size", weights) == pytest.approx((values * weights).mean(), rel=1e-12)
    expected = np.average(values, weights=weights)
    assert mean("mean_with_sample_weight", weights) == pytest.approx(expected, rel=1e-12)
    with strategy.scope():
        assert global_batch_size(8) == global_batch_size(8, strategy) == 8 * replicas


def test_global_mean_outside_of_the_replicas_is_rejected():
    with helpers.mirrored(2).scope(), pytest.raises(RuntimeError, match=r"outside `strategy.run`"):
        global_mean([1.0])


@pytest.mark.long
def test_strategies_of_several_sizes_with_tensorflows_collectives_share_a_process():
    """TensorFlow gives the collectives of all `MirroredStrategy` instances one group of a fixed size."""

    def sums(replicas):
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])

        def gathered():
            return tf.size(unisono.distribute.gather(tf.ones([2])))

        def on_replica():
            return unisono.distribute.global_mean(tf.ones([2]))

        sizes = tf.function(lambda: strategy.run(gathered))()
        assert {int(size) for size in strategy.experimental_local_results(sizes)} == {2 * replicas}
        shares = tf.function(lambda: strategy.run(on_replica))()
        with strategy.scope():
            model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", "mse")
        loss = model.fit(np.ones((6, 2)), np.zeros(6), batch_size=6, verbose=0).history["loss"]
        return float(sum(strategy.experimental_local_results(shares))), loss

    assert sums(2) == sums(3) == sums(2) == (1.0, [4.0])


@pytest.mark.parametrize("name", ["mirrored3", "central2"])
@pytest.mark.short("central2")
def test_loop_of_tensorflows_guide_draws_on_each_replica_and_counts_each_sample_once(name):
    """A plain function for `strategy.run`, as in TensorFlow's guide, eagerly and in a graph."""
    strategy = helpers.strategy(name)
    replicas, rows = strategy.num_replicas_in_sync, 20

    def drawn():
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = unisono.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5)])
            optimizer = unisono.optimizers.SGD(0.1)
            weight = keras.Variable(np.ones(2, "float32"))
            metrics = [keras.metrics.Mean(), keras.metrics.BinaryAccuracy(), keras.metrics.TruePositives()]

        def replica_step(x):
            outputs = model(x, training=True)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight) / rows * tf.cast(tf.shape(x)[0], "float32")
            optimizer.minimize(loss, [weight], tape=tape)
            ones = tf.ones((tf.shape(x)[0], 1))
            metrics[0].update_state(tf.range(tf.shape(x)[0]))
            for metric in metrics[1:]:
                metric.update_state(ones, ones)
            return outputs

        batch, masks = shared_out(strategy, np.ones((rows, 8), "float32")), []
        for step in (tf.function(replica_step), replica_step):
            for _ in range(2):
                outputs = strategy.experimental_local_results(strategy.run(step, args=(batch,)))
                masks.append([np.array(each)[0] for each in outputs])
        counts = [metrics[0].count, metrics[1].count, metrics[2].accumulator]
        return masks, [float(np.squeeze(np.array(count))) for count in counts], weight.numpy()

    masks, counts, weight = drawn()
    assert counts == [4 * rows] * 3
    np.testing.assert_allclose(weight, 0.6, rtol=1e-5)
    different = {mask.tobytes() for step in masks for mask in step}
    assert len(different) == 4 * replicas
    again = drawn()[0]
    np.testing.assert_array_equal(masks, again)
