"""Replica parity: every case is trained, evaluated and predicted on a single device and under strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import helpers
import keras
import numpy as np
import pytest

import unisono

CLASSES, FEATURES = 3, 4
RANDOM = np.random.default_rng(0)
X, NUMBERS = RANDOM.normal(size=(10, FEATURES)), RANDOM.normal(size=(10, 2))
LABELS, TAGS = RANDOM.integers(0, CLASSES, 10), RANDOM.integers(0, CLASSES, (10, 5))
TOKENS = np.where(np.arange(5) < RANDOM.integers(1, 6, (10, 1)), RANDOM.integers(1, 7, (10, 5)), 0)
CODES, WEIGHTS = np.eye(CLASSES)[LABELS], RANDOM.uniform(0, 2, (10, 5))


@dataclasses.dataclass
class Case:
    """A training program: its model, arguments of `compile`, and data."""

    build: Callable[[], keras.Model]
    compile: Callable[[], dict[str, Any]]
    data: dict[str, Any]
    fit: dict[str, Any] = dataclasses.field(default_factory=dict)

    def first(self, rows: int) -> dict[str, Any]:
        """The data of the first samples."""

        def cut(array: np.ndarray) -> np.ndarray:
            return array[:rows].astype(keras.config.floatx() if array.dtype.kind == "f" else "int32")

        return keras.tree.map_structure(cut, self.data)


def classifier() -> keras.Model:
    hidden = keras.layers.Dense(6, activation="tanh")
    return unisono.Sequential([keras.Input((FEATURES,)), hidden, keras.layers.Dense(CLASSES)])


def softmax() -> keras.Model:
    inputs = keras.Input((FEATURES,))
    return unisono.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(inputs))


def sequence_model() -> keras.Model:
    """Its mask reaches the loss; `tests/workers/programs/fit.py` has layers that compute with masks."""
    inputs = keras.Input((5,), dtype="int32")
    x = keras.layers.Dense(4, activation="tanh")(keras.layers.Embedding(7, 4, mask_zero=True)(inputs))
    return unisono.Model(inputs, keras.layers.Dense(CLASSES)(x))


def with_outputs(**outputs: tuple) -> keras.Model:
    """An output with each of these sizes and activations; the gradients add up in the hidden layer."""
    inputs = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(6, activation="tanh")(inputs)
    made = {name: keras.layers.Dense(*how, name=name)(hidden) for name, how in outputs.items()}
    return unisono.Model(inputs, made)


LOSSES: dict[str, Callable[[], Any]] = {
    "mean": lambda: keras.losses.MeanAbsoluteError(),
    "sum": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "weights": lambda: keras.losses.Huber(reduction="mean_with_sample_weight"),
    "own_class": lambda: OwnLoss(),
    "own_mean": lambda: scalar_loss,
    "own_sum": lambda: sum_loss,
    "own_lambda": lambda: lambda y, p: keras.ops.mean(keras.ops.square(y - p), axis=-1),
    "dice": lambda: keras.losses.Dice(),
}


class WithAddedLoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def penalized() -> keras.Model:
    """Regularizers of every kind, and a loss that a layer adds."""
    inputs = keras.Input((FEATURES,))
    regularizers = {"kernel_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2"}
    x = keras.layers.Dense(6, "tanh", **regularizers)(inputs)
    return unisono.Model(inputs, keras.layers.Dense(2)(WithAddedLoss()(x)))


class OwnLoss(keras.losses.Loss):
    """Depends on the entire batch: the spread of the predictions matters."""

    def call(self, y_true, y_pred):
        centred = y_pred - keras.ops.mean(y_pred, axis=0, keepdims=True)
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1) + keras.ops.mean(
            centred**2, axis=-1
        )


def scalar_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


def sum_loss(y_true, y_pred):
    return keras.ops.sum(keras.ops.square(y_true - y_pred))


class LargestError(keras.metrics.Metric):
    """Not a sum over replicas."""

    def __init__(self, name="largest_error", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_variable((), initializer=keras.initializers.Constant(-1.0), name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = keras.ops.cast(y_true, y_pred.dtype)
        largest = keras.ops.max(keras.ops.abs(y_true - y_pred))
        self.value.assign(keras.ops.maximum(self.value, keras.ops.cast(largest, self.value.dtype)))

    def result(self):
        return self.value * 1.0

    def reset_state(self):
        self.value.assign(-1.0)


def own_metric(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_pred))


def sparse_ce(**kwargs: Any) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


CASES: dict[str, Case] = {
    "plain": Case(
        classifier,
        lambda: {"loss": sparse_ce(), "metrics": ["accuracy"], "optimizer": "adam"},
        {"x": X, "y": LABELS},
    ),
    "sample_weight": Case(
        classifier,
        lambda: {"loss": sparse_ce(), "metrics": ["accuracy"], "weighted_metrics": ["accuracy"]},
        {"x": X, "y": LABELS, "sample_weight": WEIGHTS[:, 0]},
    ),
    "class_weight": Case(
        classifier,
        lambda: {"loss": sparse_ce(), "weighted_metrics": ["accuracy"]},
        {"x": X, "y": LABELS},
        fit={"class_weight": {0: 0.5, 1: 1.0, 2: 3.0}},
    ),
    "masked": Case(
        sequence_model, lambda: {"loss": sparse_ce(), "metrics": ["accuracy"]}, {"x": TOKENS, "y": TAGS}
    ),
    "masked_temporal_weights": Case(
        sequence_model,
        lambda: {"loss": sparse_ce(reduction="mean_with_sample_weight"), "weighted_metrics": ["accuracy"]},
        {"x": TOKENS, "y": TAGS, "sample_weight": WEIGHTS},
    ),
    "two_outputs": Case(
        lambda: with_outputs(a=(CLASSES,), b=(2,)),
        lambda: {
            "loss": {"a": sparse_ce(), "b": "mse"},
            "loss_weights": {"a": 0.3, "b": 2.0},
            "metrics": {"a": ["accuracy"], "b": ["mae"]},
        },
        {"x": X, "y": {"a": LABELS, "b": NUMBERS}},
    ),
    "many_losses": Case(
        lambda: with_outputs(**{name: (2, "sigmoid" if name == "dice" else None) for name in LOSSES}),
        lambda: {
            "loss": {name: loss() for name, loss in LOSSES.items()},
            "loss_weights": {name: 0.1 if "sum" in name else 1.0 for name in LOSSES},
            "metrics": {"mean": ["mae"]},
            "optimizer": keras.optimizers.SGD(0.01, momentum=0.9),
        },
        {
            "x": X,
            "y": {name: np.abs(NUMBERS) % 1.0 if name == "dice" else NUMBERS for name in LOSSES},
            "sample_weight": dict.fromkeys(LOSSES, WEIGHTS[:, 0]),
        },
    ),
    "none": Case(
        softmax,
        lambda: {"loss": keras.losses.CategoricalCrossentropy(reduction=None), "optimizer": "adam"},
        {"x": X, "y": CODES},
    ),
    "penalties": Case(penalized, lambda: {"loss": "mse"}, {"x": X, "y": NUMBERS}),
    "own_loss": Case(
        softmax, lambda: {"loss": OwnLoss(), "metrics": ["mae"], "optimizer": "adam"}, {"x": X, "y": CODES}
    ),
    "subclassed": Case(  # built at the first batch
        helpers.TwoLayers,
        lambda: {"loss": "huber", "metrics": [LargestError(), own_metric]},
        {"x": X, "y": NUMBERS},
    ),
    "stock_metrics": Case(
        softmax,
        lambda: {
            "loss": "categorical_crossentropy",
            "metrics": [
                keras.metrics.AUC(),
                keras.metrics.Precision(),
                keras.metrics.Recall(),
                keras.metrics.F1Score(average="macro"),
                keras.metrics.RootMeanSquaredError(),
                keras.metrics.TopKCategoricalAccuracy(2),
                keras.metrics.CategoricalCrossentropy(),
                keras.metrics.R2Score(),
            ],
        },
        {"x": X, "y": CODES},
    ),
}


def run(case: Case, strategy: Any, rows: int, batch: int = 4, eager: bool = False, whole: bool = True) -> Any:
    """All results that parity covers; without `whole` only those of `fit`."""
    keras.utils.set_random_seed(7)
    with helpers.scope(strategy):
        model = case.build()
        arguments = {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), **case.compile()}
        model.compile(run_eagerly=eager, **arguments)
    data, batches = case.first(rows), []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append((batch, logs))
    )
    options = {"batch_size": batch, "epochs": 2, "shuffle": False, "verbose": 0, **case.fit}
    result = {
        "history": model.fit(**data, **options, callbacks=[record]).history,
        "batches": batches,
        "weights": model.get_weights(),
        "slots": [v.numpy() for v in model.optimizer.variables],
    }
    if whole:
        result["evaluate"] = model.evaluate(**data, batch_size=batch, verbose=0, return_dict=True)
        result["predict"] = model.predict(data["x"], batch_size=batch, verbose=0)
    if strategy is not None:
        trained = model.trainable_variables + model.optimizer.variables
        assert helpers.copies_are_equal(trained, strategy), "the copies of a variable differ"
    return result


@pytest.fixture(scope="module")
def one_device():
    """The reference of each case, computed once and eagerly; graphs are compared with it."""
    kept: dict[Any, Any] = {}

    def reference(name: str, rows: int, batch: int = 4) -> Any:
        key = (name, rows, batch, keras.config.floatx())
        if key not in kept:
            kept[key] = run(CASES[name], None, rows, batch, eager=True)
        return kept[key]

    return reference


def check(actual: dict[str, Any], expected: dict[str, Any], tolerance: float = helpers.FLOAT32) -> None:
    for what, value in actual.items():
        helpers.assert_close(value, expected[what], tolerance, what)


# In batches of 4, which are uneven on 3 replicas. With 10 samples the last batch has 2, which leaves a replica empty and
# needs another graph; with 8 samples there is one graph.
def rows_of(name: str) -> int:
    return 10 if name in ("plain", "masked", "many_losses") else 8


# Evaluation and prediction need a graph each, traced like that of training.
WHOLE = ("plain", "sample_weight", "masked", "two_outputs", "many_losses", "penalties", "stock_metrics")


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES))
def test_fit_on_three_replicas_uneven_equals_one_device(name, one_device):
    eager = name == "many_losses"  # other tests run each kind in a graph; tracing all of them is slow
    rows = rows_of(name)
    found = run(CASES[name], helpers.mirrored(3), rows, eager=eager, whole=name in WHOLE)
    check(found, one_device(name, rows))


# 9 samples in batches of 4: the last batch has one sample.
@pytest.mark.long
@pytest.mark.parametrize("name", ["many_losses", "masked", "none", "subclassed", "two_outputs"])
def test_fit_on_two_replicas_in_float64_equals_one_device(name, one_device):
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    eager = name != "two_outputs"  # the same operations in the same order, without tracing
    check(run(CASES[name], helpers.mirrored(2), 9, eager=eager), one_device(name, 9), helpers.FLOAT64)


@pytest.mark.parametrize(
    ("strategy", "name", "options"),
    [
        ("one", "subclassed", {}),
        ("mirrored1", "masked", {}),
        ("mirrored4", "masked", {"whole": False}),
        ("central2", "stock_metrics", {}),
        ("central2", "subclassed", {"whole": False}),
        *(("mirrored2", name, {"eager": True}) for name in ("plain", "masked", "own_loss")),
    ],
)
@pytest.mark.short("mirrored2-own_loss-options7")
def test_fit_under_each_strategy_equals_one_device(name, strategy, options, one_device):
    rows = rows_of(name)
    check(run(CASES[name], helpers.strategy(strategy), rows, **options), one_device(name, rows))


# 3 samples in one batch: fewer than the replicas.
@pytest.mark.parametrize(("name", "eager"), [("plain", False), ("many_losses", True), ("penalties", True)])
@pytest.mark.short("penalties-True")
def test_fit_with_fewer_samples_than_replicas_equals_one_device(name, eager, one_device):
    check(run(CASES[name], helpers.mirrored(4), 3, 8, eager), one_device(name, 3, 8))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("replicas", ["none", "mirrored2"])
@pytest.mark.short("none-1", "none-2")
def test_batches_of_a_loss_without_reduction_count_with_their_samples_as_in_keras(replicas, outputs):
    """The second batch has one sample, and the second replica none."""

    def losses(cls, strategy):
        with helpers.scope(strategy):
            inputs, names = keras.Input((2,)), [f"out{i}" for i in range(outputs)]
            made = [keras.layers.Dense(1, kernel_initializer="ones", name=name)(inputs) for name in names]
            model = cls(inputs, made)
            loss = ["mse"] * (outputs - 1) + [keras.losses.MeanSquaredError(reduction="none")]
            model.compile(keras.optimizers.SGD(0.0), loss, run_eagerly=True)
        x = np.arange(10.0).reshape(5, 2)
        y = [x[:, :1] ** (power + 2) for power in range(outputs)]
        history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0).history
        scores = model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
        return [*(history[name] for name in sorted(history)), *scores.values()]

    expected = losses(keras.Model, None)
    helpers.assert_close(losses(unisono.Model, helpers.strategy(replicas)), expected, helpers.FLOAT32)
