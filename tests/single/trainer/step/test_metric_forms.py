"""Every form of metric has its single-device value, whatever its state and its inputs."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import losses, metrics, ops

import unisono

ROWS, BATCH = 12, 5  # 5, 5 and 2 samples: uneven on 2 and 3 replicas; one of the 3 has no samples at the end
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(ROWS, 4)).astype("float32")
Y = np.abs(RANDOM.normal(size=(ROWS, 3))).astype("float32")
W = RANDOM.uniform(0.5, 2.0, ROWS).astype("float32")


def sum_of_keras(y_true, y_pred):
    return losses.MeanSquaredError(reduction="sum")(y_true, y_pred)


def entries_of_keras(y_true, y_pred):
    return losses.MeanAbsoluteError(reduction=None)(y_true, y_pred)


def across_rows(y_true, y_pred):
    return ops.mean(ops.abs(y_pred - ops.mean(y_true, axis=0)), axis=-1)


class Nested(keras.Metric):
    """Metrics nested in a metric: an attribute, a list, a dict, and a loss object."""

    def __init__(self, name="nested", **options):
        super().__init__(name=name, **options)
        self.one, self.listed = metrics.Mean(), [metrics.Sum(), metrics.CosineSimilarity(axis=0)]
        self.named = {"largest": Largest()}
        self.loss = losses.MeanSquaredError(reduction="sum")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.one.update_state(self.loss(y_true, y_pred, sample_weight))
        self.listed[0].update_state(y_pred, sample_weight)
        self.listed[1].update_state(y_true, y_pred)
        self.named["largest"].update_state(y_true, y_pred)

    def result(self):
        values = [self.one, *self.listed, self.named["largest"]]
        return ops.sum(ops.stack([1.0 * value.result() for value in values]))

    def reset_state(self):
        for metric in (self.one, *self.listed, self.named["largest"]):
            metric.reset_state()


class Largest(keras.Metric):
    """Not a sum; its result is its variable."""

    def __init__(self, name="largest", **options):
        super().__init__(name=name, **options)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(ops.maximum(self.value, ops.max(ops.abs(y_true - y_pred))))

    def result(self):
        return self.value


def of_matrices():
    return [
        losses.MeanSquaredError(name="object"),
        losses.MeanSquaredError(reduction="sum", name="object_sum"),
        losses.CosineSimilarity(axis=0, name="object_axis"),
        metrics.CosineSimilarity(axis=0, name="cosine_0"),
        metrics.CosineSimilarity(axis=-2, name="cosine_-2"),
        metrics.CosineSimilarity(name="cosine"),
        metrics.PearsonCorrelation(axis=0, name="pearson"),
        metrics.ConcordanceCorrelation(axis=0, name="concordance"),
        metrics.ConcordanceCorrelation(axis=(0, 1), name="concordance_all"),
        metrics.OneHotIoU(3, [0, 1], name="iou"),
        metrics.OneHotMeanIoU(5, axis=0, name="iou_0"),
        metrics.RootMeanSquaredError(),
        metrics.R2Score(),
        losses.dice,
        sum_of_keras,
        entries_of_keras,
        across_rows,
        Nested(),
        Largest(),
        "mse",
    ]


def of_weighted_matrices():
    return [
        metrics.CosineSimilarity(name="cosine"),
        metrics.OneHotIoU(3, [0, 1], name="iou", dtype="float32"),
        metrics.RootMeanSquaredError(),
        metrics.R2Score(),
        metrics.KLDivergence(),
        entries_of_keras,
        across_rows,
        Nested(),
    ]


def of_weighted_vectors():
    return [
        metrics.BinaryAccuracy(name="binary"),
        metrics.AUC(num_thresholds=7, name="auc"),
        metrics.RootMeanSquaredError(),
        Spread(),
    ]


class Spread(keras.Metric):
    """Calls Keras' own functions in a custom metric."""

    def __init__(self, name="spread_of", **options):
        super().__init__(name=name, **options)
        self.total, self.count = self.add_variable((), "zeros"), self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        entries = losses.MeanSquaredError(reduction=None)(y_true[:, None], y_pred[:, None], sample_weight)
        self.total.assign_add(ops.sum(entries))
        self.count.assign_add(ops.sum(sample_weight) if sample_weight is not None else ops.max(entries))

    def result(self):
        return self.total / self.count


def of_vectors():
    return [
        "accuracy",
        "mse",
        "mae",
        metrics.BinaryAccuracy(name="binary"),
        metrics.CategoricalAccuracy(name="categorical"),
        metrics.LogCoshError(),
        metrics.CosineSimilarity(),
        metrics.AUC(num_thresholds=7, name="auc"),
        metrics.Precision(top_k=1, name="top"),
        metrics.RootMeanSquaredError(),
        losses.MeanAbsoluteError(),
        across_vector,
    ]


def across_vector(y_true, y_pred):
    return ops.max(y_pred) - ops.mean(y_true)


def trained(base, strategy, vectors, eager=False, rows=ROWS):
    keras.utils.set_random_seed(1)
    x, y, weight = X[:rows], ((Y[:, 0] > 0.7).astype("float32") if vectors else Y)[:rows], W[:rows]
    with helpers.scope(strategy):
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(3, activation="sigmoid")(inputs)
        model = base(inputs, outputs[:, 0] if vectors else outputs)
        model.compile(
            keras.optimizers.SGD(0.1),
            losses.MeanSquaredError() if not vectors else rowwise_error,
            metrics=of_vectors() if vectors else of_matrices(),
            weighted_metrics=of_weighted_vectors() if vectors else of_weighted_matrices(),
            jit_compile=False,
            run_eagerly=eager,
        )
    data = {"x": x, "y": y, "sample_weight": weight, "batch_size": BATCH, "verbose": 0}
    found = model.fit(**data, epochs=2, shuffle=False).history
    return {**found, "evaluate": model.evaluate(**data)} if eager else found


@unisono.rowwise
def rowwise_error(y_true, y_pred):
    return ops.square(y_true - y_pred)


@pytest.mark.long
@pytest.mark.parametrize("vectors", [False, True])
def test_metric_has_its_value_of_one_device(vectors):
    # In a graph without a partial last batch, which would need a second graph; eagerly with one.
    for replicas, eager, rows in ((2, False, 10), (3, True, ROWS)):
        right = trained(keras.Model, None, vectors, eager=True, rows=rows)
        found = trained(unisono.Model, helpers.mirrored(replicas), vectors, eager, rows)
        assert list(found) == list(right)[: len(found)]
        for name, values in found.items():
            helpers.assert_close(values, right[name], helpers.FLOAT32, f"{name} on {replicas}")


class Counting(keras.layers.Layer):
    """A layer with its own metrics, one of which depends on the entire batch."""

    def __init__(self):
        super().__init__()
        self.level, self.spread = metrics.Mean(name="level"), SpreadOfRows()

    def call(self, x):
        self.level.update_state(x)
        self.spread.update_state(x)
        return x


class SpreadOfRows(keras.Metric):
    def __init__(self):
        super().__init__(name="spread")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, x):
        self.total.assign_add(ops.max(x) - ops.min(x))

    def result(self):
        return self.total


class OfNumbers(keras.Metric):
    """Gets scalars of the batch: a mean, a count and a sum over its samples."""

    def __init__(self):
        super().__init__(name="of_numbers")
        self.state = self.add_variable((4,), "zeros", name="state")

    def update_state(self, loss, count, words, dozen):
        self.state.assign_add(tf.stack([loss, tf.cast(count, "float32"), words, tf.cast(dozen, "float32")]))

    def result(self):
        return self.state[0] / self.state[1] + self.state[2] / self.state[3]


class OwnMean(metrics.Mean):
    """A custom subclass."""


def stepping(base):
    class Steps(base):
        """Updates metrics in all forms that a step may use."""

        def __init__(self):
            super().__init__()
            self.count, self.out = Counting(), keras.layers.Dense(3)
            self.nested, self.twice = Nested(), metrics.MeanSquaredError(name="twice")
            names = "rows", "number", "by_rows", "by_words", "half", "listed"
            self.many = {name: metrics.Mean(name=name) for name in names}
            self.unlisted = metrics.Mean(name="unlisted")
            self.of_numbers, self.own_mean = OfNumbers(), OwnMean(name="own_mean")

        @property
        def metrics(self):
            return [metric for metric in super().metrics if metric is not self.unlisted]

        def call(self, x):
            return self.out(self.count(x))

        def _update(self, x, y):
            y_pred = self(x, training=True)
            errors = tf.reduce_mean(tf.square(y - y_pred), 1)
            loss = tf.reduce_mean(errors)
            words = tf.reduce_sum(tf.cast(y > 0.5, tf.float32))
            self.many["rows"].update_state(errors, sample_weight=x[:, 0])
            self.many["number"].update_state(loss)
            self.many["by_rows"].update_state(loss, sample_weight=tf.shape(x)[0])
            self.many["by_words"].update_state(tf.reduce_sum(errors) / words, sample_weight=words)
            self.many["half"].update_state(loss, sample_weight=0.5)
            self.many["listed"].update_state([loss, tf.reduce_sum(errors)])
            self.unlisted.update_state(errors, sample_weight=2.0)
            large = tf.reduce_sum(tf.cast(x > 0.3, tf.int32))
            self.of_numbers.update_state(loss, large, words, tf.constant(12))
            self.own_mean.update_state(tf.reduce_sum(errors))
            self.nested.update_state(y, y_pred)
            self.nested.one.update_state(errors)
            self.twice.update_state(y, y_pred, sample_weight=x[:, :1])
            self.twice.update_state(y[:, 0], y_pred[:, 0])
            return {
                **{metric.name: metric.result() for metric in self.metrics if metric.variables},
                "unlisted": self.unlisted.result(),
                "shifted": self.nested.result() + 1.0,
            }

        def train_step(self, data):
            return self._update(*data)

        test_step = train_step

    return Steps


# 11 samples: the last batch has one, and the first replica has none of it.
@pytest.mark.long
@pytest.mark.parametrize(
    "name, samples, eager", [("mirrored1", 10, False), ("mirrored3", 11, True), ("central2", 10, True)]
)
def test_metric_that_a_step_updates_has_its_value_of_one_device(name, samples, eager):
    results, x, y = [], X[:samples], Y[:samples]
    for base, strategy in ((keras.Model, None), (unisono.Model, helpers.strategy(name))):
        keras.utils.set_random_seed(1)
        with helpers.scope(strategy):
            model = stepping(base)()
            model.compile(keras.optimizers.SGD(0.1), jit_compile=False, run_eagerly=eager or not strategy)
        history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
        states = {v.path: np.array(v) for m in (model.unlisted, *model.metrics) for v in m.variables}
        results.append((history, evaluated, list(states.values())))
    right, found = results
    for part in range(2):
        assert found[part].keys() == right[part].keys()
    for part in range(3):
        helpers.assert_close(found[part], right[part], helpers.FLOAT32)
