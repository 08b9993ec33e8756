"""`aggregate_gradients` in a custom `train_step` returns the gradient of the global batch before it is applied."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono import optimizers

ROWS, CLIP = 15, 0.05  # batches of 5 samples, uneven on 2 and on 3 replicas
X = np.random.default_rng(1).normal(size=(ROWS, 4)).astype("float32")
Y = (X @ [1.0, -2.0, 0.5, 3.0])[:, None].astype("float32")


class CustomStep(unisono.Model):
    """Clips the gradient of the global batch, after a penalty on the input gradient, and logs its norm."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                out = self(x, training=True)
                each = tf.reduce_sum(tf.square(tf.cast(y, out.dtype) - out), -1)
            slope = inner.gradient(each, x)
            penalty = tf.reduce_mean(tf.reduce_sum(tf.square(tf.cast(slope, tf.float32)), -1))
            loss = tf.reduce_mean(tf.cast(each, tf.float32)) + 0.01 * penalty
            scaled = self.optimizer.scale_loss(loss)
        variables = self.trainable_variables
        pairs = self.optimizer.aggregate_gradients(zip(tape.gradient(scaled, variables), variables))
        clipped, norm = tf.clip_by_global_norm([g for g, _ in pairs], CLIP)
        self.optimizer.apply_gradients(zip(clipped, variables), skip_gradients_aggregation=True)
        return {"loss": loss, "norm": norm}


def fit_custom_step(name, policy="float32", **options):
    strategy = helpers.strategy(name)
    keras.utils.set_random_seed(1)
    with helpers.scope(strategy):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, "tanh", dtype=policy)(inputs)
        model = CustomStep(inputs, keras.layers.Dense(1, dtype=policy)(hidden))
        optimizer = optimizers.Adam(0.01, **options)
        if policy == "mixed_float16":
            optimizer = unisono.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1024.0)
        model.compile(optimizer, jit_compile=False, run_eagerly=strategy is None)
    history = model.fit(X, Y, batch_size=5, epochs=3, shuffle=False, verbose=0).history
    if strategy is not None:
        assert helpers.copies_are_equal([*model.variables, *model.optimizer.variables], strategy)
    return [history["loss"], history["norm"], *(v.numpy() for v in model.trainable_variables)]


@pytest.fixture(scope="module")
def alone():
    return fit_custom_step("none")


@pytest.mark.long
@pytest.mark.parametrize("name", ["mirrored2", "mirrored3", "central2"])
def test_custom_step_that_clips_the_global_gradient_equals_one_device(name, alone):
    helpers.assert_close(fit_custom_step(name), alone, helpers.FLOAT32)


@pytest.mark.long
def test_custom_step_with_accumulation_equals_one_device():
    several, one = (fit_custom_step(name, gradient_accumulation_steps=2) for name in ("mirrored3", "none"))
    helpers.assert_close(several, one, helpers.FLOAT32)


@pytest.mark.long
def test_custom_step_in_half_precision_equals_one_device_and_is_unscaled_once(alone):
    two, one = (fit_custom_step(name, "mixed_float16") for name in ("mirrored2", "none"))
    helpers.assert_close(two, one, 2e-3)
    helpers.assert_close(one, alone, 0.05)


def quadratic(optimizer, replicas=2):
    """`step(fn)` runs `fn(gradient, variable)` on each replica r; the scaled gradient of a scalar's loss is r + 1."""
    strategy = helpers.mirrored(replicas)
    with strategy.scope():
        variable = keras.Variable(0.0)
        optimizer = optimizer()

    def step(fn, in_graph=True):
        def on_replica():
            r = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss((r + 1) * variable.value)
            fn(optimizer, tape.gradient(loss, variable.value), variable)

        run = lambda: strategy.run(on_replica)  # noqa: E731
        (tf.function(run) if in_graph else run)()
        return float(variable.numpy())

    return step


def scaled_sgd():
    return unisono.mixed_precision.LossScaleOptimizer(optimizers.SGD(1.0), initial_scale=8.0)


def factor_sgd():
    return optimizers.SGD(1.0, loss_scale_factor=4.0)


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize(
    "make", [lambda: optimizers.SGD(1.0), scaled_sgd, factor_sgd], ids=["sgd", "scaled", "factor"]
)
def test_aggregated_gradient_is_unscaled_and_applied_once(make, in_graph):
    step = quadratic(make)
    seen = []

    def clip(optimizer, gradient, variable):
        ((total, _),) = optimizer.aggregate_gradients([(gradient, variable)])
        seen.append(total)
        optimizer.apply_gradients([(total / 3, variable)], skip_gradients_aggregation=True)

    assert step(clip, in_graph) == -1.0
    assert step(clip, in_graph) == -2.0
    assert in_graph or [float(total) for total in seen] == [3.0] * 4


@pytest.mark.parametrize("in_graph", [True, False])
def test_gradients_that_are_only_analysed_are_applied_as_ever(in_graph):
    def look(optimizer, gradient, variable):
        optimizer.aggregate_gradients([(gradient, variable)])
        optimizer.apply_gradients([(gradient, variable)])

    step = quadratic(scaled_sgd)
    assert step(look, in_graph) == -3.0
    assert step(look, in_graph) == -6.0


def test_skipping_without_aggregation_still_takes_gradients_of_the_scaled_loss():
    def reduced_by_hand(optimizer, gradient, variable):
        total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
        optimizer.apply_gradients([(total, variable)], skip_gradients_aggregation=True)

    assert quadratic(scaled_sgd)(reduced_by_hand) == -3.0


def twice_aggregated(optimizer, gradient, variable):
    ((total, _),) = optimizer.aggregate_gradients([(gradient, variable)])
    optimizer.apply_gradients([(total * 0.5, variable)])


def twice_applied(optimizer, gradient, variable):
    pairs = optimizer.aggregate_gradients([(gradient, variable)])
    optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
    optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)


def by_the_other_method(optimizer, gradient, variable):
    ((total, _),) = optimizer.aggregate_gradients([(gradient, variable)])
    optimizer.apply([total * 0.5], [variable])


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize(
    "misuse, message",
    [
        (twice_aggregated, "pass `skip_gradients_aggregation=True`"),
        (by_the_other_method, "pass `skip_gradients_aggregation=True`"),
        (twice_applied, "applied twice"),
    ],
)
def test_misuse_is_rejected(misuse, message, in_graph):
    with pytest.raises(ValueError, match=message):
        quadratic(scaled_sgd)(misuse, in_graph)


def test_call_outside_of_replicas_is_rejected():
    strategy = helpers.mirrored(2)
    with strategy.scope():
        variable, optimizer = keras.Variable(0.0), optimizers.SGD(1.0)
        with pytest.raises(RuntimeError, match=r"outside `strategy\.run`"):
            optimizer.aggregate_gradients([(tf.constant(1.0), variable)])


def test_missing_gradients_and_sparse_rows_keep_their_places():
    strategy = helpers.mirrored(3)
    with strategy.scope():
        table, unused = keras.Variable(np.zeros((4, 2))), keras.Variable(0.0)
        optimizer = optimizers.SGD(1.0)

    def on_replica():
        slices = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([1, 1, 3]), tf.constant([4, 2]))
        pairs = optimizer.aggregate_gradients([(None, unused), (slices, table)])
        assert [g is None for g, _ in pairs] == [True, False]
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1e9)
        optimizer.apply_gradients(zip(clipped, [unused, table]), skip_gradients_aggregation=True)

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        tf.function(lambda: strategy.run(on_replica))()
    np.testing.assert_allclose(table.numpy(), [[0, 0], [-6, -6], [0, 0], [-3, -3]])
    assert helpers.copies_are_equal([table], strategy)
