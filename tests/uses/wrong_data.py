"""Wrong values in data: strings, labels, weights, validation data; and wrong results of a custom step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helpers import Batches

from uses.bench import COLUMN, NAN, Bench, Use, X, Y, keras, np, rows, tf
from uses.wrong_fit import BATCHES, fit

CLASSES = "sparse_categorical_crossentropy"
NAMES = ["a"] * 6
TEXT = ("`y` contains strings", "StringLookup")


def fitted(y: Any, *words: str, loss: Any = CLASSES, as_dataset: bool = False, **arguments: Any) -> Use:
    """`fit` of a new model with two outputs."""

    def use(bench: Bench) -> Any:
        data = {"x": rows(X, y).batch(2)} if as_dataset else {"x": X, "y": y}
        return bench.new(loss=loss).fit(**data, verbose=0, **arguments)

    return use, words


def labels(label: float, as_dataset: bool = False) -> Use:
    y = np.array([label, 1, 0, 0, 1, 1])  # in the first batch
    return fitted(y, "`y`", f"the label {label}", "from 0 to 1", as_dataset=as_dataset)


def validated(data: Any, *words: str, **arguments: Any) -> Use:
    return fit("^`validation_data`: ", *words, validation_data=data, **arguments)


def pixels(*words: str, method: str = "fit", loss: Any = CLASSES, label: int = 1, **arguments: Any) -> Use:
    """A method of a model of two pixels with two samples, so that sample weights could match pixels."""

    def use(bench: Bench) -> Any:
        model = bench.namespace.Sequential([keras.Input((2, 3)), keras.layers.Dense(2)])
        model.compile("sgd", loss, run_eagerly=True)
        return getattr(model, method)(np.ones((2, 2, 3)), np.full((2, 2), label), **arguments)

    return use, words


DATA: dict[str, Use] = {
    **{
        f"strings in {what}, {loss}": fitted(y, *TEXT, loss=loss)
        for what, y in (
            ("an array", np.array(NAMES)),
            ("columns", np.array([["a", "b"]] * 6)),
            ("an array of objects", np.array(NAMES, object)),
            ("a tensor", tf.constant(NAMES)),
            ("a list", NAMES),
        )
        for loss in ("mse", CLASSES)
    },
    **{
        f"strings in a dataset, {loss}": fitted(np.array(NAMES), *TEXT, loss=loss, as_dataset=True)
        for loss in ("mse", CLASSES)
    },
    "strings in a dataset, again": fit(*TEXT, x=rows(X, np.array(NAMES)).batch(2), y=None),
    "strings of a generator": fit(*TEXT, x=((X, np.array(NAMES)) for _ in range(2)), y=None),
    "strings as weights of a dataset": fit(
        "`sample_weight` contains strings", "pass one number", x=rows(X, Y, np.array(NAMES)).batch(2), y=None
    ),
    "a negative label": labels(-1),
    "a label too many": labels(2),
    "a label of float": labels(7.0),
    "a label NaN": labels(NAN),
    "a label too many in a dataset": labels(2, as_dataset=True),
    "a label too many, to validate": fitted(
        np.zeros(6), "^`validation_data`: `y`", "label 7", "0 to 1", validation_data=(X, np.full(6, 7))
    ),
    **{
        f"a label too many, {what} to evaluate": (
            lambda b, data=data: b.new(loss=CLASSES).evaluate(*data, verbose=0),
            ("`y`", "label 7", "0 to 1"),
        )
        for what, data in (
            ("in arrays", (X, np.full(6, 7))),
            ("in a dataset", (rows(X, np.full(6, 7)).batch(2),)),
        )
    },
    "a label too many of two outputs": (
        lambda b: b.two_outputs(True, loss={"a": "mse", "b": CLASSES}).fit(
            X, {"a": COLUMN, "b": COLUMN}, verbose=0
        ),
        (r"`y\['b'\]`", "label 1", "0 to 0"),
    ),
    **{
        f"weights of {value}": fit(
            "`sample_weight` contains", str(value), "finite", sample_weight=np.array([1.0] * 5 + [value])
        )
        for value in (NAN, float("inf"), -float("inf"))
    },
    "weights of NaN to validate": validated(
        (X, Y, np.full(6, NAN)), "`sample_weight` contains nan", "finite"
    ),
    **{
        f"weights of NaN, {name}": (
            lambda b, name=name, weights=weights: getattr(b.model, name)(X, Y, sample_weight=weights),
            ("`sample_weight` contains nan", "finite"),
        )
        for name, weights in (("evaluate", tf.constant([NAN] * 6)), ("train_on_batch", np.full(6, NAN)))
    },
    "weights of NaN in a dataset": fit(
        "`sample_weight` contains nan", "finite", x=rows(X, Y, np.full(6, NAN)).batch(2), y=None
    ),
    "weights of NaN of a generator": fit(
        "Batch 0 of the generator",
        "`sample_weight` contains nan",
        x=((X, Y, NAN * Y[:, 0]) for _ in range(2)),
        y=None,
    ),
    "a label too many for CTC": pixels("`y`", "the label 5", "from 0 to 1", loss=keras.losses.CTC(), label=5),
    "a label too many in a PyDataset": (
        lambda b: b.new(loss=CLASSES).fit(Batches([(X, np.full(6, 2))] * 2), verbose=0),
        ("Batch 0 of the PyDataset", "`y` contains the label 2", "0 to 1"),
    ),
    "class_weight of pixels": pixels(
        "`class_weight`", r"\(None, 2\)", "`sample_weight`", class_weight={1: 2.0}
    ),
    **{
        f"weights of samples for pixels, {method}": pixels(
            "`sample_weight`", r"\(samples, 1\)", method=method, sample_weight=np.ones(2)
        )
        for method in ("fit", "train_on_batch", "test_on_batch")
    },
    "weights for two outputs of one": fit("`sample_weight` has 2", "each", sample_weight=[np.ones(6)] * 2),
    "weights of columns in a dataset": fit(
        "`sample_weight`", r"\(None, 3\)", "each sample", x=rows(X, Y, np.ones((6, 3))).batch(2), y=None
    ),
    "validation_data of a used generator": validated(iter([]), "yielded no batch", "create a new one"),
    "validation_data never ends": validated(BATCHES.repeat(), r"validation_steps \(None\) must be set"),
    "validation_data of unequal lengths": validated((X, Y[:3]), "x: 6, y: 3", "same number of samples"),
    "validation_data of a number": validated((3, Y), "`x` is a int", "arrays"),
    "validation_data of a text": validated((X, "a"), "`y` is a str", "arrays"),
    "validation_data of one weight": validated((X, Y, 3), "`sample_weight` is a int", "arrays"),
    "validation_data of no samples": validated((X[:0], Y[:0]), "no samples", "at least one"),
    "validation_data of samples": validated(rows(X, Y), "dataset", "batch them first"),
    "validation_data of no batch": validated(rows(X, Y).take(0).batch(2), "an empty dataset", "at least one"),
    "validation_data of an empty PyDataset": validated(Batches([]), "0 batches", "at least one"),
    "validation_data is a class": validated(tf.data.Dataset, "`x` must be an instance"),
    "validation_data is a function": validated(lambda: 3, "function without argument"),
    "validation_data gives four": validated(rows(X, Y, X, X).batch(2), "tuples of 4", "test_step"),
    "validation_data gives numbers": validated((i for i in range(9)), "is a int", "must be a tuple"),
    "validation_data with batch size": validated(
        BATCHES, r"validation_batch_size \(2\)", "own batches", validation_batch_size=2
    ),
    "validation_data of strings": validated((X, np.array(NAMES)), *TEXT),
    "per_replica_batch_size of a dataset": fit(
        r"per_replica_batch_size \(3\)", "own batches", x=BATCHES, y=None, per_replica_batch_size=3
    ),
    "per_replica_batch_size to evaluate a dataset": (
        lambda b: b.model.evaluate(BATCHES, per_replica_batch_size=3),
        (r"per_replica_batch_size \(3\)", "own batches"),
    ),
    "evaluate forever": (lambda b: b.model.evaluate(BATCHES.repeat()), (r"^steps \(None\) must be set",)),
}


def returning(make: Callable[[], Any], *words: str, eager: bool = False, step: str = "train_step") -> Use:
    """`fit` or `predict` of a model whose `train_step`, `compute_loss` or `predict_step` returns this."""

    def use(bench: Bench) -> Any:
        def own_step(self: Any, *data: Any, **named: Any) -> Any:
            return make()

        own_step.__name__ = step
        model_class = type("Model", (bench.namespace.Sequential,), {step: own_step})
        model = model_class([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", run_eagerly=eager)
        return model.predict(X, verbose=0) if step == "predict_step" else model.fit(X, Y, verbose=0)

    return use, (f"`{step}` must return", *words)


STEPS: dict[str, Use] = (
    {
        f"train_step returns {what}{', eager' if eager else ''}": returning(make, word, eager=eager)
        for what, make, word in (
            ("a number", lambda: 1.5, "Received: 1.5"),
            ("a list", lambda: [1.5], r"Received: \[1.5\]"),
            ("a tuple", lambda: (1.5,), r"Received: \(1.5,\)"),
            ("a text", lambda: "loss", "Received: 'loss'"),
            ("a tensor", lambda: tf.constant(1.5), "Received: <tf.Tensor"),
            ("nothing", lambda: None, "is a `return` missing"),
            ("a dict of None", lambda: {"loss": None}, "Received: None as 'loss'"),
            ("a dict of an empty list", lambda: {"a": []}, r"Received: \[\] as 'a'"),
            ("a dict of functions", lambda: {"loss": print}, "Received: <built-in function print> as 'loss'"),
            ("a dict of a dict of None", lambda: {"a": {"b": None}}, "Received: None as 'b'"),
        )
        for eager in (False, True)
    }
    | {
        f"compute_loss returns {value!r}": returning(
            lambda value=value: value, f"Received: {value!r}".replace("[]", r"\[\]"), step="compute_loss"
        )
        for value in (None, "loss", [])
    }
    | {
        f"predict_step returns {value}": returning(
            lambda value=value: value, f"Received: {value}", step="predict_step"
        )
        for value in (None, {"a": None})
    }
)
