"""`replica_step`: a custom loop matches a single device, whatever it uses of Keras."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import unisono
from unisono.distribute import gather, global_mean

ROWS = (7, 1)  # of the global batches: one is uneven on two replicas, one leaves a replica without samples
STRATEGIES = ["mirrored1", "mirrored2", "central2"]


def batches():
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(sum(ROWS), 5)).astype("float32")
    y = numbers.integers(0, 2, size=(sum(ROWS),))
    weight = numbers.uniform(0.1, 2, size=(sum(ROWS),)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(ROWS[0]).repeat(2)


class Spread(keras.metrics.Metric):
    """Not a sum of per-sample values: the mean over batches of the range of a batch."""

    def __init__(self, name="spread"):
        super().__init__(name=name)
        self.total = self.add_variable((), "ones", name="total")  # state with a nonzero initial value
        self.inner = keras.metrics.Mean(name="inner")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign(self.total * 0.5 + keras.ops.max(y_pred) - keras.ops.min(y_pred))
        self.inner.update_state(keras.ops.max(y_pred))

    def result(self):
        return self.total + self.inner.result()


class Contrast(keras.losses.Loss):
    """A loss with computation across samples."""

    def call(self, y_true, y_pred):
        return keras.ops.square(y_pred - keras.ops.mean(y_pred, axis=0, keepdims=True))[:, 0]


class AddsItsMean(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(x**2))
        return x


class Loop:
    """Training and test steps with all kinds of Keras losses and metrics."""

    def __init__(self, strategy, build=True):
        keras.utils.set_random_seed(11)
        self.strategy = strategy
        with helpers.scope(strategy):
            regularizer = keras.regularizers.L2(1e-2)
            layers = [
                keras.layers.Dense(4, "tanh", kernel_regularizer=regularizer),
                AddsItsMean(),
                keras.layers.BatchNormalization(synchronized=True, momentum=0.7),
                keras.layers.Dense(2),
            ]
            self.model = unisono.Sequential([keras.Input((5,)), *layers] if build else layers)
            self.optimizer = unisono.optimizers.Adam(0.05, global_clipnorm=0.5)
            self.metrics = {
                "accuracy": keras.metrics.SparseCategoricalAccuracy(),
                "loss": keras.metrics.Mean(),
                "sum": keras.metrics.Sum(),
                "rows": keras.metrics.Mean(),
                "spread": Spread(),
                "branch": keras.metrics.Mean(),
            }
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.weighted = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")

    def train(self, x, y, weight):
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            loss = self.loss_fn(y, logits, sample_weight=weight) + Contrast()(y, logits)
            loss += self.weighted(weight[:, None], logits[:, :1], sample_weight=weight)
            loss += global_mean(tf.math.reduce_std(gather(logits)))
            loss += tf.add_n(self.model.losses) / self.strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.metrics["accuracy"].update_state(y, logits, sample_weight=weight)
        self.metrics["loss"].update_state(loss)
        self.metrics["sum"].update_state(loss)
        self.metrics["rows"].update_state(self.loss_fn.call(y, logits))
        self.metrics["spread"].update_state(y, logits)
        if tf.shape(x)[0] >= 0:  # AutoGraph converts it
            self.metrics["branch"].update_state(loss)
        return loss

    def run(self):
        step, losses = unisono.replica_step(self.train), []

        @tf.function
        def run(batch):
            return self.strategy.reduce("SUM", self.strategy.run(step, args=batch), axis=None)

        self.metrics["spread"].reset_state()  # TensorFlow adds up the initial states of the replicas
        for batch in self.strategy.experimental_distribute_dataset(batches()):
            losses.append(float(run(batch)))
        return losses, {name: float(metric.result()) for name, metric in self.metrics.items()}


@pytest.fixture(scope="module")
def expected():
    loop = Loop(tf.distribute.get_strategy())
    losses, results = loop.run()
    return losses, results, loop.model.get_weights()


@pytest.mark.short("mirrored2")
@pytest.mark.parametrize("name", STRATEGIES)
def test_loop_with_everything_of_keras_gives_the_results_of_one_device(name, expected):
    strategy = helpers.strategy(name)
    loop = Loop(strategy, build=name != "mirrored2")  # there the replicas call the model first
    losses, results = loop.run()
    helpers.assert_close(losses, expected[0], helpers.FLOAT32, "losses")
    helpers.assert_close(results, expected[1], helpers.FLOAT32, "metrics")
    helpers.assert_close(loop.model.get_weights(), expected[2], helpers.FLOAT32, "weights")
    assert len(loop.model.variables) == len(expected[2])
    if name != "central2":
        assert helpers.copies_are_equal([*loop.model.variables, *loop.optimizer.variables], strategy)


def test_step_is_converted_in_a_loop_of_the_function_that_one_replica_runs():
    strategy = helpers.strategy("mirrored1")
    with strategy.scope():
        v = keras.Variable(1.0)

    @unisono.replica_step
    def step(x):
        v.assign((2.0 if tf.reduce_sum(x) > 0 else 1.0) * v)

    def on_replica(x):
        for _ in tf.range(3):
            step(x)

    tf.function(lambda x: strategy.run(on_replica, args=(x,)))(tf.ones([2]))
    assert float(v.numpy()) == 8.0


@pytest.mark.parametrize("name", ["mirrored2", "central2"])
@pytest.mark.long
def test_noise_differs_between_replicas_and_steps_and_depends_on_the_seed(name):
    strategy = helpers.strategy(name)
    ones = tf.ones([2, 8])

    def drawn():
        keras.utils.set_random_seed(4)
        with strategy.scope():
            layers = [keras.layers.Dropout(0.5), keras.layers.GaussianNoise(1.0)]
        step = unisono.replica_step(lambda x: [layer(x, training=True) for layer in layers])
        run = tf.function(lambda: strategy.run(step, args=(ones,)))
        steps = [[strategy.experimental_local_results(value) for value in run()] for _ in range(2)]
        return np.array([[[copy.numpy() for copy in value] for value in step] for step in steps])

    first = drawn()  # [steps, layers, replicas, batch, columns]
    for layer in (0, 1):
        seen = [first[step, layer, replica].tobytes() for step in (0, 1) for replica in (0, 1)]
        assert len(set(seen)) == 4
    np.testing.assert_array_equal(first, drawn())


@pytest.mark.parametrize("name", ["none", "mirrored2"])
def test_a_skipped_step_leaves_no_trace_in_eager_mode_too(name):
    strategy = helpers.strategy(name) or tf.distribute.get_strategy()
    with helpers.scope(strategy):
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((2,)), *layers])
        optimizer = unisono.mixed_precision.LossScaleOptimizer(unisono.optimizers.SGD(0.1))
        count = keras.metrics.Mean()

    @unisono.replica_step
    def step(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            loss = global_mean(y)
        optimizer.minimize(loss, model.trainable_variables, tape=tape)
        count.update_state(y)

    strategy.run(step, args=(tf.ones([3, 2]),))
    before = [*model.get_weights(), count.count.numpy()]
    strategy.run(step, args=(tf.constant([[np.inf, 1.0]]),))
    helpers.assert_equal([*model.get_weights(), count.count.numpy()], before)
    assert int(optimizer.skipped_steps) == 1 and before[-1] == 3 * strategy.num_replicas_in_sync


def test_metrics_that_create_variables_with_their_first_targets_are_built_in_a_graph():
    x = np.random.default_rng(0).normal(size=(7, 3))
    codes = np.eye(3)[[0, 1, 2, 2, 1, 0, 2]]

    def results(strategy, cuts):
        keras.utils.set_random_seed(1)
        with helpers.scope(strategy):
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "softmax", dtype="float64")])
            optimizer = unisono.optimizers.SGD(0.5)
            metrics = [keras.metrics.F1Score(dtype="float64"), keras.metrics.R2Score(dtype="float64")]

        @unisono.replica_step
        def step(x, codes):
            with tf.GradientTape() as tape:
                found = model(x)
                loss = tf.reduce_mean((found - codes) ** 2)
            optimizer.minimize(loss, model.trainable_variables, tape=tape)
            for metric in metrics:
                metric.update_state(codes, found)

        parts = [
            strategy.experimental_distribute_values_from_function(
                lambda context, data=data: tf.constant(np.split(data, cuts)[context.replica_id_in_sync_group])
            )
            for data in (x, codes)
        ]
        run = tf.function(lambda *parts: strategy.run(step, args=parts))
        for _ in range(2):
            run(*parts)
        return [*model.get_weights(), *(metric.result().numpy() for metric in metrics)]

    expected = results(tf.distribute.get_strategy(), [])
    helpers.assert_close(results(helpers.mirrored(3), [3, 5]), expected, 1e-12)


def test_wrong_uses_are_rejected_with_the_fix():
    strategy = helpers.mirrored(2)
    with pytest.raises(TypeError, match=r"Put `tf.function` around"):
        unisono.replica_step(tf.function(lambda: 0))
    with strategy.scope(), pytest.raises(RuntimeError, match=r"pass it to `strategy.run`"):
        unisono.replica_step(lambda: 0)()
    inner = unisono.replica_step(lambda: tf.constant(0))
    with pytest.raises(RuntimeError, match="wrap only the outermost one"):
        unisono.replica_step(lambda: inner())()


def test_what_is_replaced_is_the_original_again_after_a_step():
    before = keras.metrics.Mean.update_state, keras.metrics.Mean.result, keras.losses.Loss.__call__
    seen = []
    helpers.mirrored(2).run(unisono.replica_step(lambda: seen.append(keras.losses.Loss.__call__)))
    assert before[2] not in seen and len(seen) == 1  # only one device runs it
    assert before == (keras.metrics.Mean.update_state, keras.metrics.Mean.result, keras.losses.Loss.__call__)


def test_a_model_of_ours_is_built_by_its_first_call_in_a_loop_without_the_wrapper():
    """As in TensorFlow's tutorial: the model has no input, and replicas call it first, in a graph."""
    strategy = helpers.mirrored(2)
    with strategy.scope():
        model = unisono.Sequential([keras.layers.Flatten(), keras.layers.Dropout(0.3), keras.layers.Dense(2)])
        optimizer = unisono.optimizers.SGD(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_sum(model(x, training=True), axis=1))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    run = tf.function(lambda x: strategy.run(step, args=(x,)))
    run(tf.ones([4, 2, 2]))
    assert [v.path.rpartition("/")[2] for v in model.variables] == ["seed_generator_state", "kernel", "bias"]
    assert model.built and int(optimizer.iterations.numpy()) == 1
    assert model(tf.ones([3, 2, 2])).shape == (3, 2), "any batch size"
    assert helpers.copies_are_equal(model.trainable_variables, strategy)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.short("False")
def test_function_around_a_step_converts_no_code_of_the_library(wrapped, monkeypatch):
    """AutoGraph converts what a `tf.function` calls: for a function of ours that takes time, and may be a warning."""
    converted, convert = [], api._convert_actual

    def note(entity, context):
        converted.append(entity.__module__)
        return convert(entity, context)

    monkeypatch.setattr(api, "_convert_actual", note)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = unisono.Sequential(
            [keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
        )
        model.compile(unisono.optimizers.SGD(0.1, use_ema=True), "mse")

    def step(x):
        if tf.reduce_sum(x) > 0:  # this is converted
            x = x * 2
        with tf.GradientTape() as tape:
            loss = unisono.distribute.global_mean(model(x, training=True) ** 2)
        model.optimizer.minimize(loss, model.trainable_variables, tape=tape)
        return loss + 0 * tf.reduce_sum(unisono.distribute.gather(x))

    @tf.function
    def run():
        return strategy.run(unisono.replica_step(step) if wrapped else step, args=(tf.ones((3, 4)),))

    run()
    assert __name__ in converted and not [each for each in converted if each.startswith("unisono")]
