"""Custom steps written for a single device match the single-device result on replicas, batch by batch."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.distribute.workers import peer_monitor

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(10, 3)).astype("float32"), RANDOM.normal(size=(10, 2)).astype("float32")
# 4, 4 and 2 samples: uneven on 3 replicas, and one has none at the end. 5 samples are uneven too, and need one graph only.
UNEVEN_END, EVEN_END = 4, 5


class Base(helpers.TwoLayers):
    """With the batch size and the number of replicas to compare; `whole`: evaluation and prediction are compared, too."""

    batch, replicas, whole = EVEN_END, 2, False

    def compile_for_test(self):
        self.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])

    def apply(self, tape, loss):
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))


class PlainMean(helpers.GradientsOfItsOwn, Base):
    """A loss of TensorFlow operations, a custom loss tracker, and logs that are not metrics."""

    batch, replicas, whole = UNEVEN_END, 3, True

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="mean")

    @property
    def metrics(self):
        return [self.tracker]

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(y - self(x, training=True)))

    def logs_of(self, loss, x):
        self.tracker.update_state(loss)
        return {"mean": self.tracker.result(), "now": loss, "twice": {"loss": 2 * loss}}

    def test_step(self, data):
        x, y = data
        loss = tf.reduce_mean(tf.abs(y - self(x)))
        self.tracker.update_state(loss)
        return {"mean": self.tracker.result(), "now": loss}

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        return {"sum": tf.reduce_sum(self(x), 1), "out": self(x)}


class KerasTutorial(Base):
    """`compute_loss` and compiled metrics, as in Keras' guide on `train_step`."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        self.apply(tape, loss)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class Largest(keras.metrics.Metric):
    """Not a sum over replicas."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_variable((), initializer="zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_true - y_pred))))

    def result(self):
        return 1.0 * self.value


class LooksAtMetrics(KerasTutorial):
    """Uses metric results in the step, and logs them next to other values."""

    batch, replicas = UNEVEN_END, 3

    def compile_for_test(self):
        metrics = [Largest(), keras.metrics.RootMeanSquaredError(), lambda y, p: keras.ops.max(p)]
        self.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=metrics)

    def train_step(self, data):
        logs = super().train_step(data)
        worst = logs["compile_metrics"]["largest"]
        return {**logs, "rate": self.optimizer.learning_rate, "half": worst / 2}


class LossObject(Base):
    """Calls a Keras loss directly, uses `optimizer.apply`, and returns only metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_fn = keras.losses.MeanSquaredError()
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred, sample_weight=tf.abs(y[:, :1]))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.mae.update_state(y, y_pred)
        return {"mae": self.mae.result()}


class OwnLossAndMetrics(Base):
    """Keras' step with `compute_loss` and `compute_metrics` overridden."""

    whole = True

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * tf.reduce_mean(tf.square(y_pred)) + 0.01 * tf.nn.l2_loss(self.last.kernel)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "largest_weight": tf.reduce_max(self.last.kernel), "spread": tf.reduce_mean(y_pred)}


class LossUnderTheMetricsName(PlainMean):
    """The log "loss" is that of the last batch, although the model has a metric of that name, which is never updated."""

    metrics, replicas = unisono.Model.metrics, 2

    def logs_of(self, loss, x):
        return {"loss": loss}

    def test_step(self, data):
        return {"loss": super().test_step(data)["now"]}


class CountsByHand(helpers.GradientsOfItsOwn, Base):
    """A step written for `tf.distribute`: it divides by the global batch size itself."""

    def loss_of(self, x, y):
        context = tf.distribute.get_replica_context()
        count = context.all_reduce("SUM", tf.cast(tf.shape(x)[0], y.dtype))
        halves = context.all_reduce(tf.distribute.ReduceOp.MEAN, [tf.constant(0.5), tf.constant(0.5)])
        errors = tf.reduce_mean(tf.square(y - self(x, training=True)), -1)
        return sum(halves) * tf.reduce_sum(errors) / count


class NoCall(helpers.GradientsOfItsOwn, unisono.Model):
    """The step builds the layers itself."""

    batch, replicas, whole = EVEN_END, 2, True

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])

    def compile_for_test(self):
        self.compile(optimizer="adam")

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(y - self.net(x, training=True)))

    def test_step(self, data):
        return {"loss": self.loss_of(*data)}

    def predict_step(self, data):
        return self.net(data[0] if isinstance(data, tuple) else data)


class TimesReplicas(PlainMean):
    """Multiplies its logs by the number of replicas, as in guides that scale losses by the global batch size."""

    batch, replicas, whole = EVEN_END, 2, False

    def train_step(self, data):
        x, y = data
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(y - self(x)), -1)
            loss = tf.nn.compute_average_loss(errors)
        self.apply(tape, loss)
        scaled = tf.reduce_sum(errors) / EVEN_END
        self.tracker.update_state(scaled * replicas)
        return {
            "loss": loss * replicas,
            "mean": tf.reduce_mean(errors) * replicas,
            "scaled": scaled * replicas,
            "penalty": tf.reduce_sum(tf.square(self.last.kernel)) * replicas,
            "tracked": self.tracker.result(),
        }


MODELS = [
    PlainMean,
    CountsByHand,
    LooksAtMetrics,
    LossObject,
    OwnLossAndMetrics,
    LossUnderTheMetricsName,
    NoCall,
    TimesReplicas,
]


def train(cls: Any, strategy: Any, eager: bool = False) -> dict[str, Any]:
    keras.utils.set_random_seed(3)
    with helpers.scope(strategy):
        model = cls()
        model.compile_for_test()
        model.run_eagerly = eager
    batches: list[Any] = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append((batch, logs))
    )
    options = {"epochs": 2, "shuffle": False, "callbacks": [record]}
    history = model.fit(X, Y, batch_size=cls.batch, verbose=0, **options).history
    result = {"history": history, "batches": batches, "weights": model.get_weights()}
    if cls.whole:
        result["evaluate"] = model.evaluate(X, Y, batch_size=cls.batch, verbose=0, return_dict=True)
        result["predict"] = model.predict(X, batch_size=cls.batch, verbose=0)
    if strategy is not None:
        assert helpers.copies_are_equal(model.weights, strategy)
    return result


@pytest.fixture(scope="module")
def one_device():
    kept: dict[type, Any] = {}

    def reference(cls: type) -> Any:
        if cls not in kept:
            kept[cls] = train(cls, None, eager=True)
        return kept[cls]

    return reference


def check(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    for what, value in expected.items():
        if isinstance(value, dict):
            assert list(actual[what]) == list(value)
        helpers.assert_close(actual[what], value, helpers.FLOAT32, what)


@pytest.mark.long
@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_custom_step_on_uneven_replicas_equals_one_device(cls, one_device):
    check(train(cls, helpers.mirrored(cls.replicas)), one_device(cls))


@pytest.mark.parametrize(("cls", "eager"), [(LooksAtMetrics, False), (PlainMean, True)])
@pytest.mark.short("PlainMean-True")
def test_custom_step_under_central_storage_equals_one_device(cls, eager, one_device):
    check(train(cls, helpers.strategy("central2"), eager), one_device(cls))


@pytest.mark.long
def test_custom_step_in_a_graph_on_one_device_equals_eager_steps(one_device):
    check(train(PlainMean, None), one_device(PlainMean))


@pytest.mark.long
def test_custom_step_equals_a_loop_hand_written(one_device):
    keras.utils.set_random_seed(3)
    model = PlainMean()
    model(X)
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    losses = []
    for first in [*range(0, len(X), UNEVEN_END)] * 2:
        with tf.GradientTape() as tape:
            rows = slice(first, first + UNEVEN_END)
            loss = tf.reduce_mean(tf.square(Y[rows] - model(X[rows])))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        losses.append(float(loss))
    expected = one_device(PlainMean)
    helpers.assert_close([logs["now"] for _, logs in expected["batches"]], losses, helpers.FLOAT32)
    helpers.assert_close(expected["weights"], model.get_weights(), helpers.FLOAT32)
    renamed = one_device(LossUnderTheMetricsName)
    assert [list(logs) for _, logs in renamed["batches"]] == [["loss"]] * len(losses)
    assert renamed["evaluate"]["loss"] > 0


def test_optimizer_that_a_custom_step_never_uses_gets_no_variables():
    class UsesAnother(KerasTutorial):
        def apply(self, tape, loss):
            weights = self.trainable_variables
            self.other.apply_gradients(zip(tape.gradient(loss, weights), weights))

    model = UsesAnother()
    model.other = keras.optimizers.SGD(0.1)
    model.compile("adam", "mse")
    model.evaluate(X, Y, verbose=0)  # builds the model for Keras' own test_step
    model.fit(X, Y, verbose=0)
    assert model.other.built and not model.optimizer.built


def test_error_in_custom_step_is_the_users_own():
    class Wrong(NoCall):
        def train_step(self, data):
            self.net(data[0])
            raise KeyError("mine")

    model = Wrong()
    model.compile(optimizer="sgd")
    with pytest.raises(KeyError, match="mine"):
        model.fit(X, Y, verbose=0)


def test_train_step_of_another_model_can_call_keras_own():
    class Counting(Base):
        def train_step(self, data):
            logs = super().train_step(data)
            return {**logs, "one": tf.constant(1.0)}

    with helpers.mirrored(2).scope():
        model = Counting()
        model.compile("sgd", "mse")
    logs = model.train_on_batch(X, Y, return_dict=True)
    assert logs["one"] == pytest.approx(1.0)


@pytest.mark.long
def test_differences_from_keras_are_those_of_the_table_in_the_guide():
    seen = {}

    def train(module):
        class Own(module.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = keras.ops.mean((self(x) - y) ** 2)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
                return {"loss": loss}

        class Begin(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                seen[module] = len(self.model.optimizer.variables)

        model = Own([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        x = np.ones((4, 2), "float32")
        return model.fit(x, 2 + x[:, :1], verbose=0, callbacks=[Begin()]).history["loss"]

    assert train(keras) == [0.0] and train(unisono)[0] > 0
    assert seen == {keras: 2, unisono: 6}


def test_eager_custom_step_runs_as_often_as_in_keras():
    def trained(base, optimizer):
        calls = []

        class Counted(base):
            def train_step(self, data):
                calls.append(None)
                x, y = data
                with tf.GradientTape() as tape:
                    y_pred = self(x)
                    loss = self.compute_loss(x, y, y_pred)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                return self.compute_metrics(x, y, y_pred)

        keras.utils.set_random_seed(1)
        model = Counted([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
        x = np.arange(12.0).reshape(6, 2) / 12
        batches = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)
        mae = model.fit(batches, shuffle=False, verbose=0).history["mae"]
        return len(calls), mae, model.get_weights(), [variable.numpy() for variable in optimizer.variables]

    calls, *numbers = trained(unisono.Sequential, unisono.optimizers.Adam(0.1))
    assert calls == 3
    for ours, theirs in zip(
        keras.tree.flatten(numbers),
        keras.tree.flatten(trained(keras.Sequential, keras.optimizers.Adam(0.1))[1:]),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.short("1-True", "2-True")
def test_step_that_builds_its_optimizer_equals_keras(replicas, eager):
    def trained(base, home=None, **options):
        class BuildsItself(base.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(x) - y) ** 2)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.build(self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                return {"loss": loss}

        keras.utils.set_random_seed(1)
        with helpers.scope(home):
            model = BuildsItself([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.1), jit_compile=False, **options)
        x = np.arange(10.0).reshape(5, 2) / 12
        model.fit(x, x[:, :1], batch_size=3, shuffle=False, verbose=0)
        return model.get_weights()

    home = helpers.mirrored(replicas) if replicas > 1 else None
    helpers.assert_close(trained(unisono, home, run_eagerly=eager), trained(keras, run_eagerly=True), 1e-5)


class LogsText(Base):
    """Text of the loss, of each sample and of a constant among the logs."""

    on_one_replica = False

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x)
            loss = tf.reduce_mean((outputs - y) ** 2)
        self.apply(tape, loss)
        if self.on_one_replica:
            tf.numpy_function(lambda loss: None, [loss], [])
        samples = tf.strings.as_string(outputs[:, 0], precision=2)
        high = tf.where(loss > 1.0, "high", "low")
        return {"loss": loss, "high": high, "samples": samples, "unit": "squares"}


@pytest.mark.parametrize(
    ("replicas", "kind"), [(1, "graph"), (2, "graph"), (3, "graph"), (2, "eager"), (3, "whole")]
)
@pytest.mark.falls_back
@pytest.mark.short("2-graph")
def test_text_in_logs_is_that_of_one_device(replicas, kind):
    def history(home, eager):
        keras.utils.set_random_seed(1)
        with helpers.scope(home):
            model = LogsText()
            model.on_one_replica = kind == "whole" and home is not None
            model.compile(unisono.optimizers.SGD(0.1), run_eagerly=eager)
        return model.fit(X, Y, batch_size=UNEVEN_END, epochs=2, shuffle=False, verbose=0).history

    with warnings.catch_warnings():
        if kind == "whole":
            warnings.filterwarnings("ignore", "The `train_step`.*PyFunc")
        ours = history(helpers.mirrored(replicas) if replicas > 1 else None, kind == "eager")
    theirs = history(None, True)
    for name in ("high", "samples", "unit"):
        assert [np.asarray(log).astype(str).tolist() for log in ours[name]] == [
            np.asarray(log).astype(str).tolist() for log in theirs[name]
        ]
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)


def logging_model(base, tracker):
    """A model whose steps return the loss of the batch, which they also add to a metric of that name; or to none."""

    class Logging(base):
        def __init__(self):
            super().__init__()
            self.last = keras.layers.Dense(1, kernel_initializer="zeros")
            self.own = keras.metrics.Mean(name="loss")

        def call(self, x):
            return self.last(x)

        @property
        def metrics(self):
            return [self.own] if tracker == "own" else super().metrics[:1]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return self.logs(loss, x)

        def test_step(self, data):
            x, y = data
            return self.logs(tf.reduce_mean((self(x) - y) ** 2), x)

        def logs(self, loss, x):
            if tracker != "none":
                self.metrics[0].update_state(loss, sample_weight=tf.shape(x)[0])
            return {"loss": loss}

    return Logging()


@pytest.mark.parametrize("tracker", ["own", "Keras'", "none"])
@pytest.mark.long
def test_logs_of_an_epoch_are_the_results_of_metrics_with_their_names(tracker):
    """With "none" Keras logs 0, the result of its metric that nothing has updated; ours is the loss of the last batch."""

    def history(base, home=None):
        with helpers.scope(home):
            model = logging_model(base, tracker)
            model.compile((unisono if home else keras).optimizers.SGD(0.1))
        given = {"batch_size": UNEVEN_END, "verbose": 0}
        logs = model.fit(X, Y, epochs=2, shuffle=False, validation_data=(X, Y), **given).history
        return {**logs, "again": model.evaluate(X, Y, **given, return_dict=True)["loss"]}

    expected = history(keras.Model)
    if tracker == "none":
        assert set(expected["loss"]) == {0.0}
        expected = history(unisono.Model)
        assert 0.0 not in expected["loss"]
    for home in (None, helpers.mirrored(3)):
        helpers.assert_close(history(unisono.Model, home), expected, 1e-5)


def scoring_model(base):
    class Scores(base):
        """Calls a layer in `compute_loss` alone: it is built with the first step, and trained from then on."""

        def __init__(self):
            super().__init__()
            self.users, self.items = keras.layers.Dense(2), keras.layers.Dense(2)

        def call(self, x):
            return self.users(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return tf.reduce_mean((self.items(y) - y_pred) ** 2)

    return Scores()


@pytest.mark.filterwarnings("ignore:.build... was called on layer")  # by Keras
@pytest.mark.long
def test_layers_that_only_compute_loss_calls_are_trained():
    def state(ours, home=None):
        keras.utils.set_random_seed(1)
        with helpers.scope(home):
            model = scoring_model(unisono.Model if ours else keras.Model)
            model.compile((unisono if ours else keras).optimizers.SGD(0.1))
        logs = model.fit(X, Y, batch_size=UNEVEN_END, epochs=2, shuffle=False, verbose=0).history
        return logs, model.get_weights(), model.evaluate(X, Y, verbose=0)

    for home in (None, helpers.mirrored(3)):
        helpers.assert_close(state(True, home), state(False), 1e-5)


@pytest.mark.long
def test_optimizer_is_built_for_the_weights_that_keras_step_trains():
    """It trains `trainable_weights`, so an override of `trainable_variables` changes nothing."""

    def model_of(base):
        class Named(base):
            @property
            def trainable_variables(self):
                return self.layers[-1].trainable_variables

        inputs = keras.Input((3,))
        return Named(inputs, keras.layers.Dense(2)(keras.layers.Dense(3)(inputs)))

    def state(base, home=None):
        keras.utils.set_random_seed(1)
        with helpers.scope(home):
            model = model_of(base)
            model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", run_eagerly=True)
        logs = model.fit(X, Y, batch_size=UNEVEN_END, epochs=1, shuffle=False, verbose=0).history
        return logs, model.get_weights()

    expected = state(keras.Model)
    for home in (None, helpers.mirrored(2)):
        helpers.assert_close(state(unisono.Model, home), expected, 1e-5)


def test_results_of_metrics_at_the_end_of_an_epoch_are_read_under_the_monitor(monkeypatch):
    """Workers add up their parts for it, so a worker that is lost then must be reported."""
    entered = []

    class Monitor:
        @contextlib.contextmanager
        def monitor(self, ran_before, drawn=None):
            entered.append(True)
            yield
            entered.pop()

    class Read(keras.metrics.Mean):
        def result(self):
            if tf.executing_eagerly():
                reads.append(bool(entered))
            return super().result()

    reads = []
    model = logging_model(unisono.Model, "own")
    model.own = Read(name="loss")
    model.compile(unisono.optimizers.SGD(0.1))
    monkeypatch.setattr(peer_monitor, "_monitor", Monitor())
    model.fit(X, Y, batch_size=UNEVEN_END, epochs=2, verbose=0, validation_data=(X, Y))
    assert len(reads) >= 4 and all(reads)
