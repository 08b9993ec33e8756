"""Wrong uses of `compile`, of models and of optimizers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from uses.bench import COLUMN, NAN, V1, Bench, Use, X, Y, keras, np, unisono, with_loss


class TfKerasAdam:
    """Stands in for an optimizer of the package tf_keras."""


TfKerasAdam.__module__ = "tf_keras.src.optimizers.adam"


def _keras_takes_classes() -> bool:
    """Whether Keras (3.16 does) makes an optimizer of a class that was passed in its place."""
    try:
        return bool(keras.optimizers.get(keras.optimizers.Adam))
    except ValueError:
        return False


def compiled(*words: str, **arguments: Any) -> Use:
    return lambda bench: bench.compiled(**arguments), words


def two(*words: str, y: Any = (COLUMN, COLUMN), **arguments: Any) -> Use:
    as_dict = isinstance(y, dict)
    return lambda bench: bench.two_outputs(as_dict, **arguments).fit(X, y, verbose=0), words


def received(value: Any, argument: str = "") -> str:
    """What an error reports as received; Keras' own errors also name the argument there."""
    return f"Received: ({argument}=)?{re.escape(repr(value))}"


NAMED = {"a": COLUMN, "b": COLUMN}
COMPILE: dict[str, Use] = {
    "optimizer None": compiled(
        r"`fit\(\)` needs an optimizer", "optimizer=None", "compile it with", optimizer=None
    ),
    "optimizer misspelt": compiled("`optimizer` 'addam'", "did you mean 'adam'", optimizer="addam"),
    "optimizer without a name": compiled(
        "`optimizer` 'lamb'", r"pass an instance, Lamb\(\)", optimizer="lamb"
    ),
    **(
        {}
        if _keras_takes_classes()
        else {
            "optimizer class": compiled(
                "`optimizer`", "Adam", "pass an instance", optimizer=keras.optimizers.Adam
            )
        }
    ),
    "optimizer number": compiled("`optimizer` 0.01", "pass a name", optimizer=0.01),
    "optimizer list": compiled("`optimizer`", "'adam'", "pass a name", optimizer=["adam"]),
    "optimizer dict": compiled("`optimizer`", "'name'", "pass a name", optimizer={"name": "adam"}),
    "optimizer function": compiled("`optimizer`", "lambda", "pass a name", optimizer=lambda: 0),
    "optimizer of tf_keras": compiled("`optimizer`", "tf_keras", "keras.optimizers", optimizer=TfKerasAdam()),
    "optimizer of TensorFlow 1": compiled("`optimizer`", "GradientDescent", "keras.optimizers", optimizer=V1),
    "loss misspelt": compiled("`loss` 'mean_square'", "did you mean", loss="mean_square"),
    "loss number": compiled("`loss` 3 is not a loss", "pass a name", loss=3),
    "loss True": compiled("`loss` True is not a loss", "pass a name", loss=True),
    "loss None": compiled("loss", "compile", loss=None),
    "loss metric": compiled(
        "`loss` ", "MeanSquaredError", "pass a name", loss=keras.metrics.MeanSquaredError()
    ),
    "loss layer": compiled("`loss` ", "Dense", "pass a name", loss=keras.layers.Dense(2)),
    "loss of one argument": compiled("`loss`", r"\(y_true, y_pred\)", "change", loss=lambda y: y),
    "loss gives None": compiled("loss=", "None", loss=lambda y, p: None),
    "loss gives a text": compiled("loss=", "'str'|text|str", loss=lambda y, p: "a"),
    "loss dict of a Sequential": compiled("`?loss", "nope", loss={"nope": "mse"}),
    "loss for an unknown output": two("`loss` names", "'c'", "'a', 'b'", y=NAMED, loss={"c": "mse"}),
    **{
        f"{argument} for an unknown output of two, {form}": two(
            f"`{argument}` names", "'c'", "'a', 'b'", y=y, **{argument: {"a": value, "c": value}}
        )
        for argument, value in (
            ("loss", "mse"),
            ("loss_weights", 1.0),
            ("metrics", ["mae"]),
            ("weighted_metrics", ["mae"]),
        )
        for form, y in (("dict", NAMED), ("list", [COLUMN] * 2))
    },
    "loss of nothing": compiled("`loss`", "at least one output", r"Received: \[None\]", loss=[None]),
    "loss list too long": compiled("`loss`", "each of the 1 outputs", "out", loss=["mse", "mae"]),
    "loss dict of the one output": compiled("`loss`", "dict", "pass its loss directly", loss={"out": "mse"}),
    "loss_weights of another output": compiled(
        "`loss_weights` names", "'c'", "'out'", loss_weights={"c": 1.0}
    ),
    "metric called loss": compiled(
        r"`metrics\[0\]`", "'loss'", "rename it", metrics=[keras.metrics.MeanSquaredError(name="loss")]
    ),
    "metric called as that of validation": compiled(
        r"`weighted_metrics\[1\]`",
        "'val_mae'",
        "rename it",
        weighted_metrics=["mae", keras.metrics.MeanSquaredError(name="val_mae")],
    ),
    "loss list too short": two("`loss`", "each of the 2 outputs", "a, b", loss=["mse"]),
    "loss_weights text": compiled("`loss_weights`", "'a'", "finite number", loss_weights="a"),
    "loss_weights NaN": compiled(r"`loss_weights\[0\]`", "nan", "finite", loss_weights=[NAN]),
    "loss_weights of text": compiled(r"`loss_weights\[0\]`", "'2'", "number", loss_weights=["2"]),
    "loss_weights too many": compiled("`loss_weights`", "1 losses and 2 weights", loss_weights=[1.0, 2.0]),
    "loss_weights too few": two("`loss_weights`", "each of the 2 outputs", loss_weights=[1.0]),
    "loss_weights unknown": two("`loss_weights` names", "'c'", "'a', 'b'", y=NAMED, loss_weights={"c": 1.0}),
    "metrics misspelt": compiled(
        r"`metrics\[0\]` 'acuracy'", "did you mean '[a-z_]*accuracy", metrics=["acuracy"]
    ),
    "metrics text": compiled("`metrics`", "list", "mae", metrics="mae"),
    "metrics number": compiled(r"`metrics\[0\]` 3 is not a metric", "pass a name", metrics=[3]),
    "metrics optimizer": compiled(r"`metrics\[0\]` ", "SGD", "pass a name", metrics=[keras.optimizers.SGD()]),
    "metrics of one argument": compiled(r"`metrics\[0\]`", r"\(y_true, y_pred\)", metrics=[lambda y: y]),
    "metrics of an unknown output": two("`metrics`", "'c'", y=NAMED, metrics={"c": "mae"}),
    "weighted_metrics misspelt": compiled(
        r"`weighted_metrics\[0\]` 'maee'", "did you mean", weighted_metrics=["maee"]
    ),
    "run_eagerly text": compiled("`run_eagerly`", "'no'", "True or False", run_eagerly="no"),
    "auto_scale_loss text": compiled("`auto_scale_loss`", "'no'", "True or False", auto_scale_loss="no"),
    "unknown argument": compiled("learning_rate", learning_rate=0.1),
    "y for one of two outputs": two("`y`", "structure", y=COLUMN),
    "y for three of two outputs": two("`y`", "structure", y=[COLUMN] * 3),
    "y lacks an output": two("`y`", "output 'b'", y={"a": COLUMN}),
    "y names another output": two("`y`", "output 'b'", y={"a": COLUMN, "c": COLUMN}),
    "class numbers for categories": (
        lambda b: with_loss(b, "categorical_crossentropy", np.ones(6)),
        ("`y`", r"\(None,\)", "sparse_categorical_crossentropy"),
    ),
    "one-hot for class numbers": (
        lambda b: with_loss(b, "sparse_categorical_crossentropy", Y),
        ("`y`", r"\(None, 2\)", "use categorical_crossentropy"),
    ),
    "one column for two binary outputs": (
        lambda b: with_loss(b, "binary_crossentropy", np.ones(6)),
        ("`y`", r"\(None,\)", "shape of the outputs"),
    ),
    **{
        f"steps_per_execution {v!r}": compiled(
            "`steps_per_execution`", '"auto"', received(v), steps_per_execution=v
        )
        for v in (0, -1, "fast", True, 2.5, None, [1])
    },
    **{
        f"jit_compile {v!r}": compiled("`jit_compile`", '"auto"', received(v), jit_compile=v)
        for v in ("yes", 2, [True], NAN)
    },
}


def model(call: Callable[[Bench], Any], *words: str) -> Use:
    return call, words


def _h5(bench: Bench) -> Any:
    return unisono.load_model(bench.folder / "m.h5")


MODELS: dict[str, Use] = {
    **{
        f"adopt {what}": model(lambda b, v=v: unisono.adopt(v), "`model`", "keras.Model", word)
        for what, v, word in (
            ("a layer", keras.layers.Dense(1), "Dense"),
            ("a class", keras.Model, "Model"),
            ("a file", "m.keras", "'m.keras'"),
            ("None", None, "None"),
        )
    },
    "clone a layer": model(
        lambda b: unisono.clone_model(keras.layers.Dense(1)), "`model`", "keras.Model", "Dense"
    ),
    "synchronize nothing": model(
        lambda b: unisono.synchronize_batch_norm(None), "`model`", "keras.Model", "None"
    ),
    "load nothing": model(lambda b: unisono.load_model(None), "`filepath`", "path", "None"),
    "load a number": model(lambda b: unisono.load_model(3), "`filepath`", "path", "3"),
    "load a missing file": model(_h5, "`filepath`", "m.h5", "pass"),
    "load a folder": model(lambda b: unisono.load_model(b.folder), "filepath", "keras"),
    "load with a list": model(
        lambda b: unisono.load_model(b.file, [1]), "`custom_objects`", "dict", r"\[1\]"
    ),
    "load with compile=no": model(lambda b: unisono.load_model(b.file, compile="no"), "`compile`", "'no'"),
    "rowwise of a text": model(lambda b: unisono.rowwise("mse"), "`fn`", "function", "'mse'"),
    "rowwise of a builtin": model(lambda b: unisono.rowwise(len), "`fn`", "Python function", "len"),
    "Sequential of a text": model(lambda b: unisono.Sequential(["dense"]), "keras.Layer", "dense"),
    "Sequential of a class": model(
        lambda b: unisono.Sequential([keras.layers.Dense]), "keras.Layer", "Dense"
    ),
    "Model of numbers": model(lambda b: unisono.Model(3, 4), "`inputs`", "3"),
}
