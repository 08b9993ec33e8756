"""User code in a step behaves as on a single device: three uneven replicas compared with one."""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import GradientsOfItsOwn, assert_equal, copies_are_equal, mirrored, resumed, scope
from helpers import TwoLayers as Net
from keras import ops

import unisono
from unisono.distribute import gather
from unisono.trainer.partition.steps import step_collectives

pytestmark = pytest.mark.usefixtures("float64")
L = keras.layers
RNG = np.random.default_rng(0)
X, Y, W = RNG.normal(size=(24, 5)), RNG.normal(size=(24, 2)), RNG.uniform(0.3, 2, 24)
BATCH = 8  # uneven on two and on three replicas; a partial last batch would need another graph
MSE = keras.losses.MeanSquaredError


def contrastive(y, p):
    z = p / ops.norm(p, axis=1, keepdims=True)
    return -ops.mean(ops.diagonal(ops.log_softmax(ops.matmul(z, ops.transpose(ops.cast(y, p.dtype))))))


def squares(y, p):
    return tf.reduce_sum((y - p) ** 2)


def custom_step(loss):
    class Stepping(GradientsOfItsOwn, Net):
        def __init__(self, between=L.Identity):
            super().__init__(between)
            self.mine = keras.metrics.Mean(name="mine")

        def loss_of(self, x, y):
            return loss(self, y, self(x, training=True))

        def logs_of(self, loss, x):
            total = tf.reduce_sum(loss)
            self.mine.update_state(total)
            return {"loss": total, "mine": self.mine.result()}

    return Stepping


def own_loss(loss_of):
    class Computing(Net):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return loss_of(
                self, y, y_pred, lambda: Net.compute_loss(self, x, y, y_pred, sample_weight, training)
            )

    return Computing


class AddsLosses(L.Layer):
    """A sum that exists only in training and is zero for positive inputs, and a mean."""

    def call(self, x, training=False):
        if training:
            self.add_loss(0.1 * ops.sum(ops.relu(-x)))
        self.add_loss(0.1 * ops.mean(x**2))
        return x


class Counts(L.Layer):
    """State of every kind: counters of samples and steps, moving averages of means and of counts, extremes."""

    def build(self, shape):
        def state(name, dtype="float64", start="zeros", **kwargs):
            setattr(self, name, self.add_weight((6,), start, dtype, trainable=False, name=name, **kwargs))

        state("rows", "int32")
        state("steps", "int64")
        for name in ("total", "largest", "smallest", "mean"):
            state(name)
        state("moving_count", start="ones")
        state("first", aggregation="only_first_replica")
        state("declared", aggregation="sum")

    def call(self, x, training=False):
        if training:
            self.rows.assign_add(ops.full((6,), ops.shape(x)[0]))
            self.steps.assign_add(ops.ones((6,), "int64"))
            self.total.assign_add(ops.sum(x, 0))
            self.largest.assign(ops.maximum(self.largest, ops.max(x, 0)))
            self.smallest.assign(ops.minimum(self.smallest, ops.min(x, 0)))
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, 0))
            self.moving_count.assign(0.8 * self.moving_count + 0.2 * ops.sum(ops.cast(x > 0, "float64"), 0))
            self.first.assign(x[0])
            self.declared.assign_add(ops.sum(x, 0))
        return x


class Late(L.Layer):
    """State that is constant in the first two steps, in narrow dtypes: an average, masks, a counter; and a flag."""

    def build(self, shape):
        def state(name, dtype="float64", shape=(6,)):
            setattr(self, name, self.add_weight(shape, "zeros", dtype, trainable=False, name=name))

        self.scale = self.add_weight((6,), "uniform", name="scale")
        state("average")
        for dtype in ("bool", "uint8", "float64"):
            state(f"mask_{dtype}", dtype)
        state("rows", "uint16")
        state("largest", "int16")
        state("steps", "int64", ())
        state("called", "bool", ())

    def call(self, x, training=False):
        self.called.assign(ops.ones((), "bool"))
        if training:
            self.steps.assign_add(1)
            begun = self.steps > 2
            self.average.assign(ops.where(begun, 0.5 * self.average + ops.mean(x, 0), self.average))
            for mask in (self.mask_bool, self.mask_uint8, self.mask_float64):
                mask.assign(ops.where(begun, ops.cast(self.scale > 0, mask.dtype), mask))
            self.rows.assign_add(ops.cast(ops.where(begun, ops.full((6,), ops.shape(x)[0]), 0), "uint16"))
            found = ops.cast(ops.max(100 * x, 0), "int16")
            self.largest.assign(ops.maximum(self.largest, found))
        return x * (1 + self.scale) + 0.1 * ops.cast(self.called, x.dtype)


class CountsInFrozenLayers(L.Layer):
    """Counters and sums in frozen layers: a Keras layer and this one."""

    def __init__(self):
        super().__init__(trainable=False)
        self.table = L.Embedding(6, 1, embeddings_initializer="zeros", trainable=False)
        self.table.build((None,))

    def build(self, shape):
        self.total = self.add_weight((6,), "zeros", name="total")

    def call(self, x, training=False):
        if training:
            kinds = ops.one_hot(ops.argmax(x, -1), 6, dtype="float64")
            self.table.embeddings.assign_add(ops.sum(kinds, 0)[:, None])
            self.total.assign_add(ops.sum(x, 0))
        return x


class Annealed(keras.losses.Loss):
    """Counts its steps."""

    def __init__(self):
        super().__init__()
        self.steps = keras.Variable(0, dtype="int64", trainable=False)

    def call(self, y, p):
        self.steps.assign_add(1)
        return ops.mean((y - p) ** 2, -1) * ops.exp(-0.3 * ops.cast(self.steps, p.dtype))


class Count(keras.metrics.Metric):
    """Counts the values that it gets."""

    def __init__(self, name="count"):
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, values):
        self.total.assign_add(ops.cast(ops.size(values), "float64"))

    def result(self):
        return 1.0 * self.total


def trackers():
    kinds = keras.metrics
    return [kinds.Mean(name="each"), kinds.Sum(name="sum"), kinds.CategoricalAccuracy(name="hits"), Count()]


def track(held, y, logits):
    """Updates metrics with values of all samples, and returns the losses."""
    each = tf.nn.softmax_cross_entropy_with_logits(
        tf.one_hot(tf.argmax(y, -1), 2, dtype=logits.dtype), logits
    )
    for metric, fed in zip(held, ((each,), (each,), (y, logits), (logits,))):
        metric.update_state(*fed)
    return each


class TracksInItsLoss(Net):
    """Compares samples in `compute_loss`, and updates metrics with them."""

    def __init__(self):
        super().__init__()
        self.held = trackers()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.held[0].update_state(ops.mean(y_pred), sample_weight=0.5)
        track(self.held, y, y_pred)
        return contrastive(y, y_pred)


class CountsInRandomOrder(Count):
    """Draws numbers, as ranking metrics do to break ties."""

    def update_state(self, values):
        super().update_state(ops.take(values, ops.argsort(keras.random.uniform(ops.shape(values)[:1])), 0))


class SumsBesideDraws(Net):
    """A metric draws numbers where a loss is summed."""

    def __init__(self):
        super().__init__()
        self.held = CountsInRandomOrder()

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.held.update_state(y_pred)
        return ops.sum((y - y_pred) ** 2)


class KeepsStateInItsLoss(Net):
    """Counts samples and steps, and keeps a sum and an average, in `compute_loss`."""

    def __init__(self, across):
        super().__init__()
        self.across = across
        self.rows, self.steps = (keras.Variable(0, dtype="int32", trainable=False) for _ in range(2))
        self.total, self.average = (keras.Variable(0.0, dtype="float64", trainable=False) for _ in range(2))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.rows.assign_add(ops.shape(y_pred)[0])
        self.steps.assign_add(1)
        self.total.assign_add(ops.sum(y_pred**2))
        self.average.assign(0.9 * self.average + 0.1 * ops.mean(y_pred))
        loss = ops.mean((y - y_pred) ** 2) * ops.exp(-0.1 * ops.cast(self.steps, "float64"))
        return loss + contrastive(y, y_pred) if self.across else loss


class OwnCall(keras.losses.Loss):
    """Overrides `__call__` of the loss, not `call`."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return contrastive(y_true, y_pred)


class Squared(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.mean((y_true - y_pred) ** 2, -1)


def two_outputs():
    inputs = keras.Input((5,))
    hidden = L.Dense(6, activation="tanh")(inputs)
    return unisono.Model(inputs, [L.Dense(2, name="a")(hidden), L.Dense(2, name="b")(hidden)])


def rank_one():
    inputs = keras.Input((5,))
    return unisono.Model(inputs, L.Dense(1)(L.Dense(6, activation="tanh")(inputs))[:, 0])


def accumulating():
    return sgd(gradient_accumulation_steps=2)


def scaled_by_batch(model, y, p):
    each = tf.nn.compute_average_loss(tf.reduce_mean((y - p) ** 2, -1), global_batch_size=BATCH)
    return each + tf.nn.scale_regularization_loss(tf.reduce_sum(model.first.kernel**2))


def penalty(model):
    return 0.01 * tf.add_n([tf.reduce_sum(tf.convert_to_tensor(v) ** 2) for v in model.trainable_variables])


STEPS = {
    "a mean": lambda m, y, p: tf.reduce_mean((y - p) ** 2),
    "a sum": lambda m, y, p: squares(y, p),
    "a vector": lambda m, y, p: tf.reduce_sum((y - p) ** 2, -1),
    "scaled by the global batch": scaled_by_batch,
    "a mean for each replica": lambda m, y, p: tf.nn.compute_average_loss(tf.reduce_mean((y - p) ** 2, -1)),
    "a loss object that sums": lambda m, y, p: MSE(reduction="sum")(y, p) + MSE(reduction="sum")(y, 2 * p),
    "gathered samples": lambda m, y, p: (
        contrastive(gather(y), gather(p)) + 0.01 * tf.reduce_sum(m.first.kernel**2)
    ),
    "a sum with a penalty": lambda m, y, p: squares(y, p) + penalty(m),
    "a sum with a replica's part of a penalty": lambda m, y, p: (
        squares(y, p) + tf.nn.scale_regularization_loss(penalty(m))
    ),
}
LOSSES = {  # functions that create the losses, because a loss uses the current default dtype
    "an own sum": (own_loss(lambda m, y, p, rest: ops.sum((y - p) ** 2)), {}),
    "an own vector": (own_loss(lambda m, y, p, rest: MSE(reduction=None)(y, p)), {}),
    "across samples, with weights of a layer": (
        own_loss(lambda m, y, p, rest: contrastive(y, p) + 0.01 * ops.sum(m.first.kernel**2)),
        {},
    ),
    "across samples, with Keras' own and added losses": (
        own_loss(lambda m, y, p, rest: contrastive(y, p) + rest()),
        {"loss": lambda: Squared(reduction="mean_with_sample_weight"), "between": AddsLosses},
    ),
    "across samples, with metrics in it": (TracksInItsLoss, {}),
    "a sum, with a metric that draws": (SumsBesideDraws, {}),
    "a mean, with state in it": (lambda: KeepsStateInItsLoss(across=False), {}),
    "across samples, with state in it": (lambda: KeepsStateInItsLoss(across=True), {}),
    "a loss that overrides its call": (Net, {"loss": OwnCall}),
    "added losses": (Net, {"loss": MSE, "between": AddsLosses}),
    "states of layers": (Net, {"loss": MSE, "between": Counts}),
    "states that begin late": (Net, {"loss": MSE, "between": Late}),
    "states of frozen layers": (Net, {"loss": MSE, "between": CountsInFrozenLayers}),
    "a loss that counts its steps": (Net, {"loss": Annealed}),
    "accumulation of an own loss": (
        Net,
        {"loss": lambda: Squared(reduction="mean_with_sample_weight"), "optimizer": accumulating},
    ),
    "accumulation of a scalar": (
        Net,
        {"loss": lambda: lambda y, p: ops.mean((y - p) ** 2), "optimizer": accumulating},
    ),
    "no reduction next to a mean": (
        two_outputs,
        {"loss": lambda: [MSE(reduction=None), "mse"], "y": [Y, Y + 1]},
    ),
    "outputs of rank one": (rank_one, {"loss": MSE, "y": Y[:, 0]}),
}


def sgd(**options):
    return unisono.optimizers.SGD(0.05, **options)


def on_one_and_three(make, **compiled):
    """Models on one replica and on three, with the same seeds; one replica steps eagerly, the cheapest mode there."""
    for replicas in (1, 3):
        keras.utils.set_random_seed(3)
        with scope(mirrored(3) if replicas == 3 else None):
            model = make()
            model.compile(sgd(), **{"run_eagerly": replicas == 1, **compiled})
        yield model


def trained(make, replicas, y=Y, loss=None, optimizer=lambda: sgd(momentum=0.5), between=None, weighted=True):
    """History, weights and evaluation of three steps on one or several replicas."""
    keras.utils.set_random_seed(3)
    strategy = mirrored(replicas) if replicas > 1 else None
    with scope(strategy):
        model = make() if between is None else make(between)
        model.compile(optimizer(), loss and loss(), run_eagerly=replicas == 1)
    given = {"sample_weight": W} if weighted and not isinstance(y, list) else {}
    history = model.fit(X, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, **given).history
    scores = model.evaluate(X, y, batch_size=BATCH, verbose=0, return_dict=True) if weighted else {}
    assert strategy is None or copies_are_equal(model.variables, strategy)
    return {**history, **{f"val_{name}": value for name, value in scores.items()}}, model.get_weights()


def assert_same(one, several):
    for name, value in one[0].items():
        np.testing.assert_allclose(several[0][name], value, rtol=1e-12, atol=1e-13, err_msg=name)
    for a, b in zip(one[1], several[1]):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.long
def test_custom_train_step_gives_the_results_of_one_device(name):
    make = custom_step(STEPS[name])
    assert_same(trained(make, 1, weighted=False), trained(make, 3, weighted=False))


@pytest.mark.short("no reduction next to a mean")
@pytest.mark.parametrize("name", LOSSES)
def test_own_losses_and_states_give_the_results_of_one_device(name):
    make, arguments = LOSSES[name]
    assert_same(trained(make, 1, **arguments), trained(make, 3, **arguments))


class Logs(GradientsOfItsOwn, Net):
    """Logs a mean over samples, two values that are neither a mean nor a sum, and a function of a metric's result."""

    def __init__(self):
        super().__init__()
        self.mine, self.tracked = keras.metrics.Mean(name="mine"), keras.metrics.Mean(name="tracked")

    def loss_of(self, x, y):
        self.errors = tf.reduce_mean((y - self(x, training=True)) ** 2, 1)
        return tf.reduce_mean(self.errors)

    def logs_of(self, loss, x):
        self.mine.update_state(loss)
        median = ops.median(self.errors)
        self.tracked.update_state(median)
        logs = {"error": loss, "median": median, "known": ops.exp(self.mine.result())}
        return {**logs, "inner": {"spread": ops.std(self.errors)}}


@pytest.mark.long
def test_logs_of_any_kind_are_those_of_one_device():
    assert_same(trained(Logs, 1, weighted=False), trained(Logs, 3, weighted=False))


class Adds(Count):
    """Adds its inputs, in the shape of a table."""

    def __init__(self, shape, name):
        keras.metrics.Metric.__init__(self, name=name)
        self.total = self.add_variable(shape, "zeros", name="total")

    def update_state(self, *fed):
        first, *rows = fed
        for of_rows in rows:
            first = first * ops.mean(of_rows)
        self.total.assign_add(ops.cast(first, "float64"))


class TracksItsStep(Net):
    """Updates metrics with gathered samples, with values without a batch axis, and with weights independent of samples."""

    def __init__(self):
        super().__init__()
        self.held = trackers()
        self.by_output, self.outputs = keras.metrics.Mean(name="by_output"), keras.metrics.Sum(name="outputs")
        self.matrix, self.weighed = Adds((2, 2), "matrix"), Adds((3,), "weighed")
        self.annealed, self.twice = keras.metrics.Mean(name="annealed"), keras.metrics.Mean(name="twice")
        self.table = self.add_weight((3,), "ones", trainable=False, name="table")
        self.beta = self.add_weight((), "zeros", trainable=False, name="beta")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            rows, targets = gather((outputs, y))
            loss = contrastive(targets, rows)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        track(self.held, targets, rows)
        errors = tf.reduce_mean((outputs - y) ** 2, axis=0)
        for metric in (self.by_output, self.outputs):
            metric.update_state(errors)
        self.matrix.update_state(
            tf.math.confusion_matrix(tf.argmax(y, -1), tf.argmax(outputs, -1), 2, dtype=tf.float64)
        )
        self.weighed.update_state(tf.convert_to_tensor(self.table), y, outputs)
        self.annealed.update_state(tf.reduce_mean(errors), sample_weight=self.beta)
        self.twice.update_state(tf.reduce_sum((outputs - y) ** 2), sample_weight=2.0 * self.beta + 1)
        self.beta.assign_add(0.3)
        return {metric.name: ops.sum(metric.result()) for metric in self.metrics if metric.name != "loss"}


@pytest.mark.short("True")
@pytest.mark.parametrize("eager", [False, True])
def test_metrics_fed_with_gathered_samples_or_without_samples_count_once(eager):
    results = []
    for model in on_one_and_three(TracksItsStep, **({"run_eagerly": True} if eager else {})):
        history = model.fit(X[:17], Y[:17], batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        results.append((history, model.get_weights()))  # the last batch has one sample
    assert_same(*results)


class Scores(Net):
    """Updates metrics that create their variables when they know the targets."""

    def __init__(self):
        super().__init__()
        self.held = [keras.metrics.F1Score(average="macro", threshold=0.1), keras.metrics.R2Score()]

    def test_step(self, data):
        x, y = data
        for metric in self.held:
            metric.update_state(ops.cast(y > 0, "float64"), self(x))
        return {metric.name: metric.result() for metric in self.held}


@pytest.mark.long
def test_metrics_that_are_built_late_have_their_value_of_one_device_before_any_fit():
    scores = []
    for model in on_one_and_three(Scores, run_eagerly=False):
        model(X[:1])
        scores.append(model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True))
    assert_same(*((each, []) for each in scores))
    assert scores[0]["f1_score"] > 0


class Writes(L.Layer):
    """Keeps state as in TensorFlow's guides."""

    def __init__(self):
        super().__init__()
        kinds, make = tf.VariableAggregation, tf.Variable
        self.total = make(0.0, False, dtype="float64", aggregation=kinds.SUM)
        self.calls = make(0, False, aggregation=kinds.ONLY_FIRST_REPLICA)

    def call(self, x, training=False):
        if training:
            self.total.assign_add(tf.reduce_sum(x))
            self.calls.assign_add(1)
        return x


@pytest.mark.long
def test_variables_of_tensorflow_that_a_layer_writes_are_those_of_one_device():
    made = []

    def make():
        made.append(custom_step(STEPS["a sum"])())
        made[-1].between = Writes()
        return made[-1]

    assert_same(*[trained(make, replicas, weighted=False) for replicas in (1, 3)])
    written = [(model.between.total.numpy(), model.between.calls.numpy()) for model in made]
    np.testing.assert_allclose(*written, rtol=1e-12)


@pytest.mark.long
def test_what_replicas_add_up_has_a_dtype_of_collectives(monkeypatch):
    """The tests all-reduce within one process, where every dtype works."""
    seen, add_up = set(), step_collectives.all_reduce_sum_packed

    def noted(tensors):
        seen.update(tensor.dtype for tensor in tensors)
        return add_up(tensors)

    monkeypatch.setattr(step_collectives, "all_reduce_sum_packed", noted)
    trained(Net, 2, loss=MSE, between=Late)
    assert seen and seen <= {tf.int32, tf.int64, tf.float64}


@pytest.mark.long
def test_no_batch_of_a_generator_is_lost_or_seen_twice():
    drawn = []

    def batches():
        for i in range(4):
            drawn.append(i)
            yield X[6 * i : 6 * i + 6], Y[6 * i : 6 * i + 6]

    def data():
        specs = (tf.TensorSpec([None, 5], tf.float64), tf.TensorSpec([None, 2], tf.float64))
        return tf.data.Dataset.from_generator(batches, output_signature=specs)

    results = []
    for model in on_one_and_three(custom_step(STEPS["a sum"]), run_eagerly=False):
        results.append((model.fit(data(), verbose=0).history, model.get_weights()))
        assert drawn == [0, 1, 2, 3] and int(model.optimizer.iterations) == 4
        drawn.clear()
    assert_same(*results)


@pytest.mark.long
def test_resumed_run_with_user_code_has_the_same_bits(tmp_path):
    make = custom_step(STEPS["a sum"])

    def fit(*callbacks):
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        with mirrored(2).scope():
            model = make(Counts)
            model.compile(sgd(momentum=0.5))
        history = model.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
        return [*model.get_weights(), *map(np.array, history.history.values())]

    left_alone = fit()
    assert_equal(resumed(fit, tmp_path, 4), left_alone)


class Windows(Net):
    """Two output samples for each input sample."""

    def call(self, x, training=False):
        return self.last(self.first(ops.reshape(x[:, :4], (-1, 2))))


class Centers(Net):
    """Returns class centers next to the predictions."""

    def __init__(self):
        super().__init__()
        self.centers = self.add_weight((3, 2), keras.initializers.RandomNormal(seed=3))

    def call(self, x, training=False):
        return super().call(x, training), 1.0 * self.centers


def nearest(reduce):
    def loss(y, outputs):
        points, centers = outputs
        return 0.1 * reduce(ops.min(ops.sum(ops.square(points[:, None] - centers[None]), -1), -1))

    return loss


def assigned_alike(y, outputs):
    points, centers = outputs
    assigned = ops.mean(ops.softmax(-ops.sum(ops.square(points[:, None] - centers[None]), -1)), 0)
    return ops.sum(assigned * ops.log(assigned))


def of_windows(reduce):
    return lambda y, outputs: 0.1 * reduce(ops.square(ops.repeat(y, 2, axis=0) - outputs))


OUTPUTS = {
    "sum of windows": (Windows, of_windows(ops.sum)),
    "mean of windows": (Windows, of_windows(ops.mean)),
    "norm of windows": (Windows, lambda y, outputs: ops.norm(outputs)),
    "sum with centers": (Centers, nearest(ops.sum)),
    "mean with centers": (Centers, nearest(ops.mean)),
    "centers across samples": (Centers, assigned_alike),
}


@pytest.mark.long
@pytest.mark.parametrize("case", OUTPUTS)
@pytest.mark.parametrize("rows", [24, 17], ids=["full", "last of one sample"])
def test_losses_of_outputs_without_one_sample_for_each_input_are_those_of_one_device(case, rows):
    base, loss_of = OUTPUTS[case]

    class Model(base):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return loss_of(y, y_pred)

    trained = []
    for model in on_one_and_three(Model, run_eagerly=False):
        history = model.fit(X[:rows], Y[:rows], batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        trained.append([history["loss"], *model.get_weights()])
    for one, several in zip(*trained):
        np.testing.assert_allclose(several, one, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rows", [10, 9])
@pytest.mark.long
def test_predictions_with_several_samples_for_each_input_are_those_of_one_device(rows):
    predicted = []
    for model in on_one_and_three(
        Windows, run_eagerly=False
    ):  # the last of three has no sample of the last batch
        dataset = tf.data.Dataset.from_tensor_slices(X[:rows]).batch(BATCH)
        predicted += [model.predict(X[:rows], batch_size=BATCH, verbose=0), model.predict(dataset, verbose=0)]
    assert predicted[0].shape == (2 * rows, 2)
    for other in predicted[1:]:
        np.testing.assert_allclose(other, predicted[0], rtol=1e-12)


def test_sums_and_counts_that_are_written_in_predictions_are_those_of_one_device():
    class Adds(L.Layer):
        def build(self, shape):
            self.total = self.add_weight((6,), "zeros", trainable=False, name="total")
            self.calls = self.add_weight((), "zeros", "int64", trainable=False, name="calls")
            self.rows = self.add_weight((), "zeros", "int32", trainable=False, name="rows")

        def call(self, x):
            outputs = x + 0.001 * self.total
            self.total.assign_add(ops.sum(x, 0))
            self.calls.assign_add(1)
            self.rows.assign_add(ops.shape(x)[0])
            return outputs

    found = []
    for model in on_one_and_three(lambda: Net(Adds), run_eagerly=False):
        outputs = model.predict(X[:14], batch_size=BATCH - 1, verbose=0)
        found.append(({"outputs": outputs}, model.get_weights()))
    assert_same(*found)
    assert copies_are_equal(model.between.variables, model.distribute_strategy)
    assert int(model.between.rows.numpy()) == 14


class Totals(L.Layer):
    """May declare how its state is reduced, except for state that is equal on all micro-batches."""

    def __init__(self, declared):
        super().__init__()
        self.declared = [{"aggregation": kind} if declared else {} for kind in ("sum", "mean")]

    def build(self, shape):
        self.total = self.add_weight((6,), "zeros", trainable=False, name="total", **self.declared[0])
        self.mean = self.add_weight((6,), "zeros", trainable=False, name="mean", **self.declared[1])
        self.steps = self.add_weight((), "zeros", "int64", trainable=False, name="steps")

    def call(self, x, training=False):
        if training:
            self.total.assign_add(ops.sum(x, 0))
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, 0))
            self.steps.assign_add(1)
        return x


def state_in(scope, layer):
    keras.utils.set_random_seed(3)
    with scope:
        hidden = layer(L.Dense(6, activation="tanh")(inputs := keras.Input((5,))))
        model = unisono.Model(inputs, L.Dense(2)(hidden))
        model.compile(sgd(), "mse")
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    return [variable.numpy() for variable in layer.variables]


def three_micro_batches():
    return unisono.distribute.Pipeline(["CPU:0", "CPU:1"], micro_batches=3).scope()


def test_declared_state_of_layers_in_a_pipeline_is_that_of_one_device():
    scopes = contextlib.nullcontext(), three_micro_batches()
    for a, b in zip(*(state_in(each, Totals(declared=True)) for each in scopes), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


def test_undeclared_state_that_differs_between_micro_batches_is_rejected():
    message = r"totals/total.*declares no reduction.*aggregation="
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        state_in(three_micro_batches(), Totals(declared=False))


def test_tracing_a_step_has_no_side_effects():
    class Drawing(GradientsOfItsOwn, Net):
        def loss_of(self, x, y):
            seen.append(tf.inside_function())
            return squares(y, self(x, training=True))

        def logs_of(self, loss, x):
            self.counter.assign_add(1)
            self.draws.assign(keras.random.uniform((), seed=self.seeds))
            return {"loss": loss}

    seen = []
    keras.utils.set_random_seed(3)
    with mirrored(2).scope(), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Drawing()
        model.counter = keras.Variable(0, dtype="int64", trainable=False)
        model.draws = keras.Variable(0.0, dtype="float64", trainable=False)
        model.seeds = keras.random.SeedGenerator(4)
        model.compile(unisono.optimizers.SGD(0.01))
    before = model.seeds.state.numpy()
    model.fit(X, Y, batch_size=12, verbose=0, shuffle=False)
    assert all(seen) and int(model.counter.numpy()) == int(model.optimizer.iterations) == 2
    assert model.seeds.state.numpy()[1] - before[1] == 2
    assert tf.distribute.Strategy.num_replicas_in_sync.fget.__name__ == "num_replicas_in_sync"


def test_gather_in_a_custom_loop_is_exact_for_uneven_samples():
    strategy = mirrored(3)
    start = RNG.normal(size=(5, 2))
    rows = [(0, 1), (1, 5), (5, 10)]

    def gradient(w, x, y, replicas, rows_of_all=lambda value: value):
        with tf.GradientTape() as tape:
            tape.watch(w)
            p = rows_of_all(tf.matmul(x, w))
            loss = (contrastive(rows_of_all(y), p) + tf.reduce_sum(w**2)) / replicas
        return tape.gradient(loss, w), loss * replicas

    expected = gradient(tf.constant(start), tf.constant(X[:10]), tf.constant(Y[:10]), 1)

    @tf.function
    def step(x, y):
        found, loss = gradient(tf.constant(start), x, y, 3, gather)
        return tf.distribute.get_replica_context().all_reduce("SUM", found), loss

    def cut(data):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(data[slice(*rows[context.replica_id_in_sync_group])])
        )

    found, loss = strategy.run(step, (cut(X), cut(Y)))
    for copy in strategy.experimental_local_results(found):
        np.testing.assert_allclose(copy, expected[0], rtol=1e-12)
    for copy in strategy.experimental_local_results(loss):
        np.testing.assert_allclose(copy, expected[1], rtol=1e-12)


def test_mistake_in_an_own_compute_loss_is_not_blamed_on_the_targets():
    class Mistaken(Net):
        def compute_loss(self, x, y, y_pred):
            return ops.mean((y - y_pred) ** 2)

    model = Mistaken()
    model.compile("sgd")
    with pytest.raises(TypeError, match="takes 4 positional arguments"):
        model.fit(X, Y, batch_size=BATCH, verbose=0)
