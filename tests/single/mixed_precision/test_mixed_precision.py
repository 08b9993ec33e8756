"""Mixed precision through `fit`: one finite check for all replicas, and a skipped step has no side effects."""

from __future__ import annotations

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono import mixed_precision
from unisono.mixed_precision import LossScaleOptimizer, skipped_steps
from unisono.mixed_precision.policy import wrap_optimizer

ROWS, BATCH = 19, 8  # two full batches and one of 3 samples: uneven on 2 replicas

# A float16 weight gradient is a sum over samples in 11 bits; each replica rounds its share separately.
FLOAT16 = 4e-3


def data(bad_rows=(), rows=ROWS):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(rows, 3)).astype("float32"), random.normal(size=(rows, 2)).astype("float32")
    x[list(bad_rows)] = 1e30  # finite in float32, infinite in float16
    return x, y


def small(normalize=False):
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4, activation="tanh")]
    if normalize:
        layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=3)]
    return unisono.Sequential([*layers, keras.layers.Dense(2, dtype="float32")])


def state(model):
    optimizer = model.optimizer
    return [np.array(v) for v in [*model.variables, *optimizer.inner_optimizer.variables]]


def number(variable):
    return variable.numpy().item()


def trained(replicas, bad_rows, optimizer=None, policy="mixed_float16", epochs=2, **fit):
    mixed_precision.set_global_policy(policy)
    strategy = helpers.strategy(replicas)
    with helpers.scope(strategy):
        model = small()
        model.compile(optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    x, y = data(bad_rows)
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, **fit).history
    return model, history, strategy


def rows_of(replica, batch=0, replicas=2):
    """The first sample of a replica in a batch."""
    size = min(BATCH, ROWS - batch * BATCH)
    return [batch * BATCH + replica * size // replicas]


@pytest.mark.parametrize(
    ("bad_rows", "skipped"),
    [
        pytest.param(rows_of(0), 1, id="first-replica-first-step"),
        pytest.param(rows_of(1, 2), 1, id="second-replica-last-uneven-batch"),
        pytest.param([*rows_of(0, 1), *rows_of(1, 1), *rows_of(0, 2)], 2, id="all-replicas-and-another-step"),
    ],
)
@pytest.mark.long
def test_overflow_on_some_replica_skips_the_step_on_all(bad_rows, skipped):
    one, history_one, _ = trained("none", bad_rows)
    two, history_two, strategy = trained("mirrored2", bad_rows)
    assert history_two["skipped_steps"] == history_one["skipped_steps"] == [skipped, 2 * skipped]
    assert history_two["loss_scale"] == history_one["loss_scale"]
    assert history_two["loss_scale"][-1] == 2.0 ** (15 - 2 * skipped)
    helpers.assert_close(history_two["loss"], history_one["loss"], FLOAT16, "loss")
    helpers.assert_close(state(two), state(one), FLOAT16, "state")
    assert np.isfinite(np.concatenate([v.ravel() for v in state(two)])).all()
    assert helpers.copies_are_equal([*two.variables, *two.optimizer.variables], strategy)
    assert number(two.optimizer.iterations) == 6 - 2 * skipped


@pytest.mark.long
@pytest.mark.parametrize("replicas", ["mirrored3", "central2"])
def test_skipped_step_leaves_no_bit_behind(replicas):
    """Training with an overflowing batch ends like training without it: weights, optimizer state, averages, dropout."""

    def run(bad):
        strategy = helpers.strategy(replicas)
        with mixed_precision.policy_scope("mixed_float16", loss_scale=2.0**10), helpers.scope(strategy):
            model = small(normalize=True)
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
            model.compile(
                keras.optimizers.Adam(rate, weight_decay=0.01, use_ema=True), "mse", metrics=["mae"]
            )
        good = [data(rows=ROWS), data(rows=5), data(rows=7)]
        batches = [good[0], data([4], rows=9), *good[1:]] if bad else good
        signature = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
        dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
        history = model.fit(dataset, shuffle=False, verbose=0).history
        return model, history

    (expected, expected_history), (actual, history) = run(False), run(True)
    helpers.assert_equal(state(expected), state(actual))
    assert history["loss"] == expected_history["loss"] and history["mae"] == expected_history["mae"]
    assert history["skipped_steps"] == [1] and expected_history["skipped_steps"] == [0]


def half(pairs):
    return [(g * 0.5, v) for g, v in pairs]


def every_stage():
    """Accumulation, a transformer, clipping and momentum."""
    options = {"gradient_transformers": [half], "gradient_accumulation_steps": 3, "global_clipnorm": 0.3}
    return unisono.optimizers.SGD(0.5, momentum=0.5, **options)


@pytest.fixture
def products_in_our_order():
    """Keeps TensorFlow from reordering the arithmetic of a graph.

    Otherwise it moves constant factors (a replica's share) through others (the clipping factor). The extra multiplication
    of a scaled step changes where it does so: both results are correct, and differ in the last place.
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True, **before})


@pytest.mark.long
def test_scaled_training_in_float32_is_unscaled_training(products_in_our_order):
    """In float32 a power-of-two scale changes no bit, whatever later stages do."""
    plain, _, _ = trained("mirrored2", [], every_stage, "float32")
    scaled, history, _ = trained("mirrored2", [], lambda: LossScaleOptimizer(every_stage()), "float32")
    helpers.assert_equal(plain.variables, scaled.variables)
    assert history["skipped_steps"] == [0, 0]


@pytest.mark.long
def test_overflow_in_one_micro_batch_skips_the_update_as_in_the_large_batch():
    x, y = data()
    y[BATCH + 1] = 3e38  # in the second of three micro-batches
    results = []
    for steps, batch in ((3, BATCH), (None, ROWS)):
        model = small()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=steps)
        model.compile(LossScaleOptimizer(optimizer), "mse")
        for epoch, targets in enumerate((y, data()[1])):
            history = model.fit(x, targets, batch_size=batch, shuffle=False, verbose=0).history
            assert history["skipped_steps"] == [1] and history["loss_scale"] == [2.0**14]
            assert int(model.optimizer.iterations) == epoch
        results.append([np.array(v) for v in model.variables])
    helpers.assert_close(results[0], results[1], helpers.FLOAT32)


@pytest.mark.long
def test_every_way_to_run_steps_skips_the_same():
    results = []
    for options in ({"run_eagerly": True}, {"steps_per_execution": 3}, {"jit_compile": True}):
        with mixed_precision.policy_scope("mixed_float16"):
            model = small()
        model.compile(keras.optimizers.SGD(0.1), "mse", **options)
        x, y = data(rows_of(0, 1))
        history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        assert history["skipped_steps"] == [1, 2] and history["loss_scale"] == [2.0**14, 2.0**13]
        results.append([np.array(v) for v in model.variables])
    for found in results[1:]:
        helpers.assert_close(found, results[0], FLOAT16)


@pytest.mark.long
def test_train_on_batch_skips_and_goes_on():
    mixed_precision.set_global_policy("mixed_float16")
    with helpers.mirrored(2).scope():
        model = small()
        model.compile("adam", "mse")
    bad, good = data([1]), data()
    before = [np.array(v) for v in model.trainable_variables]
    model.train_on_batch(*bad)
    helpers.assert_equal(before, model.trainable_variables)
    assert np.isfinite(model.train_on_batch(*good))
    assert skipped_steps.step_logs(model.optimizer) == {"loss_scale": 2.0**14, "skipped_steps": 1}
    assert number(model.optimizer.iterations) == 1


@pytest.mark.long
def test_sparse_gradients_of_an_embedding():
    ids = np.random.default_rng(0).integers(0, 9, size=(ROWS, 2))
    y = np.random.default_rng(1).normal(size=(ROWS, 2)).astype("float32")
    y[1] = 1e30
    results = []
    for replicas in ("none", "mirrored2"):
        keras.utils.set_random_seed(1)
        with mixed_precision.policy_scope("mixed_float16"), helpers.scope(helpers.strategy(replicas)):
            layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
            model = unisono.Sequential(layers)
            model.compile(keras.optimizers.Adam(0.01), "mse")
        history = model.fit(ids, y, batch_size=BATCH, shuffle=False, verbose=0).history
        assert history["skipped_steps"] == [1]
        results.append([np.array(v) for v in model.variables])
    # Adam divides by the root of the mean square: rounding decides where a gradient is nearly 0.
    helpers.assert_close(results[1], results[0], 2e-2)


class Gan(unisono.Model):
    """Two optimizers, each with its own scale: when one overflows, the other continues."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = keras.layers.Dense(3), keras.layers.Dense(1)
        for layer in (self.maker, self.judge):
            layer.build((None, 3))

    def compile(self, maker_optimizer, judge_optimizer):
        super().compile(loss="mse")
        self.maker_optimizer = wrap_optimizer(maker_optimizer, self)
        self.judge_optimizer = wrap_optimizer(judge_optimizer, self)

    def train_step(self, batch):
        x, _ = batch
        with tf.GradientTape(persistent=True) as tape:
            all_finite = tf.cast(self.judge(x), tf.float32)
            judge_loss = tf.reduce_mean(tf.square(all_finite - 1))
            maker_loss = tf.reduce_mean(tf.square(tf.cast(self.maker(x * 0 + 1), tf.float32)))
            scaled_judge = self.judge_optimizer.scale_loss(judge_loss)
            scaled_maker = self.maker_optimizer.scale_loss(maker_loss)
        for scaled, layer, optimizer in (
            (scaled_judge, self.judge, self.judge_optimizer),
            (scaled_maker, self.maker, self.maker_optimizer),
        ):
            gradients = tape.gradient(scaled, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables))
        return {"judge_loss": judge_loss, "maker_loss": maker_loss}


@pytest.mark.long
def test_two_optimizers_have_a_finite_check_each():
    mixed_precision.set_global_policy("mixed_float16")
    keras.utils.set_random_seed(3)
    with helpers.mirrored(2).scope():
        model = Gan()
        model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
    x, y = data([rows_of(1, 1)[0]])
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert number(model.judge_optimizer.iterations) == 2 and number(model.judge_optimizer.skipped_steps) == 1
    assert number(model.maker_optimizer.iterations) == 3 and number(model.maker_optimizer.skipped_steps) == 0
    assert np.isfinite(np.concatenate([np.array(v).ravel() for v in model.trainable_variables])).all()


def test_training_that_only_skips_stops_and_names_the_layer():
    mixed_precision.set_global_policy("mixed_float16")
    with helpers.mirrored(2).scope():
        model = small()
        model.compile("sgd", "mse")
    x, y = data(range(ROWS))
    message = r"steps were skipped.*output of layer '.*dense.*float16"
    with pytest.raises(mixed_precision.LossScaleError, match=message):
        model.fit(x, y, batch_size=BATCH, epochs=100, verbose=0)
    assert np.isfinite(np.concatenate([np.array(v).ravel() for v in model.variables])).all()


def test_policy_set_after_the_model_is_rejected_unless_it_has_trained():
    fresh, trained_before = small(), small()
    for model in (fresh, trained_before):
        model.compile("sgd", "mse")
    trained_before.fit(*data(), verbose=0)
    mixed_precision.set_global_policy("mixed_float16")
    for method, arguments in (
        (fresh.fit, data()),
        (fresh.train_on_batch, data()),
        (fresh.compile, ("sgd", "mse")),
    ):
        with pytest.raises(ValueError, match=r"model .* was built under policy 'float32'"):
            method(*arguments)
    trained_before.fit(*data(), verbose=0)


def test_auto_scale_loss_false_and_bfloat16_do_not_scale():
    for policy, options in (("mixed_float16", {"auto_scale_loss": False}), ("mixed_bfloat16", {})):
        with mixed_precision.policy_scope(policy):
            model = small()
        model.compile("sgd", "mse", **options)
        assert not isinstance(model.optimizer, LossScaleOptimizer)
        history = model.fit(*data(), verbose=0).history
        assert list(history) == ["loss"] and np.isfinite(history["loss"][0])


def test_float16_model_loads_under_float32_and_the_reverse(tmp_path):
    path = tmp_path / "model.weights.h5"
    for first, second in (("mixed_float16", "float32"), ("float32", "mixed_float16")):
        models = []
        for policy in (first, second):
            with mixed_precision.policy_scope(policy):
                models.append(small(normalize=True))
            models[-1].compile("adam", "mse")
            models[-1].optimizer.build(models[-1].trainable_variables)
        models[0].fit(*data(), verbose=0)
        models[0].save_weights(path)
        models[1].load_weights(path)
        slots = [getattr(m.optimizer, "inner_optimizer", m.optimizer).variables for m in models]
        helpers.assert_equal(*slots)
        helpers.assert_equal(models[0].weights, models[1].weights)
        helpers.assert_close(
            models[1].predict(data()[0], verbose=0), models[0].predict(data()[0], verbose=0), 1e-2
        )
        assert np.isfinite(models[1].fit(*data(), verbose=0).history["loss"][0])


@pytest.mark.long
def test_saved_mixed_model_opens_in_keras_and_goes_on_with_its_scale(tmp_path):
    model, _, _ = trained("none", rows_of(0))
    path = tmp_path / "model.keras"
    model.save(path)
    plain = keras.saving.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.LossScaleOptimizer
    assert plain.dtype_policy.name == "mixed_float16"
    again = unisono.load_model(path)
    assert float(plain.optimizer.dynamic_scale.numpy()) == float(model.optimizer.dynamic_scale.numpy())
    helpers.assert_equal(model.optimizer.inner_optimizer.variables, plain.optimizer.inner_optimizer.variables)
    helpers.assert_equal(model.optimizer.variables, again.optimizer.variables)
    x, y = data()
    history = [m.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history for m in (model, again)]
    assert history[0] == history[1] and history[0]["skipped_steps"] == [2]
